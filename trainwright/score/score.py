"""Score the evaluation split with the model in production, in processes without rights or on an engine."""

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from trainwright import sandbox, storage, tables
from trainwright.artifacts import Model, Snapshot, SnapshotFile, SourceFile
from trainwright.engine import map_pieces, reachable, require_reachable
from trainwright.errors import DataRefused, Diverged, InputError, ModelRefused, TrainwrightError
from trainwright.experiment import DataEngine, LanguageModel, Registry
from trainwright.report import markdown
from trainwright.sandbox import SandboxResult
from trainwright.serving import load, load_language_model, verified
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import PIECE_ROWS, no_scores, write_losses, write_predictions
from trainwright.tables.workers import TaskFailure
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import download_model, persist

_TIME_LIMIT_S = 24 * 3600.0
"""Limit for scoring one split; a model whose operators have no loops comes to an end long before."""


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


@dataclass(frozen=True)
class SplitToScore:
    """A split of a training set, with its data version; on a worker, the manifest lists no files."""

    folder: Path
    snapshot: Snapshot
    version: str
    name: str

    @property
    def pieces(self) -> list[tables.Piece]:
        """The pieces whose predictions make up a file each."""
        return tables.pieces(self.folder, self.snapshot, [self.name], PIECE_ROWS)

    def copy(self, pieces: Sequence[tables.Piece], folder: Path) -> Snapshot:
        """Copy the rows of some pieces, each into files of its own."""
        with tables.SnapshotWriter(folder, [self.name]) as writer:
            for piece in pieces:
                for batch in tables.read_piece(self.folder, piece):
                    writer.append(self.name, batch)
                writer.end_file(self.name)
            parents, target = {"training_set": self.version}, self.snapshot.target
            return writer.commit(parents=parents, roles=self.snapshot.roles, target=target)


def score_here(model: Path, digest: str, split: SplitToScore, predictions: Path) -> SandboxResult:
    """Score a split with a model in one process; rows that it could not read are copied first."""
    if not any(entry.in_place for entry in split.snapshot.files if entry.split == split.name):
        return _run(model, digest, split.folder, split.version, split.name, predictions)
    with TemporaryDirectory(prefix="trainwright-score-") as scratch:
        copied = split.copy(split.pieces, Path(scratch))
        return _run(model, digest, Path(scratch), copied.digest, split.name, predictions)


def _run(
    model: Path, digest: str, rows: Path, version: str, split: str, predictions: Path, threads: int = 0
) -> SandboxResult:
    predictions.mkdir(parents=True, exist_ok=True)
    limits = sandbox.model_limits(model, rows, write=[predictions], seconds=_TIME_LIMIT_S)
    model, rows, predictions = model.resolve(), rows.resolve(), predictions.resolve()
    inputs = str(model), digest, str(rows), version, split, str(predictions), str(threads)
    return sandbox.run("trainwright.score", inputs, limits)


@dataclass(frozen=True)
class PieceJob:
    """The input of every worker, sent once.

    Attributes:
        prefix: Names of the files that workers leave in the engine's store begin with it.
        model: Files of the model there, by their path in its folder.
        threads: Threads of this step's torch: with others, the last bit of a score may differ.
    """

    prefix: str
    model: dict[str, SourceFile]
    digest: str
    split: SplitToScore
    threads: int


@dataclass(frozen=True)
class ScoredPiece:
    """The manifest of a piece's predictions and its files in the store, or the error of the model."""

    protections: tuple[str, ...]
    outcome: Snapshot | TaskFailure
    files: tuple[SourceFile, ...] = ()


def score_on_engine(
    model: Path, digest: str, split: SplitToScore, predictions: Path, engine: DataEngine, uri: str
) -> SandboxResult:
    """Score the pieces of a split on the workers of an engine; the bytes are those of :func:`score_here`.

    ``uri`` is the training set as workers on other machines reach it; empty for its path.
    """
    require_reachable(() if engine.store else ["the predictions"], engine, "engine.store")
    import torch

    pieces = reachable(split.pieces, (uri if engine.is_remote else "") or str(split.folder.absolute()))
    with TemporaryDirectory(prefix="trainwright-score-") as scratch:
        store = engine.store or scratch
        prefix = storage.join(store, secrets.token_hex(8))
        try:
            names = (Model.FILE, *(entry.path for entry in Model.read(model).files))
            sent = {name: storage.publish(model / name, f"{prefix}-{n}") for n, name in enumerate(names)}
            bare = replace(split, snapshot=replace(split.snapshot, files=()))
            job = PieceJob(prefix, sent, digest, bare, torch.get_num_threads())
            parts = list(map_pieces(partial(score_piece, job), pieces, engine, "score", store=store))
            return _gathered(parts, split.name, predictions)
        finally:
            with suppress(TrainwrightError):  # the first failure is the one to report
                storage.remove(file.uri for file in storage.list_files(f"{prefix}-*"))


def score_piece(job: PieceJob, piece: tables.Piece) -> ScoredPiece:
    """Copy the model and the rows of a piece to this worker, score them, and send the predictions."""
    with TemporaryDirectory(prefix="trainwright-score-") as scratch:
        model, rows, made = (Path(scratch).resolve() / name for name in ("model", "rows", "predictions"))
        for name, file in job.model.items():
            storage.fetch(file, model / name)
        version = job.split.copy([piece], rows).digest
        done = _run(model, job.digest, rows, version, job.split.name, made, job.threads)
        if done.error:
            return ScoredPiece(done.protections, TaskFailure.of(done.error))
        written = Snapshot.open(made, done.answer["digest"])
        paths = [(made / entry.uri).resolve() for entry in written.files]
        if strange := [path for path in paths if not path.is_relative_to(made)]:
            raise InputError(f"the model's process names {strange[0]} as its predictions", where="model")
        sent = (storage.publish(path, f"{job.prefix}-{secrets.token_hex(8)}.parquet") for path in paths)
        return ScoredPiece(done.protections, written, tuple(sent))


def _gathered(parts: Sequence[ScoredPiece], split: str, folder: Path) -> SandboxResult:
    """Fetch the predictions of all pieces, and write the manifest that one process would write."""
    protections = tuple(dict.fromkeys(text for part in parts for text in part.protections))
    shutil.rmtree(folder / "data", ignore_errors=True)  # of an attempt that did not end
    manifests, files, nulls = list[Snapshot](), list[SnapshotFile](), Counter[str]()
    for part in parts:
        if isinstance(part.outcome, TaskFailure):
            return SandboxResult({}, protections, part.outcome.error())
        for entry, sent in zip(part.outcome.files, part.files, strict=True):
            if entry.rows or not manifests:  # of pieces without predictions, the first alone has a file
                name = f"data/{split}/part-{len(files):05d}.parquet"
                storage.fetch(sent, folder / name)
                files.append(replace(entry, uri=name, size=sent.size, checksum=sent.checksum))
        quality = part.outcome.quality.items()
        nulls.update({name: value for name, value in quality if name.startswith("nulls.")})
        manifests.append(part.outcome)
    whole = replace(manifests[0], files=tuple(files), quality=manifests[0].quality | nulls)
    whole.write(folder)
    return SandboxResult({"digest": whole.digest, "rows": whole.rows}, protections)
