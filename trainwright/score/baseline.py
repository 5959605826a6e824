"""Predictions of the model in production, on the very rows that the candidate is judged on."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged, InputError
from trainwright.experiment import Evaluation, LanguageModel, Registry
from trainwright.report import markdown
from trainwright.score.production import Production, bring, find
from trainwright.serving import load, load_language_model
from trainwright.serving.losses import write_losses
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import write_predictions
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import open_client, persist


@dataclass(frozen=True)
class Scored:
    """What the step hands on.

    Attributes:
        predictions_version: Digest of the predictions' manifest; empty where there are none.
        registered: The version that is in production; empty where there is none.
        headline: What happened, in one line.
    """

    predictions_version: str
    registered: str
    headline: str


def score_production(
    training_set: Path,
    data_version: str,
    evaluation: Evaluation,
    registry: Registry,
    *,
    predictions: Path,
    summary: Path,
) -> Scored:
    """Score the split that is judged with the model in production, if there is one.

    A model that cannot score these rows, for they lack a column that it reads, is no reason to stop: there
    are then no predictions of it, and the gate is told of which version they are missing.

    Args:
        training_set: Folder of the snapshot that the candidate was made from.
        data_version: The digest it must have.
        evaluation: Names the split.
        registry: The registered model, and where.
        predictions: Folder for the snapshot of the predictions; stays empty where there are none.
        summary: Markdown file: what was scored.

    Raises:
        InputError: The snapshot is gone or changed, or the files in the registry are not what was registered.
        DependencyError: The registry was away for ``registry.retry_s``.
        PermissionRefused: It refuses this identity.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(training_set, data_version)
    uri, patience = registry.tracking_uri, registry.retry_s
    client = persist(lambda: open_client(uri), uri, patience)
    found = persist(lambda: find(client, registry.model), uri, patience)
    predictions.mkdir(parents=True, exist_ok=True)
    scored = Scored("", "", f"no version of {registry.model} is in production")
    if found:
        with tempfile.TemporaryDirectory() as scratch:
            folder, model = persist(lambda: bring(found, uri, Path(scratch)), uri, patience)
            scored = _score(found, folder, model, (training_set, snapshot, evaluation.split), predictions)
    watch.record(
        predictions,
        "score",
        scored.headline,
        config={"registry": registry.model_dump(mode="json"), "split": evaluation.split},
        inputs={"training_set": data_version},
        outputs={"predictions": scored.predictions_version},
        parents=[training_set],
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"**{markdown.escape(scored.headline)}**\n")
    return scored


def _score(
    found: Production, folder: Path, model: Model, rows: tuple[Path, Snapshot, str], predictions: Path
) -> Scored:
    training_set, snapshot, split = rows
    try:
        written = write(folder, model, training_set, snapshot, [split], predictions)
    except (InputError, DataRefused, Diverged) as error:
        headline = f"version {found.version} in production cannot score these rows: {error.what}"
        return Scored("", found.version, headline)
    counted = written.splits[split]
    return Scored(written.digest, found.version, f"{counted:,} rows scored by version {found.version}")


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
