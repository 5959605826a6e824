"""Runs are started over the API: real processes, once for a key."""

import getpass
import time
from typing import Any

import pytest

from tests.registry.shelf import MODEL
from tests.service.conftest import Site

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

PATH = "pipelines/promote_model/runs"


def parameters(site: Site, **more: Any) -> dict[str, Any]:
    registry = {"model": MODEL, "tracking_uri": site.shelf.registry.tracking_uri}
    policy = {"path": ["production"], "four_eyes": False}
    request = {"to": "production", "by": "anna", "reason": "it is better", "version": "1"} | more
    return {"parameters": {"registry": registry, "promotion": policy, "request": request}}


def test_run_is_started_once_for_a_key_and_goes_on_to_its_end(site: Site) -> None:
    body, key = parameters(site), {"Idempotency-Key": "monday"}
    made = site.service.call("POST", PATH, json=body, headers=key)
    assert made.status_code == 201, made.text
    run = made.json()["run"]
    assert made.json()["link"] == f"/api/v1/runs/{run}"
    assert site.service.get(f"runs/{run}")["summary"]["state"] in {"running", "done"}
    again = site.service.call("POST", PATH, json=body, headers=key)
    assert (again.status_code, again.json()["run"], again.json()["started"]) == (200, run, False)
    other = site.service.call("POST", PATH, json=parameters(site, reason="other"), headers=key)
    assert other.status_code == 400
    assert f"this key started run {run} of promote_model, with other arguments" in other.json()["what"]
    deadline = time.monotonic() + 300
    while site.service.get(f"runs/{run}")["summary"]["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.5)
    found = site.service.get(f"runs/{run}")
    assert found["summary"]["state"] == "done", found
    assert site.shelf.aliases()["production"] == "1"
    assert [one["run"] for one in site.service.get("runs", pipeline="promote_model")["runs"]] == [run]
    assert site.service.call("POST", PATH, json=body, headers=key).json()["run"] == run


def test_invalid_run_leaves_nothing_behind(site: Site) -> None:
    before = sorted(path.name for path in site.runs.iterdir())
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
    for path, body, status, said in (
        ("pipelines/nothing/runs", {}, 404, "there is no pipeline"),
        ("pipelines/..%2Fx/runs", {}, 404, ""),
        (PATH, {"parameters": {"surprise": 1}}, 400, "surprise"),
        (PATH, {"parameters": {"request": 3}}, 400, ""),
        (PATH, {"parameters": {"request": {"reason": token}}}, 400, "must not be written like this"),
        (PATH, {"experiment": {"data": 3}}, 400, ""),
        (PATH, {"date": "2026-01-01"}, 400, "no parameter date"),
        (PATH, {"more": 1}, 422, "more"),
    ):
        answer = site.service.call("POST", path, json=body)
        assert answer.status_code == status, (body, answer.text)
        assert said in answer.json()["what"]
        assert token not in answer.text
    assert sorted(path.name for path in site.runs.iterdir()) == before


def test_caller_of_this_machine_is_its_user(site: Site) -> None:
    assert site.service.get("session")["user"] == getpass.getuser()
