"""Score a split in a process without rights: here, or piece by piece on the workers of an engine."""

import secrets
import shutil
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
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment import DataEngine
from trainwright.sandbox import SandboxResult
from trainwright.serving.predictions import PIECE_ROWS
from trainwright.tables.workers import TaskFailure

_TIME_LIMIT_S = 24 * 3600.0
"""Limit for scoring one split; a model whose operators have no loops comes to an end long before."""


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
