"""OpenLineage events of a run, to a file and to a real server, read back with the client's own classes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState

from tests.summarize.receivers import webhook
from tests.summarize.test_alerts import DONE, FAILED, end, failed_run, identity, request, trusted  # noqa: F401
from tests.summarize.test_page import put, record, tasks
from trainwright.artifacts import Column, Record, Snapshot
from trainwright.documents import digest_text

MANIFEST = Snapshot(
    files=(), columns=(Column(name="delay", type="double"), Column(name="origin", type="string"))
)
SOURCE, SET, MODEL = digest_text("source"), digest_text("set"), digest_text("model")
JOB = "train_and_register.flight-delay"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def lineage() -> dict[str, Record]:
    """The records of a run that trains on a snapshot of a local file, and registers the model."""
    steps = {
        "resolve": ({}, {"source": SOURCE}, {"source": "/data/flights.csv"}),
        "ingest": ({"source": SOURCE, "file /data/flights.csv": "md5:ab"}, {"data": MANIFEST.digest}, {}),
        "join": ({"entities": MANIFEST.digest, "verdict": digest_text("v")}, {"training_set": SET}, {}),
        "train": ({"training_set": SET}, {"model": MODEL}, {}),
        "register": ({"model": MODEL}, {"registration": digest_text("r")}, {}),
    }
    return {
        step: replace(record(step, minute), inputs=inputs, outputs=outputs, config=config)
        for minute, (step, (inputs, outputs, config)) in enumerate(steps.items())
    }


def done_run(root: Path) -> Path:
    put(root, lineage())
    MANIFEST.write(root / "ingest" / "snapshot" / Snapshot.FILE)
    tasks(root, lineage(), **dict.fromkeys(lineage(), "done"))
    request(root, {"model_name": "flight-delay", "commit": COMMIT})
    return root


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(document: dict[str, Any]) -> None:
    """Build the event with the client's classes, which check ids, times and the names of fields."""
    plain = {name: value for name, value in document.items() if name not in {"schemaURL", "eventType"}}
    inputs = [InputDataset(**one) for one in plain.pop("inputs")]
    outputs = [OutputDataset(**one) for one in plain.pop("outputs")]
    run, job = Run(**plain.pop("run")), Job(**plain.pop("job"))
    RunEvent(
        **plain, eventType=RunState(document["eventType"]), run=run, job=job, inputs=inputs, outputs=outputs
    )


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in datasets]


def test_finished_run_has_a_job_for_the_pipeline_and_one_for_each_step(tmp_path: Path) -> None:
    target = tmp_path / "events.jsonl"
    end(done_run(tmp_path / "0192f3"), DONE, openlineage=str(target), owner="team a")
    events = read(target)
    for event in events:
        check(event)
    steps = [f"{JOB}.{step}" for step in lineage()]
    pairs = [(step, kind) for step in steps for kind in ("START", "COMPLETE")]
    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        (JOB, "START"),
        *pairs,
        (JOB, "COMPLETE"),
    ]
    first, last = events[0], events[-1]
    assert {event["run"]["runId"] for event in (first, last)} == {first["run"]["runId"]}
    assert (first["eventTime"], last["eventTime"]) == (
        "2026-11-20T10:00:00.000+00:00",
        "2026-11-20T10:04:30.000+00:00",
    )
    parent = events[1]["run"]["facets"]["parent"]
    assert parent["run"] == {"facets": {}, "runId": first["run"]["runId"]}
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("trainwright", JOB)
    assert first["job"]["facets"]["ownership"]["owners"] == [{"name": "team a"}]
    assert first["job"]["facets"]["jobType"]["jobType"] == "PIPELINE"
    source = events[3]["job"]["facets"]["sourceCodeLocation"]
    assert (source["type"], source["version"]) == ("git", COMMIT)
    assert first["run"]["facets"]["nominalTime"]["nominalStartTime"] == "2026-11-27T09:00:00Z"


