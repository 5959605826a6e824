"""Score the evaluation split with the model in production."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged, InputError
from trainwright.experiment import LanguageModel, Registry
from trainwright.report import markdown
from trainwright.serving import load, load_language_model, verified
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import write_losses, write_predictions
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import persist

_HINT = (
    "These are the files of the version in production. Look at the server that hands them out; when it "
    "answers, run this step again: the candidate is kept."
)


def download_model(source: str, digest: str, registry: Registry, folder: Path) -> tuple[Path, Model]:
    """Download a version's files, and check that they are what was registered.

    Args:
        source: Where they are, as the registry has it.
        digest: Digest of the model's manifest.
        registry: MLflow's address, which may hand them out, and how long it is waited for.
        folder: Where they are put.

    Returns:
        Their folder, and the model's manifest.

    Raises:
        DependencyError: They could not be had for ``registry.retry_s``.
        InputError: They are gone, are another model, or were changed.
        PermissionRefused: The store refuses this identity.
    """
    uri = registry.tracking_uri
    place = Path(persist(lambda: _download(source, uri, folder), uri, registry.retry_s, hint=_HINT))
    return place, verified(place, digest)


def _download(source: str, uri: str, folder: Path) -> str:
    from mlflow.artifacts import download_artifacts

    return str(download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=uri))


@dataclass(frozen=True)
class ProductionModelReference:
    """Reference to the registered model that scores the rows.

    Attributes:
        model: Digest of its manifest; empty for none.
        source: Where its files are.
        registry: Where it is registered.
    """

    model: str
    source: str
    registry: Registry


@dataclass(frozen=True)
class ScoreResult:
    """The result of the step.

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
    asked: ProductionModelReference,
    *,
    predictions: Path,
    summary: Path,
) -> ScoreResult:
    """Score the split that is judged with a registered model, if there is one.

    If these rows lack a column that the model reads, the step succeeds without predictions, and the gate,
    which gets the version, holds the candidate.

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
    scored = ScoreResult("", "no model is in production, so none is scored")
    if asked.model:
        with tempfile.TemporaryDirectory() as scratch:
            folder, model = download_model(asked.source, asked.model, asked.registry, Path(scratch))
            scored = _score_split(folder, model, (training_set, snapshot, split), predictions)
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


def _score_split(
    folder: Path, model: Model, rows: tuple[Path, Snapshot, str], predictions: Path
) -> ScoreResult:
    training_set, snapshot, split = rows
    try:
        written = write_model_predictions(folder, model, training_set, snapshot, [split], predictions)
    except (InputError, DataRefused, Diverged) as error:
        return ScoreResult(
            "", f"model {model.digest[:6]} in production cannot score these rows: {error.what}"
        )
    return ScoreResult(written.digest, f"{written.splits[split]:,} rows scored by model {model.digest[:6]}")


def write_model_predictions(
    folder: Path,
    model: Model,
    training_set: Path,
    snapshot: Snapshot,
    splits: list[str],
    predictions: Path,
) -> Snapshot:
    """Write what a model predicts for some splits, in the form in which its training would have.

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
