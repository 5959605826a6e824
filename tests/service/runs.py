"""Folders of runs, as the local runner leaves them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.registry import steps
from trainwright.artifacts import Record
from trainwright.local.run_folder import Output, Request, Task, Tasks
from trainwright.local.run_index import read_run


def write_run(runs: Path, name: str, arguments: Mapping[str, Any], **evidence: Any) -> steps.Run:
    """Write a finished run: its evidence, and the documents of the runner."""
    folder = runs / name
    made = steps.Run(folder / "evidence", **evidence)
    places = {
        "ingest": {"snapshot": "ingested"},
        "join": {"training_set": "joined", "verdict": "data_verdict"},
        "train": {"model": "model"},
        "evaluate": {"verdict": "model_verdict"},
        "smoke_test": {"trial": "trial"},
    }
    for record, place in ((made.ingested, "ingested"), (made.joined, "joined")):
        record.write(folder / "evidence" / place / Record.FILE)
    tasks = [
        Task(
            step=step.replace("_", "-"),
            state="done",
            environment="tabular",
            verb=step,
            seconds=1.5,
            outputs={
                output: Output(type="system.Artifact", uri=str(folder / "evidence" / place))
                for output, place in outputs.items()
            },
            parameters={"model_version": made.model.digest} if step == "train" else {},
            decision=made.model_decision if step == "evaluate" else "",
        )
        for step, outputs in places.items()
    ]
    created = f"2026-01-01T00:00:{int(name, 36) % 60:02}+00:00"
    Request(run=name, pipeline="train_and_register", created=created, arguments=dict(arguments)).write(folder)
    Tasks(run=name, state="done", tasks=tuple(tasks)).write(folder)
    read_run(folder).write(folder)
    return made