def test_outputs_of_a_step_are_the_inputs_of_the_next_with_version_and_columns(tmp_path: Path) -> None:
    target = tmp_path / "events.jsonl"
    end(done_run(tmp_path / "0192f3"), DONE, openlineage=str(target))
    ended = {event["job"]["name"].rpartition(".")[2]: event for event in read(target)}
    assert names(ended["ingest"]["inputs"]) == [("file", "/data/flights.csv")]
    assert names(ended["resolve"]["outputs"]) == names(ended["ingest"]["inputs"])
    for maker, user in (("ingest", "join"), ("join", "train"), ("train", "register")):
        assert names(ended[maker]["outputs"]) == names(ended[user]["inputs"])
    [snapshot] = ended["join"]["inputs"]
    assert (snapshot["namespace"], snapshot["name"]) == ("trainwright", f"{JOB}.ingest.data")
    assert snapshot["facets"]["version"]["datasetVersion"] == MANIFEST.digest
    assert [(one["name"], one["type"]) for one in snapshot["facets"]["schema"]["fields"]] == [
        ("delay", "double"),
        ("origin", "string"),
    ]


def test_sending_an_end_again_repeats_the_same_events(tmp_path: Path) -> None:
    target = tmp_path / "events.jsonl"
    root = done_run(tmp_path / "0192f3")
    end(root, DONE, openlineage=str(target))
    end(root, DONE, openlineage=str(target))
    events = read(target)
    assert events[: len(events) // 2] == events[len(events) // 2 :]


def test_failed_step_and_run_have_the_error(tmp_path: Path) -> None:
    target = tmp_path / "events.jsonl"
    end(
        failed_run(tmp_path / "0192f3", {"what": "cannot open s3://u:hunter2@b/x", "hint": "Look."}),
        FAILED,
        openlineage=str(target),
    )
    events = read(target)
    failed = [event for event in events if event["eventType"] == "FAIL"]
    assert [event["job"]["name"] for event in failed] == ["train_and_register.train", "train_and_register"]
    for event in failed:
        check(event)
        facet = event["run"]["facets"]["errorMessage"]
        assert (facet["message"], facet["programmingLanguage"]) == (
            "cannot open s3://***@b/x. Look.",
            "PYTHON",
        )


def test_server_gets_each_event_with_the_token_and_the_time_of_the_schedule(
    tmp_path: Path,
    trusted: tuple[Path, Path],  # noqa: F811
) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    root = done_run(tmp_path / "0192f3")
    with webhook(trusted, [(500, {}), (201, {})]) as server:
        url = f"{server.url}/api/v1/lineage"
        text = end(root, DONE, openlineage=url, openlineage_token_file=str(tmp_path / "token"))
    assert "not sent" not in text
    assert {*server.paths} == {"/api/v1/lineage"}
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer t0ken"}
    assert server.documents[0] == server.documents[1]  # the first one was answered with 500
    for event in server.documents:
        check(event)
    assert [event["eventType"] for event in server.documents[1:]] == [
        "START",
        *["START", "COMPLETE"] * 5,
        "COMPLETE",
    ]


def test_server_that_rejects_an_event_is_noted_with_the_count(
    tmp_path: Path,
    trusted: tuple[Path, Path],  # noqa: F811
) -> None:
    root = done_run(tmp_path / "0192f3")
    with webhook(trusted, [(201, {}), (201, {}), (422, {})]) as server:
        text = end(root, DONE, openlineage=server.url)
    assert "OpenLineage events: 2 of 12 events were sent: HTTP 422" in text


def test_file_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    text = end(done_run(tmp_path / "0192f3"), DONE, openlineage=str(tmp_path / "no" / "folder"))
    assert "OpenLineage events: FileNotFoundError" in text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("gs://bucket/day=1/*.parquet", ("gs://bucket", "day=1/*.parquet")),
        ("minio://bucket/a b", ("s3://bucket", "a b")),
        ("https://data.example/x.csv?sig=abc", ("https://data.example", "x.csv?sig=***")),
        ("postgresql://anna@db:5432/flights", ("postgres://db:5432", "flights")),
    ],
)
def test_source_is_named_by_its_uri_without_secrets(
    tmp_path: Path, source: str, expected: tuple[str, str]
) -> None:
    resolved = replace(lineage()["resolve"], config={"source": source})
    root = put(tmp_path / "0192f3", {"resolve": resolved})
    tasks(root, {"resolve": resolved}, resolve="done")
    request(root)
    end(root, DONE, openlineage=str(tmp_path / "events.jsonl"))
    assert names(read(tmp_path / "events.jsonl")[2]["outputs"]) == [expected]
