"""The page of a run on Kubeflow Pipelines 2.17, from workflows that a real backend left (``recorded/``).

The recordings are cut: the artifacts that a driver names to its executor are filled in here, in the form of
KFP's driver (``initPodSpecPatch`` in backend/src/v2/driver/driver.go), as files of a folder.
"""

import base64
import gzip
import html
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.summarize.test_page import Cells, chain, record
from trainwright.artifacts import Record
from trainwright.errors import MARK, Diverged, as_record
from trainwright.summarize import workflow
from trainwright.summarize.run import FinalStatus, Run, outcome, read_run
from trainwright.summarize.summarize import draw_summary, summarize
from trainwright.summarize.workflow import WorkflowReader, WorkflowTask, in_cluster, tasks_of

RECORDED = Path(__file__).parent / "recorded"
RUN, EARLIER = "1c041696-9170-4167-b06a-0d65bb373b45", "b1cb3cad-9170-4167-b06a-0d65bb373b45"
READS = {
    "validate": ["ingest"],
    "join": ["ingest", "validate"],
    "train": ["join"],
    "evaluate": ["train"],
    "register": ["train", "validate", "evaluate"],
}


def recorded(name: str) -> dict[str, Any]:
    return dict(json.loads((RECORDED / f"{name}.json").read_text()))


def folder(base: Path, run: str, task: str) -> Path:
    return base / run / task / "0b1e-execution"


def completed(document: dict[str, Any], base: Path) -> dict[str, Any]:
    """Fill in what each driver named to its executor: inputs of this run or an earlier one, and outputs."""
    states = {task.name: task.state for task in tasks_of(document)}
    for node in document["status"]["nodes"].values():
        for parameter in (node.get("outputs") or {}).get("parameters", []):
            if parameter["name"] == "pod-spec-patch" and parameter["value"]:
                task = node["name"].rpartition(".")[2].removesuffix("-driver")
                parameter["value"] = patch(base, task, states)
    return document


def patch(base: Path, task: str, states: Mapping[str, str]) -> str:
    def uri(made: str, artifact: str) -> dict[str, Any]:
        run = EARLIER if states[made] == "cached" else RUN
        return {"artifacts": [{"name": "12", "uri": str(folder(base, run, made) / artifact)}]}

    given = {
        "inputs": {"artifacts": {name: uri(name, "main") for name in READS.get(task, [])}},
        "outputs": {"artifacts": {"main": uri(task, "main"), "report": uri(task, "report")}},
    }
    command = ["/kfp-launcher/launch", "--executor_input", json.dumps(given), "--component_spec", "{}"]
    return json.dumps({"containers": [{"name": "main", "command": command}]})


@contextmanager
def api(answers: list[tuple[int, object]]) -> Iterator[tuple[WorkflowReader, list[tuple[str, str]]]]:
    """Serve the Kubernetes API: the answers in turn, the last one for ever."""
    seen: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            status, body = answers[min(len(seen), len(answers)) - 1]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield WorkflowReader(f"http://127.0.0.1:{server.server_port}", "team-a", "t0ken"), seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def read(base: Path, document: dict[str, Any], state: str) -> Run:
    ending = FinalStatus(state, document["metadata"]["name"], "exit-handler-1")
    with api([(200, completed(document, base))]) as (cluster, seen):
        run = read_run(str(base / RUN), ending, cluster)
    path = f"/apis/argoproj.io/v1alpha1/namespaces/team-a/workflows/{document['metadata']['name']}"
    assert seen == [(path, "Bearer t0ken")]
    return run


def put(base: Path, run: str, *records: Record) -> None:
    for made in records:
        made.write(folder(base, run, made.step) / "main" / Record.FILE)


def look(base: Path, name: str) -> None:
    """The records of what is never served from the cache."""
    for task in ("resolve", "resolve-2", "resolve-3"):
        record("resolve", 7).write(folder(base, RUN, task) / "main" / Record.FILE)
    put(base, RUN, record("locate", 8))


