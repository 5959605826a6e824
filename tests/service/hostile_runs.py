"""Runs of every state, as a runner leaves them, with texts that a hostile user chose."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import Environment, Record
from trainwright.documents import digest_text
from trainwright.errors import InputError, as_record
from trainwright.local.run_folder import LOG, Output, Request, Task, Tasks
from trainwright.local.run_index import RunSummary

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'>"
STEPS = {"ingest": (), "validate": ("ingest",), "train": ("validate", "ingest"), "evaluate": ("train",)}
REPORT = "<!doctype html><title>r</title><p id=seen>A report</p><script>parent.hacked=top.hacked=1</script>"
ENVIRONMENT = Environment(
    name="tabular", lock_sha256="ab" * 32, library="0.1.0", library_sha256="cd" * 32, python="3.11.7",
    platform="linux-x86_64",
)  # fmt: skip


def write_run(
    runs: Path, run: str, state: str = "done", *, seed: int = 0, auc: float = 0.9, **more: Any
) -> Path:
    """Write a run of four steps; a failed one ended in `train`, a held one in `evaluate`."""
    folder = runs / run
    folder.mkdir(parents=True)
    arguments = {
        "training": {"seed": seed, "note": HOSTILE},
        "registry": {"model": "flight_late"},
        "run": {"owner": HOSTILE},
    }
    request = Request(
        run=run,
        pipeline="train_and_register",
        created="2026-11-27T10:00:00+00:00",
        arguments=arguments,
        **more,
    )
    request.write(folder)
    tasks = list(_tasks(folder, state, seed, auc))
    written = Tasks(run=run, state=state, tasks=tuple(tasks), steps=STEPS)
    written.write(folder)
    if state != "running":
        summary = RunSummary.of(request, written)
        replace(summary, cost=1.0 + seed, currency="EUR", waste={"idle": 0.25}).write(folder)
    return folder


def _tasks(folder: Path, state: str, seed: int, auc: float) -> Iterator[Task]:
    end = {"failed": "train", "running": "train"}.get(state, "")
    made = {"ingest": "data", "validate": "verdict", "train": "model", "evaluate": "verdict"}
    data = {"data": digest_text("data")}
    read = {"ingest": {"source": "5a" * 32}, "validate": data, "train": data}
    read["evaluate"] = {"model": digest_text(f"model {seed}")}
    versions = {"data": digest_text("data"), "model": digest_text(f"model {seed}")}
    for step in STEPS:
        place = folder / step / made[step]
        place.mkdir(parents=True)
        (folder / step / LOG).write_text(f"{step} begins\n{HOSTILE}\n" * 40)
        if step == end:
            if state == "failed":
                error = InputError(f"column {HOSTILE} is missing", where=HOSTILE, hint=f"Add {HOSTILE}.")
                failed = as_record(error, step)
                yield Task(
                    step=step, state="failed", environment="torch", verb=step, attempts=2, error=failed
                )
                yield Task(step="evaluate", state="skipped", environment="tabular")
            return
        Record(
            step=step, headline=f"{step} did {HOSTILE}", started="2026-11-27T10:00:00+00:00", seconds=1.5,
            environment=ENVIRONMENT, decision=_decision(step, state),
            inputs=read[step],
            outputs={made[step]: versions.get(made[step], digest_text(f"{step} {seed}"))},
        ).write(place)  # fmt: skip
        outputs = {made[step]: Output(type="system.Artifact", uri=str(place))}
        if step in {"validate", "evaluate"}:
            (folder / step / "report.html").write_text(REPORT)
            outputs["report"] = Output(type="system.HTML", uri=str(folder / step / "report.html"))
        if step == "evaluate":
            outputs["metrics"] = Output(type="system.Metrics", uri="", metadata={"auc": auc, "rows": 600})
        yield Task(
            step=step, state="done", environment="tabular", seconds=1.5, headline=f"{step} did {HOSTILE}",
            decision=_decision(step, state), verb=step, attempts=1, outputs=outputs,
        )  # fmt: skip


def _decision(step: str, state: str) -> str:
    if step == "validate":
        return "PASS"
    return ("HOLD" if state == "held" else "PASS") if step == "evaluate" else ""
