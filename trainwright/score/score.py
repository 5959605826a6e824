"""Score the evaluation split with the model in production."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged, InputError, ModelRefused
from trainwright.experiment import DataEngine, LanguageModel, Registry
from trainwright.report import markdown
from trainwright.score.pieces import SplitToScore, score_here, score_on_engine
from trainwright.serving import load, load_language_model, verified
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import no_scores, write_losses, write_predictions
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import download_model, persist


@dataclass(frozen=True)
class ProductionModelReference:
    """The digest of the registered model that scores the rows, empty for none, and where its files are."""

    model: str
    source: str
    registry: Registry


@dataclass(frozen=True)
class ScoreResult:
    """The digest of the predictions, empty without any, and the result in one line."""

    predictions_version: str
    headline: str


def score_rows(
    training_set: Path,
    data_version: str,
    split: str,
    production: ProductionModelReference,
    *,
    predictions: Path,
    summary: Path,
    engine: DataEngine | None = None,
    uri: str = "",
) -> ScoreResult:
    """Score the evaluation split with a registered model, if there is one.

    If these rows lack a column that the model reads, the step succeeds without predictions, and the gate,
    which gets the version, holds the candidate.

    Args:
        training_set: Folder of the snapshot that the candidate was trained on.
        data_version: Expected digest of its manifest.
        split: The evaluation split.
        production: The model.
        predictions: Output folder of the predictions; without a manifest if there are none.
        summary: Markdown output.
        engine: Its workers score the pieces of the split; None for this machine.
        uri: The training set as workers on other machines reach it; empty for its path.

    Raises:
        InputError: The snapshot is gone or changed, or the model's files are not what was registered.
        DependencyError: The files could not be downloaded within ``registry.retry_s``, or the engine gave up.
        PermissionRefused: The registry or the store denies access.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(training_set, data_version)
    predictions.mkdir(parents=True, exist_ok=True)
    scored, protections = ScoreResult("", "no model is in production, so none is scored"), list[str]()
    if production.model:
        short = production.model[:6]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            digest = _download_model(production, folder).digest
            rows = SplitToScore(training_set, snapshot, data_version, split)
            if engine and engine.is_beam and snapshot.splits.get(split):
                done = score_on_engine(folder, digest, rows, predictions, engine, uri)
            else:
                done = score_here(folder, digest, rows, predictions)
        protections = list(done.protections)
        error = done.error or no_scores(Snapshot.open(predictions, done.answer["digest"]), [split])
        if isinstance(error, InputError | DataRefused | ModelRefused | Diverged):
            scored = ScoreResult("", f"model {short} in production cannot score these rows: {error.what}")
        elif error:
            raise error
        else:
            scored = ScoreResult(
                done.answer["digest"], f"{done.answer['rows']:,} rows scored by model {short}"
            )
    watch.record(
        predictions,
        "score",
        scored.headline,
        config={"split": split, "source": production.source, "protections": protections},
        inputs={"training_set": data_version} | ({"model": production.model} if production.model else {}),
        outputs={"predictions": scored.predictions_version} if scored.predictions_version else {},
        parents=[training_set],
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    protected = f"\nProtections of the process: {'; '.join(protections)}.\n" if protections else ""
    summary.write_text(f"**{markdown.escape(scored.headline)}**\n{protected}")
    return scored


def _download_model(production: ProductionModelReference, folder: Path) -> Model:
    """Download a version's files into a folder, and verify them."""
    registry = production.registry

    def download() -> None:
        download_model(production.source, production.model, folder, registry.tracking_uri)

    hint = (
        "These are the files of the version in production. Look at the server that hands them out; when it "
        "answers, run this step again: the candidate is kept."
    )
    persist(download, registry.tracking_uri, registry.retry_s, hint=hint)
    return verified(folder, production.model)


def write_model_predictions(
    folder: Path,
    model: Model,
    training_set: Path,
    snapshot: Snapshot,
    splits: list[str],
    predictions: Path,
) -> Snapshot:
    """Write a model's predictions of some splits, in the same form as its training did.

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
    described = snapshot.target
    if (outputs.kind, outputs.names) != (described.kind, described.classes):
        raise InputError(
            f"the model predicts {_in_words(outputs.kind, outputs.names)}, "
            f"the label of these rows is {_in_words(described.kind, described.classes)}"
        )
    return write_predictions(predictions, training_set, snapshot, splits, load(folder, model.digest), outputs)


def _in_words(kind: str, names: Sequence[str]) -> str:
    """Return the kind of a target with the names of its classes, for an error."""
    return f"{kind} ({', '.join(names)})" if names else kind
