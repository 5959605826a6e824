"""What ``deploy/ci`` grants is what submitting from CI calls: nothing is refused, no right is left over."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.authoring.api import packages
from tests.authoring.api.server import Api, serving
from tests.authoring.api.store import Frame, Store
from trainwright.cli import app

CI = Path(__file__).resolve().parents[2] / "deploy" / "ci"
ONE = "[^/:]+"
Right = tuple[str, str]

RIGHTS: dict[tuple[str, str], Right | None] = {
    ("GET", "/v2beta1/healthz"): None,
    ("GET", f"/v2beta1/pipelines/names/{ONE}"): ("pipelines", "get"),
    ("POST", "/v2beta1/pipelines"): ("pipelines", "create"),
    ("POST", "/v2beta1/pipelines/upload_version"): ("pipelines", "create"),
    ("GET", f"/v2beta1/pipelines/{ONE}/versions"): ("pipelines", "list"),
    ("GET", f"/v2beta1/pipelines/{ONE}/versions/{ONE}"): ("pipelines", "get"),
    ("GET", "/v2beta1/experiments"): ("experiments", "list"),
    ("POST", "/v2beta1/experiments"): ("experiments", "create"),
    ("GET", "/v2beta1/runs"): ("runs", "list"),
    ("POST", "/v2beta1/runs"): ("runs", "create"),
    ("GET", f"/v2beta1/runs/{ONE}"): ("runs", "get"),
    ("GET", f"/v1beta1/runs/{ONE}"): ("runs", "get"),
    ("POST", f"/v2beta1/runs/{ONE}:retry"): ("runs", "retry"),
    ("POST", f"/v2beta1/runs/{ONE}:terminate"): ("runs", "terminate"),
    ("GET", f"/v1alpha1/runs/{ONE}/nodes/{ONE}/log"): None,
    ("GET", f"/v2beta1/runs/{ONE}/nodes/{ONE}/artifacts/main-logs:read"): ("runs", "readArtifact"),
    ("GET", "/v2beta1/recurringruns"): ("jobs", "list"),
    ("POST", "/v2beta1/recurringruns"): ("jobs", "create"),
    ("GET", f"/v2beta1/recurringruns/{ONE}"): ("jobs", "get"),
    ("POST", f"/v2beta1/recurringruns/{ONE}:enable"): ("jobs", "enable"),
    ("POST", f"/v2beta1/recurringruns/{ONE}:disable"): ("jobs", "disable"),
}
"""What the API server has reviewed for a call: ``canAccess…`` in backend/src/apiserver/server of KFP 2.17."""

FAILED = {"root-driver": "SUCCEEDED", "ingest-driver": "SUCCEEDED", "ingest": "FAILED", "executor": "FAILED"}


@pytest.fixture
def server() -> Iterator[Api]:
    with serving(store=Store(multi_user=True), token="ci") as api:  # noqa: S106 - a stand-in
        yield api


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    packages.gated(tmp_path)
    (tmp_path / "token").write_text("ci\n")
    return tmp_path


def call(server: Api, *words: str, ends: int = 0) -> None:
    reach = ["--host", server.url, "--namespace", "team-a", "--token-file", "token"]
    done = CliRunner().invoke(app.app, [*words, *reach])
    assert done.exit_code == ends, done.output


def taken(server: Api) -> set[Right]:
    """Return the rights that calls took; a call that the table does not have is an error."""
    found = set()
    for made in server.calls:
        method, path = made.split(" ", 1)
        (right,) = {
            right
            for (verb, pattern), right in RIGHTS.items()
            if verb == method and re.fullmatch(f"/apis{pattern}", path)
        }
        found.add(right)
    return {right for right in found if right}


def granted(role: str) -> set[Right]:
    bodies = [body for path in CI.glob("*.yaml") for body in yaml.safe_load_all(path.read_text())]
    (found,) = (
        body for body in bodies if (body["kind"], body.get("metadata", {}).get("name")) == ("Role", role)
    )
    assert {group for rule in found["rules"] for group in rule["apiGroups"]} == {"pipelines.kubeflow.org"}
    return {(kind, verb) for rule in found["rules"] for kind in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.covers("A9")
def test_the_role_of_ci_is_what_submitting_following_stopping_and_retrying_call(
    server: Api, folder: Path
) -> None:
    submit = ["submit", "gated.yaml", "--param", "source=gs://rows/a"]
    server.store.script = [Frame("FAILED", FAILED, {"executor": ["gated-x-1"], "ingest": ["gated-x-1"]})]
    call(server, *submit)
    run = server.store.runs[0].run_id
    call(server, "status", run, ends=70)
    server.store.script = [Frame("RUNNING")]
    call(server, "retry", run)
    call(server, "terminate", run)
    assert taken(server) == granted("trainwright-submit")
    assert server.made("GET", "/log"), "the step's own line was looked for"


def schedules(folder: Path, **more: Any) -> None:
    nightly = {"pipeline": "gated.yaml", "params": {"source": "gs://rows/a"}, "cron": "0 30 2 * * *"}
    named = {"nightly": nightly | {"zone": "UTC"} | more}
    text = {"schema_version": 1, "owner": "team-a", "cluster_zone": "UTC", "schedules": named}
    (folder / "schedules.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(text))))


def test_the_role_for_schedules_is_what_making_and_changing_them_calls_beside(
    server: Api, folder: Path
) -> None:
    schedules(folder)
    call(server, "schedules", "apply", "schedules.yaml")
    schedules(folder, max_concurrency=2)
    call(server, "schedules", "apply", "schedules.yaml")
    extra = taken(server) - granted("trainwright-submit")
    assert extra == granted("trainwright-schedules")


def test_ci_has_no_right_in_kubernetes_itself_and_brings_no_token_along() -> None:
    bodies = [body for path in CI.glob("*.yaml") for body in yaml.safe_load_all(path.read_text())]
    (account,) = (body for body in bodies if body["kind"] == "ServiceAccount")
    assert (account["metadata"]["name"], account["automountServiceAccountToken"]) == ("trainwright-ci", False)
    assert {body["kind"] for body in bodies} == {"Kustomization", "ServiceAccount", "Role", "RoleBinding"}
    for body in bodies:
        if body["kind"] == "RoleBinding":
            assert body["subjects"] == [{"kind": "ServiceAccount", "name": "trainwright-ci"}]


def test_a_call_that_nobody_looked_up_is_found(server: Api) -> None:
    server.calls.append("DELETE /apis/v2beta1/runs/1")
    with pytest.raises(ValueError, match="not enough values"):
        taken(server)
