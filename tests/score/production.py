"""Score with a model whose files a registry has."""

from pathlib import Path
from typing import Any

from trainwright.artifacts import Model, Snapshot
from trainwright.experiment import Registry
from trainwright.score.score import ProductionModelReference, ScoreResult, score_rows


def score(
    training_set: Path, folder: Path, model: Path | None, digest: str = "", **engine: Any
) -> ScoreResult:
    """Score the evaluation split; without a model, none is in production."""
    registry = Registry(model="flights", tracking_uri=f"sqlite:///{folder}/mlflow.db", retry_s=0)
    asked = ProductionModelReference("", "", registry)
    if model:
        asked = ProductionModelReference(digest or Model.read(model).digest, model.as_uri(), registry)
    places = {"predictions": folder / "predictions", "summary": folder / "summary.md"}
    return score_rows(training_set, Snapshot.read(training_set).digest, "evaluate", asked, **places, **engine)
