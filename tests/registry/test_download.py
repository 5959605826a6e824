"""A version is downloaded by its number or alias, with the digest that it was registered under."""

from pathlib import Path

import pytest

from tests.registry.shelf import MODEL, Shelf
from trainwright.artifacts import Model
from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.registry.transfer import download_version

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


@pytest.mark.parametrize(("which", "version"), [("2", "2"), ("candidate", "3")])
def test_version_is_found_by_number_or_alias(which: str, version: str, shelf: Shelf, tmp_path: Path) -> None:
    made = download_version(shelf.registry, which, tmp_path / "model")
    assert made.version == version
    assert Model.read(Path(made.folder)).digest == made.model


@pytest.mark.parametrize(("which", "said"), [("9", "no version '9'"), ("champion", "no alias 'champion'")])
def test_unknown_version_is_an_error_that_names_the_aliases(
    which: str, said: str, shelf: Shelf, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as error:
        download_version(shelf.registry, which, tmp_path / "model")
    assert f"{MODEL}@candidate" in error.value.hint


def test_missing_database_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    registry = Registry(model=MODEL, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(InputError, match="there is no registry here"):
        download_version(registry, "1", tmp_path / "model")
    assert not list(tmp_path.iterdir())