def test_steps_from_the_cache_are_listed_with_the_run_that_made_them(tmp_path: Path) -> None:
    records = chain()
    put(tmp_path, EARLIER, *(records[step] for step in ("ingest", "validate", "join", "train", "evaluate")))
    put(tmp_path, RUN, records["register"])
    look(tmp_path, "success")
    run = read(tmp_path, recorded("success-all-cached"), "COMPLETE")
    steps = {step.name: step for step in run.steps}
    assert {"resolve", "resolve-features", "resolve-baseline", "register"} <= {
        name for name, step in steps.items() if step.state == "done"
    }
    assert {name for name, step in steps.items() if step.state == "cached"} == {
        *("ingest", "validate", "join", "train", "score", "evaluate", "probe")
    }
    assert steps["train"].record == records["train"]
    assert steps["train"].origin == EARLIER
    assert steps["ingest"].record == records["ingest"], "read from what was made of it"
    assert steps["score"].record is None
    assert "summarize" not in steps
    assert run.problems == []
    assert outcome(run) == "Registered: register found <what> it | looked for"
    assert "reused from run b1cb3cad" in draw_summary(run)
    assert [entry.step for entry in run.lineage][-1] == "ingest"


def test_a_held_run_whose_gate_came_from_this_run_says_why(tmp_path: Path) -> None:
    ingest = record("ingest", 0)
    put(tmp_path, EARLIER, ingest)
    put(tmp_path, RUN, record("validate", 9, "FAIL", (ingest,)))
    look(tmp_path, "held")
    run = read(tmp_path, recorded("held-by-gate"), "RUNNING")
    assert outcome(run) == "Refused by validate: validate found <what> it | looked for"
    assert {step.name: step.origin for step in run.steps if step.state == "cached"} == {"ingest": EARLIER}


def test_a_failed_step_is_named_with_the_error_of_its_log(tmp_path: Path) -> None:
    records = chain()
    put(tmp_path, EARLIER, records["join"])
    look(tmp_path, "failed")
    error = as_record(Diverged("the loss is nan", where="step 7", hint="Wait."), "train")
    log = folder(tmp_path, RUN, "train") / "executor-logs-1"
    log.parent.mkdir(parents=True)
    log.write_text(f"epoch 1\n{MARK}{json.dumps(error)}\nfailed to execute component: exit status 30\n")
    (log.parent / "executor-logs-0").write_text("of the attempt before\n")
    run = read(tmp_path, recorded("training-diverged-exit-30"), "FAILED")
    failed = next(step for step in run.steps if step.state == "failed")
    assert failed.name == "train"
    assert outcome(run) == "Failed in train: the loss is nan"
    text = draw_summary(run)
    assert "step 7. Wait." in text
    assert str(log).replace("_", r"\_") in text
    assert {step.name for step in run.steps if step.state == "skipped"} == {"evaluate"}
    assert {step.name for step in run.steps if step.state == "cached"} >= {"ingest", "validate", "join"}


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("x\nF1 failed to execute component: failed to download input artifact\n", "failed to download"),
        (None, "main: Error (exit code 1)"),
    ],
)
def test_a_step_that_wrote_no_error_is_told_with_what_kubeflow_says(
    tmp_path: Path, log: str | None, told: str
) -> None:
    look(tmp_path, "failed")
    if log is not None:
        path = folder(tmp_path, RUN, "train") / "executor-logs-0"
        path.parent.mkdir(parents=True)
        path.write_text(log)
    run = read(tmp_path, recorded("training-diverged-exit-30"), "FAILED")
    assert told in outcome(run)
    assert "trainwright status" in draw_summary(run)


def test_a_large_workflow_whose_nodes_argo_has_compressed_is_read(tmp_path: Path) -> None:
    plain = completed(recorded("held-by-gate"), tmp_path)
    nodes = json.dumps(plain["status"]["nodes"]).encode()
    packed = {"status": {"compressedNodes": base64.b64encode(gzip.compress(nodes)).decode()}}
    assert tasks_of(packed) == tasks_of(plain) != []


def test_without_the_right_to_read_the_workflow_the_page_says_so_and_shows_this_runs_records(
    tmp_path: Path,
) -> None:
    put(tmp_path, RUN, chain()["ingest"])
    ending = FinalStatus("COMPLETE", "train-and-register-x", "exit-handler-1")
    page = tmp_path / "page.html"
    with api([(403, {})]) as (cluster, seen):
        summarize(str(tmp_path / RUN), ending, page, tmp_path / "s.md", tmp_path / "run", cluster)
    assert len(seen) == 1, "a refusal stays one"
    text = html.unescape(page.read_text())
    assert "may not read the run's workflow: HTTP 403" in text
    assert "workflows.argoproj.io" in text
    assert any(row[0] == "ingest" for row in Cells(text).rows)


