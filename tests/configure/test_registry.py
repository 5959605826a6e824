"""The Feast service of a run is looked up before any data is read."""

from pathlib import Path
from typing import Any

import pytest

from tests.configure.test_configuration import GOOD, SCHEMA
from tests.featurestore.repository import PRICES, make_repository
from trainwright.configure.configuration import Configuration, Overrides, check_service, configure
from trainwright.errors import InputError

KNOWN = {"kind": "*", "column": "price", "severity": "WARN"}
UNKNOWN = {"kind": "*", "column": "pricee", "severity": "WARN"}


def checked(
    folder: Path, repository: Path | str, service: str = "shop_v1", **validation: Any
) -> Configuration:
    own = {"repository": str(repository), "source": f"{repository}/**/*[!c]", "service": service}
    sections = GOOD | {"features": own, "validation": validation}
    return check_service(configure(sections, Overrides(schema=SCHEMA), folder / "out"))


def test_wrong_service_is_rejected_and_the_right_one_accepted(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    assert checked(tmp_path, repository).validation == {}
    with pytest.raises(InputError, match="no feature service 'shop_v2'; did you mean shop_v1"):
        checked(tmp_path, repository, "shop_v2")


def test_missing_offline_file_is_rejected(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    (repository / "offline" / "prices.parquet").unlink()
    with pytest.raises(InputError, match="offline file of view 'prices' is not there"):
        checked(tmp_path, repository)


def test_rules_on_joined_features_are_passed_to_validate_as_known(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    assert checked(tmp_path, repository, severity=[KNOWN, UNKNOWN]).validation["joined"] == ["price"]


def test_repository_in_a_store_without_keys_is_left_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "MINIO_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = checked(tmp_path, "s3://b/repo", severity=[UNKNOWN])
    assert "join checks the feature service" in caplog.text
    assert found.validation["joined"] == ["pricee"]
