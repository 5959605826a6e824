"""The versions of a model, as MLflow has them."""

import json

import pytest

from tests.registry.shelf import DIRECT, MODEL, Shelf
from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.registry.__main__ import main
from trainwright.registry.listing import list_versions, show_version

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def test_versions_are_listed_newest_first_with_stage_and_aliases(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf.ask("production", policy=DIRECT, version="2")
    found = list_versions(shelf.registry)
    assert [one.version for one in found] == ["3", "2", "1"]
    assert [one.tags["stage"] for one in found] == ["candidate", "production", "candidate"]
    assert found[1].aliases == ("production",)
    assert found[0].tags["model_digest"] != found[1].tags["model_digest"]
    main(["list", shelf.registry.to_json()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{MODEL}   3 versions"
    assert lines[3].split()[:3] == ["2", "production", "production"]


def test_version_is_shown_by_number_and_by_alias_with_metrics_and_parameters(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf.ask("production", policy=DIRECT, version="2")
    shown = show_version(shelf.registry, "production")
    assert shown == show_version(shelf.registry, "2")
    run = shelf.client.get_run(shown.run).data
    assert shown.params == run.params
    assert shown.metrics == {name: value for name, value in run.metrics.items() if "/" not in name}
    main(["show", shelf.registry.to_json(), "2", "--json"])
    assert json.loads(capsys.readouterr().out)["tags"] == dict(shown.tags)


def test_unknown_model_version_or_registry_is_named(shelf: Shelf) -> None:
    with pytest.raises(InputError, match="no model 'other' is registered"):
        list_versions(Registry(model="other", tracking_uri=shelf.registry.tracking_uri))
    with pytest.raises(InputError, match="has no version '9'"):
        show_version(shelf.registry, "9")
    with pytest.raises(InputError, match="there is no registry here"):
        list_versions(Registry(model=MODEL, tracking_uri=f"sqlite:///{shelf.folder}/absent.db"))