def test_a_transient_failure_of_the_api_is_retried(tmp_path: Path) -> None:
    document = completed(recorded("held-by-gate"), tmp_path)
    with api([(500, {}), (429, {}), (200, document)]) as (cluster, seen):
        found = workflow.read_workflow(cluster, "x").tasks
    assert len(seen) == 3
    assert WorkflowTask(name="locate", shown="locate", state="done").name in {task.name for task in found}


def test_a_pods_own_account_gives_the_api_and_without_one_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert in_cluster(tmp_path) == WorkflowReader("https://[fd00::1]:443", "", "", str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "namespace").write_text("team-a")
    found = in_cluster(tmp_path)
    assert found == WorkflowReader("https://[fd00::1]:443", "team-a", "t", str(tmp_path / "ca.crt"))
    assert "'t'" not in repr(found)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert in_cluster(tmp_path) is None, "on a laptop"


def test_a_pod_without_a_token_says_so_and_shows_this_runs_records(tmp_path: Path) -> None:
    put(tmp_path, RUN, chain()["ingest"])
    ending = FinalStatus("COMPLETE", "train-and-register-x", "exit-handler-1")
    run = read_run(str(tmp_path / RUN), ending, WorkflowReader("https://127.0.0.1:1", "", ""))
    assert "this pod has no token of a service account" in run.problems[0]
    assert "automountServiceAccountToken" in run.problems[0]
    assert [step.name for step in run.steps] == ["ingest"]


@pytest.mark.parametrize(
    "workflow",
    [
        {"status": {}},
        {"status": {"compressedNodes": "no base64"}},
        {"status": {"compressedNodes": base64.b64encode(b"no gzip").decode()}},
        {"status": {"compressedNodes": base64.b64encode(gzip.compress(b'{"a": {}}')[:-9]).decode()}},
        {"status": {"compressedNodes": base64.b64encode(gzip.compress(b"no json")).decode()}},
        {"status": {"nodes": {"a": {"no": "name"}}}},
        {"status": "text"},
    ],
)
def test_a_workflow_without_readable_tasks_is_a_problem_and_this_runs_records_are_shown(
    tmp_path: Path, workflow: dict[str, Any]
) -> None:
    put(tmp_path, RUN, chain()["ingest"])
    with api([(200, workflow)]) as (cluster, _):
        run = read_run(str(tmp_path / RUN), FinalStatus("COMPLETE", "train-and-register-x"), cluster)
    assert "the run's tasks: the run's workflow" in run.problems[0]
    assert [step.name for step in run.steps] == ["ingest"]


def test_cached_tasks_of_one_verb_do_not_show_a_record_that_names_the_verb_alone(tmp_path: Path) -> None:
    document = recorded("success-all-cached")
    nodes = document["status"]["nodes"]
    [ingest] = [node for node in nodes.values() if node["name"].endswith(".ingest-driver")]
    nodes["second"] = ingest | {"name": ingest["name"].replace(".ingest-driver", ".ingest-2-driver")}
    put(tmp_path, RUN, chain()["register"])
    look(tmp_path, "success")
    run = read(tmp_path, document, "COMPLETE")
    shown = [step.record for step in run.steps if step.name.startswith("ingest")]
    assert shown == [None, None], "the record is of one of them, and nothing says of which"
    assert next(step.record for step in run.steps if step.name == "train") == chain()["train"]


def test_a_store_that_does_not_answer_is_asked_once_and_the_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for name, value in {"ENDPOINT": f"http://127.0.0.1:{port}", "ACCESS_KEY": "a", "SECRET_KEY": "b"}.items():
        monkeypatch.setenv(f"MINIO_{name}", value)
    monkeypatch.setattr("trainwright.summarize.run._PATIENCE_S", 1.0)
    document = completed(recorded("training-diverged-exit-30"), Path("/mlpipeline/v2/artifacts"))
    text = json.dumps(document).replace("/mlpipeline/v2", "minio://mlpipeline/v2")
    page, begun = tmp_path / "page.html", time.monotonic()
    with api([(200, json.loads(text))]) as (cluster, _):
        ending = FinalStatus("FAILED", "train-and-register-x", "exit-handler-1")
        root = f"minio://mlpipeline/v2/artifacts/{RUN}"
        summarize(root, ending, page, tmp_path / "s.md", tmp_path / "run", cluster)
    assert time.monotonic() - begun < 20, "one call waits, not one call a task"
    shown = html.unescape(page.read_text())
    assert shown.count("The store was not asked again") == 1
    assert {"train", "resolve-features"} <= {
        row[0].removeprefix("flagged:") for row in Cells(shown).rows if row
    }
