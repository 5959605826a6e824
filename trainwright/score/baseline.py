"""Predictions of the model in production, on the very rows that the candidate is judged on."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged, InputError
from trainwright.experiment import LanguageModel, Registry
from trainwright.report import markdown
from trainwright.score.production import bring
from trainwright.serving import load, load_language_model
from trainwright.serving.losses import write_losses
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import write_predictions
from trainwright.tracking import Stopwatch


@dataclass(frozen=True)
class Asked:
    """Which model is to score.

    Attributes:
        model: Digest of its manifest; empty for none.
        source: Where its files are.
        registry: Where it is registered.
    """

    model: str
    source: str
    registry: Registry


@dataclass(frozen=True)
class Scored:
    """What the step hands on.

    Attributes:
        predictions_version: Digest of the predictions' manifest; empty where there are none.
        headline: What happened, in one line.
    """

    predictions_version: str
    headline: str


def score_rows(
    training_set: Path,
    data_version: str,
    split: str,
    asked: Asked,
    *,
    predictions: Path,
    summary: Path,
) -> Scored:
    """Score the split that is judged with a registered model, if there is one.

    A model that cannot score these rows, for they lack a column that it reads, is no reason to stop: there
    are then no predictions of it, and the gate, which is told the version, holds the candidate.

    Args:
        training_set: Folder of the snapshot that the candidate was made from.
        data_version: The digest it must have.
        split: The split that is judged.
        asked: The model.
        predictions: Folder for the snapshot of the predictions; has no manifest where there are none.
        summary: Markdown file: what was scored.

    Raises:
        InputError: The snapshot is gone or changed, or the files are not what was registered.
        DependencyError: The files could not be had for ``registry.retry_s``.
        PermissionRefused: The registry refuses this identity.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(training_set, data_version)
    predictions.mkdir(parents=True, exist_ok=True)
    scored = Scored("", "no model is in production, so none is scored")
    if asked.model:
        with tempfile.TemporaryDirectory() as scratch:
            folder, model = bring(asked.source, asked.model, asked.registry, Path(scratch))
            scored = _score(folder, model, (training_set, snapshot, split), predictions)
    watch.record(
        predictions,
        "score",
        scored.headline,
        config={"split": split, "source": asked.source},
        inputs={"training_set": data_version} | ({"model": asked.model} if asked.model else {}),
        outputs={"predictions": scored.predictions_version} if scored.predictions_version else {},
        parents=[training_set],
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"**{markdown.escape(scored.headline)}**\n")
    return scored


def _score(folder: Path, model: Model, rows: tuple[Path, Snapshot, str], predictions: Path) -> Scored:
    training_set, snapshot, split = rows
    try:
        written = write(folder, model, training_set, snapshot, [split], predictions)
    except (InputError, DataRefused, Diverged) as error:
        return Scored("", f"model {model.digest[:6]} in production cannot score these rows: {error.what}")
    return Scored(written.digest, f"{written.splits[split]:,} rows scored by model {model.digest[:6]}")


def write(
    folder: Path,
    model: Model,
    training_set: Path,
    snapshot: Snapshot,
    splits: list[str],
    predictions: Path,
) -> Snapshot:
    """Write what a model predicts for some splits, in the form in which its training would have.

    Args:
        folder: The model's folder, checked.
        model: Its manifest.
        training_set: Folder of the snapshot that is scored.
        snapshot: Its manifest.
        splits: Names of the splits.
        predictions: Folder for the new snapshot.

    Raises:
        InputError: The model does not read these rows.
        DataRefused: No row has a label.
        Diverged: A score is not finite.
    """
    if model.kind == "lm":
        network = LanguageModel.model_validate(model.config["network"])
        predictor = load_language_model(folder, model.digest)
        return write_losses(predictions, training_set, snapshot, splits, network, predictor)
    outputs = Outputs.read(folder)
    label = snapshot.roles.get("label")
    if outputs.label != label:
        raise InputError(f"the model predicts {outputs.label!r}, the label of these rows is {label!r}")
    return write_predictions(predictions, training_set, snapshot, splits, load(folder, model.digest), outputs)
