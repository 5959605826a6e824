"""Runs of this machine: listed, searched, compared, traced."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.steps import fail, gate, say
from trainwright.artifacts import Record
from trainwright.artifacts.record import Environment
from trainwright.documents import digest_text
from trainwright.errors import InputError
from trainwright.local import run_folder
from trainwright.local.run_folder import Output, Request, Task, Tasks
from trainwright.local.run_index import Lineage, RunFilter, RunSummary, read_run, read_runs
from trainwright.local.runner import Outcome

Run = Callable[..., Outcome]
HERE = Environment(name="x", lock_sha256="", library="0", library_sha256="", python="3.11", platform="x")


def made(
    runs: Path, run: str, steps: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]
) -> RunSummary:
    """A finished run with a record per step: digests of what it read and made, from their short names."""
    folder = runs / run
    tasks = []
    for step, (inputs, outputs) in steps.items():
        at = folder / step / "out"
        at.mkdir(parents=True)
        digests = [{name: digest_text(value) for name, value in of.items()} for of in (inputs, outputs)]
        Record(
            step=step, headline="", started="2026-01-01T00:00:00Z", seconds=1, environment=HERE,
            inputs=digests[0], outputs=digests[1],
        ).write(at)  # fmt: skip
        artifacts = {"out": Output(type="system.Artifact", uri=str(at))}
        tasks.append(Task(step=step, state="done", environment="x", verb=step, seconds=1, outputs=artifacts))
    request = Request(
        run=run,
        pipeline="train",
        created=f"2026-01-01T00:00:{len(list(runs.iterdir())):02}+00:00",
        arguments={"training": {"learning_rate": 0.01, "epochs": 3}, "registry": {"model": "m"}},
    )
    request.write(folder)
    Tasks(run=run, state="done", tasks=tuple(tasks)).write(folder)
    return read_run(folder)


def pipeline_of_runs(runs: Path) -> tuple[RunSummary, RunSummary]:
    """Two runs on the same data: each trains a model of its own."""
    ingest = ({"source": "rows"}, {"data": "data"})
    return (
        made(runs, "000001", {"ingest": ingest, "train": ({"data": "data"}, {"model": "first"})}),
        made(runs, "000002", {"ingest": ingest, "train": ({"data": "data"}, {"model": "second"})}),
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def test_finished_run_has_a_summary_that_its_steps_confirm(run: Run) -> None:
    def pipeline() -> None:
        say(text="hello")

    outcome = run(pipeline)
    stored = RunSummary.read(outcome.folder)
    assert (stored.state, stored.run, stored.pipeline) == ("done", outcome.id, outcome.pipeline)
    assert stored == RunSummary.of(Request.read(outcome.folder), Tasks.read(outcome.folder))
    assert stored.seconds == pytest.approx(sum(task.seconds for task in outcome.tasks))


def test_run_records_what_each_step_waits_for(run: Run) -> None:
    def pipeline() -> None:
        first = say(text="hello").set_display_name("first")
        say(text=first.output).set_display_name("second")

    outcome = run(pipeline)
    assert Tasks.read(outcome.folder).steps == {"first": (), "second": ("first",)}


def test_failed_run_tells_its_error_and_a_held_one_the_decision(run: Run, tmp_path: Path) -> None:
    def failing(marks: str) -> None:
        fail(code=10, marks=marks)

    def holding() -> None:
        gate(decision="FAIL")

    failed = run(failing, {"marks": str(tmp_path / "marks")})
    assert read_run(failed.folder).headline == "fail: column dep_hour is missing"
    held = run(holding)
    assert (read_run(held.folder).state, read_run(held.folder).headline[:5]) == ("held", "FAIL ")


def test_run_whose_process_is_gone_is_killed_and_one_that_holds_its_lock_is_running(runs: Path) -> None:
    folder, _ = run_folder.create(runs, "train", {})
    Tasks(run=folder.name, state="running", tasks=()).write(folder)
    assert read_run(folder).state == "killed"
    with run_folder.held(folder):
        assert read_run(folder).state == "running"
    assert read_run(folder).state == "killed"


def test_damaged_runs_are_named_and_the_others_listed(runs: Path) -> None:
    first, second = pipeline_of_runs(runs)
    (runs / "000003").mkdir()
    (runs / "000003" / Request.FILE).write_text("{")
    second.write(runs / second.run)
    (runs / second.run / RunSummary.FILE).write_text('{"schema_version": 1, "run": "000002"}')
    broken, also_broken, found = read_runs(runs)
    assert isinstance(broken, InputError)
    assert "000003" in broken.where
    assert isinstance(also_broken, InputError)
    assert "pipeline: missing" in also_broken.what
    assert found == first
    (runs / second.run / RunSummary.FILE).write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested deeper than"):
        read_run(runs / second.run)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, ["000002", "000001"]),
        ({"pipeline": "other"}, []),
        ({"state": "done"}, ["000002", "000001"]),
        ({"digest": digest_text("first")[:8]}, ["000001"]),
        ({"digest": digest_text("data")[:8]}, ["000002", "000001"]),
        ({"arguments": {"training.learning_rate": 0.01}}, ["000002", "000001"]),
        ({"arguments": {"training.learning_rate": 0.02}}, []),
        ({"arguments": {"training.seed": 0}}, []),
    ],
)
def test_conditions_narrow_the_list(runs: Path, conditions: dict[str, Any], expected: list[str]) -> None:
    pipeline_of_runs(runs)
    wanted = RunFilter(**conditions)
    found = [one for one in read_runs(runs) if isinstance(one, RunSummary)]
    assert [one.run for one in found if wanted.matches(runs, one)] == expected


def test_lineage_goes_from_a_model_to_its_source_and_from_the_source_to_all_models(runs: Path) -> None:
    graph = Lineage(pipeline_of_runs(runs))
    up = [(depth, node.name) for depth, node in graph.walk(graph.find(digest_text("first")), up=True)]
    assert up == [(1, "data"), (2, "source")]
    down = list(graph.walk(graph.find(digest_text("rows")[:10]), up=False))
    assert [(depth, node.name) for depth, node in down] == [(1, "data"), (2, "model"), (2, "model")]
    assert down[0][1].runs == ("000001", "000002")
    assert {node.digest for _, node in down[1:]} == {digest_text("first"), digest_text("second")}


def test_lineage_of_twenty_generations_is_complete(runs: Path) -> None:
    """Each run trains on the predictions of the model before."""
    summaries = [
        made(runs, f"{number:06}", {"train": ({"data": f"p{number}"}, {"predictions": f"p{number + 1}"})})
        for number in range(20)
    ]
    graph = Lineage(summaries)
    assert len(list(graph.walk(digest_text("p20"), up=True))) == 20
    assert len(list(graph.walk(digest_text("p0"), up=False))) == 20


def test_ambiguous_or_unknown_beginning_of_a_digest_is_rejected(runs: Path) -> None:
    graph = Lineage(pipeline_of_runs(runs))
    with pytest.raises(InputError, match="beginning of 4 versions"):
        graph.find("")
    with pytest.raises(InputError, match="no run here read or made 'zz'"):
        graph.find("zz")


def command(runs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("trainwright")), *arguments, "--runs", str(runs)]
    return subprocess.run(
        line, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
    )


def test_commands_print_what_was_found(runs: Path) -> None:
    pipeline_of_runs(runs)
    listed = command(runs, "runs", "list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["run", "000002", "000001"]
    newest = command(runs, "runs", "list", "--limit", "1", "--json")
    assert json.loads(newest.stdout)["run"] == "000002"
    shown = command(runs, "runs", "show", "000001")
    assert f"model        {digest_text('first')}" in shown.stdout.splitlines()
    compared = command(runs, "runs", "diff", "000001", "000002")
    assert compared.stdout.splitlines() == [
        "versions  000001        000002",
        f"  model   {digest_text('first')[:12]}  {digest_text('second')[:12]}",
    ]
    traced = command(runs, "lineage", "000001")
    assert traced.stdout.splitlines()[0] == f"model {digest_text('first')[:12]}  by train in 000001"
    unknown = command(runs, "runs", "show", "000009")
    assert unknown.returncode == InputError.code
    assert "The last ones are 000001, 000002." in unknown.stderr
