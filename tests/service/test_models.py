"""Registration and promotion over the API pass the checks of the commands behind them."""

import getpass
import shutil

import pytest

from tests.registry.shelf import MODEL
from tests.service.conftest import Site
from trainwright.local.run_folder import Tasks

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

PUT = {"to": "production", "reason": "it is better"}


def versions(site: Site) -> list[str]:
    return [one["version"] for one in site.service.get(f"models/{MODEL}")]


def test_run_is_registered_once_and_its_author_cannot_approve_it(site: Site) -> None:
    before = versions(site)
    made = site.service.call("POST", f"models/{MODEL}/versions", json={"run": "000001"})
    assert made.status_code == 201
    registration = made.json()
    assert registration["version"] not in before
    again = site.service.call("POST", f"models/{MODEL}/versions", json={"run": "000001"})
    assert (again.status_code, again.json()["version"]) == (200, registration["version"])
    assert again.json()["registered_before"]
    number = registration["version"]
    shown = site.service.get(f"models/{MODEL}/versions/{number}")
    assert shown["tags"]["author"] == getpass.getuser()
    assert shown["tags"]["model_digest"] == registration["model_version"]
    held = site.service.call("PUT", f"models/{MODEL}/versions/{number}/stage", json=PUT)
    assert held.status_code == 409
    found = held.json()
    assert (found["code"], found["verdict"]["decision"]) == (12, "HOLD")
    failed = [rule["name"] for rule in found["verdict"]["rules"] if rule["value"] < rule["limit"]]
    assert failed == ["approved by another person"]
    assert "production" not in site.shelf.aliases()


def test_model_that_failed_is_not_registered(site: Site) -> None:
    before = versions(site)
    answer = site.service.call("POST", f"models/{MODEL}/versions", json={"run": "00000b"})
    assert (answer.status_code, answer.json()["error"]) == (409, "ModelRefused")
    assert "the model verdict is FAIL, not PASS: min_auc 0.51" in answer.json()["what"]
    assert versions(site) == before


def test_model_whose_files_changed_is_not_registered(site: Site) -> None:
    (site.runs / "000002" / "evidence" / "model" / "weights.safetensors").write_text("other")
    before = versions(site)
    answer = site.service.call("POST", f"models/{MODEL}/versions", json={"run": "000002"})
    assert answer.status_code == 400
    assert "weights.safetensors" in answer.json()["what"]
    assert versions(site) == before


def test_run_without_evidence_has_nothing_to_register(site: Site) -> None:
    shutil.copytree(site.runs / "000003", site.runs / "00000c")
    tasks = Tasks.read(site.runs / "00000c")
    Tasks(run="00000c", state="failed", tasks=tasks.tasks[:3]).write(site.runs / "00000c")
    for run, said in (("00000c", "has no verdict of evaluate"), ("zzzzzz", "there is no run 'zzzzzz'")):
        answer = site.service.call("POST", f"models/{MODEL}/versions", json={"run": run})
        assert answer.status_code == 400
        assert said in answer.json()["what"]


def test_promotion_that_passes_is_in_the_audit_with_the_caller_as_approver(site: Site) -> None:
    path = f"models/{MODEL}/versions/2/stage"
    answer = site.service.call("PUT", path, json=PUT | {"by": "ben"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["result"]["decision"], answer.json()["result"]["production"]) == ("PASS", "2")
    assert site.shelf.aliases()["production"] == "2"
    [event] = site.shelf.state().events
    assert event.intent.who.items() >= {"by": "ben", "approver": getpass.getuser()}.items()
    again = site.service.call("PUT", path, json=PUT | {"by": "ben"})
    assert (again.status_code, again.json()["result"]["done_before"]) == (200, True)
    assert len(site.shelf.state().events) == 1
    history = site.service.get(f"models/{MODEL}/history")
    assert history["succession"] == ["2"]
    assert history["warning"] == ""


def test_promotion_on_a_comparison_with_another_production_is_held(site: Site) -> None:
    """Version 3 was compared with a registry without production; by now version 2 is there."""
    answer = site.service.call("PUT", f"models/{MODEL}/versions/3/stage", json=PUT)
    assert answer.status_code == 409
    assert site.shelf.aliases()["production"] == "2"


def test_stage_off_the_path_or_an_invalid_request_is_the_fault_of_the_caller(site: Site) -> None:
    path = f"models/{MODEL}/versions/1/stage"
    for body, status in (
        (PUT | {"to": "canary"}, 400),
        (PUT | {"to": "somewhere"}, 422),
        (PUT | {"approver": "carl"}, 422),
        (PUT | {"reason": " "}, 400),
        (PUT | {"expected": "x"}, 400),
    ):
        answer = site.service.call("PUT", path, json=body)
        assert answer.status_code == status, (body, answer.text)
