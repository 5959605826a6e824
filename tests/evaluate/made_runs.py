"""Folders of runs as ``evaluate`` leaves them, with figures that a test chooses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.artifacts import Environment, Record
from trainwright.evaluate.findings import MeasuredMetrics, MetricValue
from trainwright.experiment.evaluation import HIGHER, LOWER
from trainwright.verdicts import Verdict

HERE = Environment(
    name="torch",
    lock_sha256="a" * 64,
    library="0.1.0",
    library_sha256="b" * 64,
    python="3.11",
    platform="linux",
)
TRAINING = {"epochs": 4, "learning_rate": 0.002, "objective": {"focal": 0.0}}


def made_run(
    folder: Path,
    figures: Mapping[str, float],
    *,
    seed: int = 0,
    rows_digest: str = "d" * 64,
    training_set: str = "e" * 64,
    environment: Environment = HERE,
    started: str = "2026-01-01T00:00:00+00:00",
    join: Mapping[str, Any] | None = None,
    network: Mapping[str, Any] | None = None,
    **training: Any,
) -> Path:
    """Write the verdict, the record and the figures of a run."""

    def record(step: str, config: Mapping[str, Any], **more: Any) -> Record:
        return Record(
            step=step,
            headline="",
            started=started,
            seconds=1,
            environment=environment,
            config=dict(config),
            **more,
        )

    place = folder / "evaluate" / "verdict"
    place.mkdir(parents=True)
    predictions = f"{abs(hash((seed, folder.name))):064x}"
    joined = record("join", join or {}, outputs={"training_set": training_set})
    asked = {
        "network": dict(network or {"kind": "mlp"}),
        "training": {**TRAINING, **training, "seed": seed},
        "processes": 2,
    }
    trained = record("train", asked, inputs={"training_set": training_set}, parents=(joined,))
    record("evaluate", {"split": "evaluate", "threshold": 0.5, "min_auc": 0.6}, parents=(trained,)).write(
        place
    )
    MeasuredMetrics(
        predictions=predictions,
        rows_digest=rows_digest,
        rows=1_000,
        split="evaluate",
        kind="binary",
        label="late",
        measures=tuple(
            MetricValue(name=name, value=value, better=LOWER if "loss" in name else HIGHER)
            for name, value in figures.items()
        ),
    ).write(place)
    judged = {"predictions": predictions, "predictions.training_set": training_set}
    Verdict(decision="PASS", rules=(), judged=judged).write(place)
    return folder
