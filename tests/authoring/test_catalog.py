"""What the catalog gives is what was compiled: by name, by version, by digest; and its index says so."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from docs.site import reference
from trainwright import __version__
from trainwright.authoring import catalog
from trainwright.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The compiled YAML and its index, to be changed."""
    folder = tmp_path / "compiled"
    shutil.copytree(ROOT / "compiled", folder)
    monkeypatch.setattr(catalog, "folder", lambda: folder)
    return folder


def digest(name: str) -> str:
    return hashlib.sha256((ROOT / "compiled" / "components" / f"{name}.yaml").read_bytes()).hexdigest()


def test_a_component_is_loaded_by_name_version_and_digest() -> None:
    loaded = catalog.load(f"validate@{__version__}", sha256=digest("validate"))
    assert loaded.name == "validate"


def test_another_version_is_refused_with_the_one_to_install() -> None:
    with pytest.raises(InputError, match=r"validate@9\.9\.9 is asked for") as refused:
        catalog.load("validate@9.9.9")
    assert "Install trainwright==9.9.9" in refused.value.hint


def test_a_version_that_is_left_out_after_all_is_not_any() -> None:
    with pytest.raises(InputError, match="validate@ is asked for"):
        catalog.load("validate@")


def test_another_digest_is_refused() -> None:
    with pytest.raises(InputError, match=f"validate has the SHA-256 {digest('validate')}, the caller names"):
        catalog.load("validate", sha256=digest("ingest"))


def test_a_component_that_was_changed_after_it_was_compiled_is_refused(copied: Path) -> None:
    path = copied / "components" / "validate.yaml"
    path.write_text(path.read_text().replace("trainwright/tfdv", "elsewhere/tfdv"))
    with pytest.raises(InputError, match="the index lists"):
        catalog.load("validate")
    assert catalog.load("ingest").name == "ingest"


def test_the_index_has_the_digest_of_every_compiled_file() -> None:
    index = json.loads((ROOT / "compiled" / "index.json").read_text())
    assert index["version"] == __version__
    for kind in ("components", "pipelines"):
        found = {path.stem: path for path in (ROOT / "compiled" / kind).glob("*.yaml")}
        assert index[kind].keys() == found.keys()
        for name, path in found.items():
            assert index[kind][name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), name


def test_what_judges_is_known_to_the_runner_and_to_the_submission() -> None:
    assert catalog.judged_by("validate") == "data"
    assert catalog.judged_by("evaluate") == "model"
    assert catalog.judged_by("ingest") == catalog.judged_by("unheard-of") == ""


@pytest.mark.parametrize("name", catalog.names())
def test_every_component_says_who_answers_for_it_and_what_it_needs(name: str) -> None:
    metadata = reference.read_metadata(ROOT / "components" / name / "metadata.yaml")
    page = (ROOT / "components" / name / "README.md").read_text()
    assert all(owner in page for owner in metadata.owners)
    assert metadata.exit_codes.keys() >= {0}
    general = {0, 40, 41, 70}
    assert all(said for code, said in metadata.exit_codes.items() if code not in general)
    assert all(line in page for line in (*metadata.access.reads, *metadata.access.network))


@pytest.mark.parametrize(("old", "new"), [("locate", "get_production_model"), ("probe", "smoke_test")])
def test_a_renamed_component_is_found_under_its_old_name_too(old: str, new: str) -> None:
    assert catalog.component(old) == catalog.component(new)
    assert catalog.load(old).component_spec.name == new.replace("_", "-")
    assert old not in catalog.names()
