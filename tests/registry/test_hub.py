"""A model in Kubeflow Hub is as in MLflow after every change, and after any fault by the next one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registry.hub import RECORDING, Hub, properties, replay, serving
from tests.registry.shelf import MODEL, Shelf
from tests.registry.steps import Run
from trainwright.artifacts import Record
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError
from trainwright.registry.__main__ import main
from trainwright.registry.hub import mirror
from trainwright.registry.promote import restore
from trainwright.registry.register import register

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as server:
        yield server


@pytest.fixture
def mirrored(shelf: Shelf, hub: Hub) -> Shelf:
    shelf.registry = shelf.registry.model_copy(update={"hub": hub.url, "author": "anna", "retry_s": 0})
    return shelf


def stages(hub: Hub) -> dict[str, tuple[str, str, str]]:
    """Return state, stage and aliases of each version."""
    return {
        name: (state, found["trainwright.stage"], found.get("trainwright.aliases", ""))
        for name, (state, found) in hub.versions().items()
    }


def content(hub: Hub) -> str:
    """Return all that the Hub has, without ids."""
    return json.dumps([hub.entries["registered_models"][0]["name"], hub.versions(), hub.artifacts()]).replace(
        '"id"', ""
    )


def test_stand_in_answers_every_recorded_request_as_the_real_hub() -> None:
    recorded = json.loads(RECORDING.read_text())
    assert len(recorded) == 33
    with serving() as hub:
        assert replay(hub.url, recorded) == recorded


def test_promotions_and_rollback_move_stage_state_and_aliases_in_the_hub(mirrored: Shelf, hub: Hub) -> None:
    assert mirrored.ask("production", 1).decision == "PASS"
    assert mirrored.ask("production", 2, expected="1").decision == "PASS"
    assert stages(hub) == {
        "1": ("ARCHIVED", "archived", "previous-production"),
        "2": ("LIVE", "production", "production"),
        "3": ("LIVE", "candidate", "candidate"),
    }
    mirrored.back()
    assert stages(hub) == {
        "1": ("LIVE", "production", "production"),
        "2": ("ARCHIVED", "archived", ""),
        "3": ("LIVE", "candidate", "candidate"),
    }
    mirrored.client.delete_registered_model_alias(MODEL, "production")
    assert restore(mirrored.registry, "ben", "by hand")
    assert stages(hub)["1"] == ("LIVE", "production", "production")


def test_registration_writes_model_version_and_artifact_with_digests_and_links(
    mirrored: Shelf, hub: Hub, run: Run, tmp_path: Path
) -> None:
    registry = mirrored.registry.model_copy(update={"page": "https://mlflow.example"})
    made = register(
        *run.folders, registry, "abc", tmp_path / "out" / "r", tmp_path / "out" / "s.md", "0192f3-run"
    )
    (model,) = hub.entries["registered_models"]
    assert (model["name"], model["externalId"], model["owner"]) == (MODEL, f"mlflow:{MODEL}", "anna")
    assert list(hub.versions()) == ["1", "2", "3", "4"], "versions from before registry.hub was set, too"
    version = hub.entries["model_versions"][-1]
    assert (version["author"], version["state"]) == ("anna", "LIVE")
    assert version["description"].startswith("From source ")
    found = properties(version)
    assert found["trainwright.model_digest"] == made.model_version == run.model.digest
    assert found["trainwright.data_digest"] == made.data_version
    assert found["trainwright.mlflow_run"] == made.run
    assert found["trainwright.mlflow_version"] == f"https://mlflow.example/#/models/{MODEL}/versions/4"
    assert found["trainwright.pipeline_run"] == "0192f3-run"
    assert found["trainwright.aliases"] == "candidate"
    (artifact,) = hub.artifacts()["4"]
    assert artifact["uri"] == mirrored.client.get_model_version(MODEL, "4").source
    assert (artifact["modelFormatName"], artifact["modelFormatVersion"]) == ("trainwright", "1")
    assert (artifact["modelSourceClass"], artifact["modelSourceId"]) == ("pipelinerun", "0192f3-run")
    assert properties(artifact) == {"trainwright.model_digest": run.model.digest}
    assert "not mirrored" not in Record.read(tmp_path / "out" / "r").headline


def test_second_mirror_changes_nothing_and_leaves_what_people_added(mirrored: Shelf, hub: Hub) -> None:
    assert mirror(mirrored.registry) == 3
    label = {"metadataType": "MetadataStringValue", "string_value": ""}
    hub.entries["model_versions"][0]["customProperties"]["reviewed"] = label
    hub.entries["registered_models"][0]["description"] = "written in the Hub"
    hub.writes.clear()
    assert mirror(mirrored.registry) == 3
    assert hub.writes == []
    mirrored.ask("production", 1)
    assert [path.rpartition("/")[0].rpartition("/")[2] for _, path, _ in hub.writes] == ["model_versions"]
    assert properties(hub.entries["model_versions"][0])["reviewed"] == ""
    assert hub.entries["registered_models"][0]["description"] == "written in the Hub"


def test_mirror_cut_off_at_any_change_is_completed_by_the_next(mirrored: Shelf) -> None:
    """The answer to the last change before the cut is lost, so nobody knows that it was made."""
    with serving() as undisturbed:
        mirror(mirrored.registry.model_copy(update={"hub": undisturbed.url}))
        writes, expected = len(undisturbed.writes), content(undisturbed)
    assert writes == 1 + 3 * 3
    for count in range(1, writes + 1):
        with serving() as hub:
            registry = mirrored.registry.model_copy(update={"hub": hub.url})
            hub.dies_after = count
            with pytest.raises(DependencyError, match="Kubeflow Hub does not answer"):
                mirror(registry)
            hub.dies_after = 1_000
            mirror(registry)
            assert content(hub) == expected, count


def test_model_that_changes_meanwhile_is_mirrored_as_it_is_in_the_end(mirrored: Shelf, hub: Hub) -> None:
    mirror(mirrored.registry)
    mirrored.client.set_model_version_tag(MODEL, "1", "trainwright.task", "another")
    hub.meanwhile = lambda: mirrored.client.set_model_version_tag(MODEL, "1", "trainwright.task", "last")
    mirror(mirrored.registry)
    assert hub.versions()["1"][1]["trainwright.task"] == "last"


def test_version_created_by_another_process_meanwhile_is_no_duplicate(mirrored: Shelf, hub: Hub) -> None:
    registry = mirrored.registry.model_copy(update={"retry_s": 5})
    hub.meanwhile = lambda: [mirror(registry)]
    assert mirror(registry) == 3
    assert (len(hub.entries["registered_models"]), len(hub.entries["model_artifacts"])) == (1, 3)
    hub.entries["model_versions"].pop()
    hub.entries["model_artifacts"].pop()
    hub.meanwhile = lambda: [mirror(registry)]
    mirror(registry)
    assert list(hub.versions()) == ["1", "2", "3"]
    assert {name: len(found) for name, found in hub.artifacts().items()} == {"1": 1, "2": 1, "3": 1}


def test_version_deleted_in_mlflow_is_archived_in_the_hub(mirrored: Shelf, hub: Hub) -> None:
    mirror(mirrored.registry)
    by_hand = {"name": "from a notebook", "registeredModelId": "1"}
    hub.answer("POST", "/api/model_registry/v1alpha3/model_versions", by_hand)
    mirrored.client.delete_model_version(MODEL, "2")
    for _ in range(2):
        assert mirror(mirrored.registry) == 2
        assert hub.versions()["2"] == ("ARCHIVED", {"trainwright.stage": "deleted in MLflow"})
    assert hub.versions()["from a notebook"] == ("LIVE", {})


def test_hub_that_is_away_fails_no_step_and_the_next_change_makes_up_for_it(
    mirrored: Shelf, hub: Hub, run: Run, tmp_path: Path
) -> None:
    hub.dies_after = 0
    out = tmp_path / "out"
    made = register(*run.folders, mirrored.registry, "abc", out / "r", out / "s.md")
    assert made.version == "4"
    assert "Kubeflow Hub was not updated: Kubeflow Hub does not answer: " in (out / "s.md").read_text()
    assert Record.read(out / "r").headline.endswith(", not mirrored in Kubeflow Hub")
    assert mirrored.ask("production", 1).decision == "PASS"
    promoted = mirrored.folder / "out-production-1"
    assert (
        "The next change of this model updates it, as does: trainwright model mirror "
        in (promoted / "summary.md").read_text()
    )
    assert Record.read(promoted).headline.endswith(", not mirrored in Kubeflow Hub")
    assert hub.entries["registered_models"] == []
    hub.dies_after = 1_000
    mirrored.ask("production", 2, expected="1")
    assert stages(hub)["1"] == ("ARCHIVED", "archived", "previous-production")
    assert stages(hub)["4"] == ("LIVE", "candidate", "candidate")


def test_command_mirror_sends_the_token_and_a_wrong_one_ends_with_50(
    mirrored: Shelf, hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.token, token = "right", tmp_path / "token"
    token.write_text("right\n")
    registry = mirrored.registry.model_copy(update={"hub_token_file": str(token)})
    main(["mirror", registry.to_json()])
    assert f"{MODEL}: mirrored in Kubeflow Hub, versions: 3" in capfd.readouterr().out
    token.write_text("wrong\n")
    with pytest.raises(SystemExit) as ended:
        main(["mirror", registry.to_json()])
    said = capfd.readouterr().err
    assert ended.value.code == PermissionRefused.code
    assert "registry.hub_token_file" in said
    assert "wrong" not in said
    hub.refuses = 403
    with pytest.raises(PermissionRefused, match=r"HTTP 403 .*RBAC: access denied"):
        mirror(registry)


def test_address_of_something_else_is_an_input_error(mirrored: Shelf, hub: Hub) -> None:
    elsewhere = mirrored.registry.model_copy(update={"hub": f"{hub.url}/pipeline"})
    with pytest.raises(InputError, match="answers HTTP 404 404 page not found"):
        mirror(elsewhere)
    with pytest.raises(InputError, match=r"registry\.hub is not set"):
        mirror(mirrored.registry.model_copy(update={"hub": ""}))


@pytest.mark.parametrize("name", [MODEL, MODEL.upper()])
def test_model_of_the_same_name_that_is_not_from_mlflow_is_left_alone(
    mirrored: Shelf, hub: Hub, name: str
) -> None:
    path = "/api/model_registry/v1alpha3/registered_models"
    assert hub.answer("POST", path, {"name": name, "owner": "carl"})[0] == 201
    with pytest.raises(InputError, match="not from MLflow") as caught:
        mirror(mirrored.registry)
    assert f"set its externalId in the Hub to 'mlflow:{MODEL}'" in caught.value.hint
    assert hub.entries["registered_models"][0]["owner"] == "carl"
    assert hub.entries["model_versions"] == []


def test_model_that_never_stops_changing_ends_with_a_transient_error(mirrored: Shelf, hub: Hub) -> None:
    count = iter(range(100))

    def change() -> None:
        mirrored.client.set_model_version_tag(MODEL, "1", "trainwright.task", str(next(count)))
        hub.meanwhile = change

    hub.meanwhile = change
    with pytest.raises(TransientError, match="changed in MLflow during each of 5 attempts"):
        mirror(mirrored.registry)
