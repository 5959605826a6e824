"""Where `trainwright model` looks for a model: a file, an address, or both."""

import json
import os
from pathlib import Path

import pytest

from trainwright.authoring.arguments import read_promotion, read_registry
from trainwright.errors import InputError

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "flights.yaml"


def test_an_address_alone_is_enough_and_is_relative_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(read_registry("m", None, "audit", "sqlite:///mlflow.db"))
    assert found["model"] == "m"
    assert found["tracking_uri"] == f"sqlite:///{os.path.realpath(tmp_path)}/mlflow.db"
    assert found["audit"] == f"{os.path.realpath(tmp_path)}/audit"


def test_what_is_said_wins_over_the_file_and_the_name_over_both() -> None:
    found = json.loads(read_registry("another", EXAMPLE, "gs://acme/audit", ""))
    assert (found["model"], found["audit"]) == ("another", "gs://acme/audit")
    assert found["tracking_uri"].startswith("sqlite:////")
    assert json.loads(read_promotion(EXAMPLE))["path"] == ["staging", "production"]


def test_nothing_to_look_at_and_a_secret_are_refused() -> None:
    with pytest.raises(InputError, match="nothing says where"):
        read_registry("m", None, "", "")
    with pytest.raises(InputError) as caught:
        read_registry("m", None, "", "https://me:hunter2@mlflow.example")
    assert "hunter2" not in str(caught.value)
