"""One save: the tensors are copied at once, and written, digested and committed while training goes on."""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from trainwright import storage
from trainwright.documents import canonical, digest_file
from trainwright.errors import TrainwrightError
from trainwright.train.checkpoint.format import Index, TensorWriter, file_of
from trainwright.train.checkpoint.manifest import Manifest, SavedFile
from trainwright.train.checkpoint.tensors import STATE

_PIECE = 1 << 24


@dataclass(frozen=True)
class Outcome:
    """How a save ended, the same on every process.

    Attributes:
        kind: ``committed``; ``failed``, which may pass; ``not_finite``; or ``superseded``, by another start.
        why: What went wrong.
    """

    kind: Literal["committed", "failed", "not_finite", "superseded"]
    why: str = ""


@dataclass(frozen=True)
class Part:
    """What one process did of a save.

    Attributes:
        files: The files it wrote.
        not_finite: Names of its tensors that hold a NaN or an infinity.
        failure: What went wrong; empty if nothing did.
    """

    files: tuple[SavedFile, ...] = ()
    not_finite: tuple[str, ...] = ()
    failure: str = ""


class Writer:
    """Writes the tensors of a state with torch's distributed checkpoint.

    Args:
        group: A gloo group of all processes that nothing else uses while a save is under way.
        rank: Number of this process.
        device: Where the tensors live.
    """

    def __init__(self, group: distributed.ProcessGroup, rank: int, device: torch.device) -> None:
        self._group, self._rank = group, rank
        self._stager = _Stager(fast=device.type == "cuda")

    def begin(self, tensors: Mapping[str, Tensor], folder: Path) -> "Future[Any]":
        """Copy the tensors, and begin to write the copies into a folder, over what a failed save left."""
        response = async_save(
            {STATE: dict(tensors)},
            storage_writer=TensorWriter(folder),
            planner=DefaultSavePlanner(flatten_sharded_tensors=False),
            process_group=self._group,
            async_stager=self._stager,
        )
        assert isinstance(response, Future)  # noqa: S101 - so it is, unless the copies are asynchronous too
        return response

    def finish(self, written: "Future[Any]", folder: Path) -> Part:
        """Wait until the files are there; digest those of this process, and look for what is not finite."""
        try:
            bad = tuple(name for name, value in self._stager.staged.items() if not _finite(value))
            written.result()
            return Part(files=_digested(folder, self._rank), not_finite=bad)
        except (Exception, CheckpointException) as error:  # told to the others, who wait for this process
            return Part(failure=f"{_told(error)}{_room(folder)}")

    def gather(self, part: Part) -> list[Part]:
        """Bring the parts of all processes to the first; elsewhere the list is of no use."""
        parts: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.gather_object(part, parts if self._rank == 0 else None, group=self._group)
        return parts

    def share(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the first process on all of them."""
        shared = [outcome]
        distributed.broadcast_object_list(shared, group=self._group)
        return shared[0]


class _Stager(AsyncStager):
    """Copies tensors to the host's memory, into the copies of the save before, and keeps hold of them.

    torch's ``DefaultStager`` does so from 2.13 on. Before, it drops the copies after each use, and with them
    what it copies with: a second use ends in a KeyError.

    Args:
        fast: Whether they come from a GPU: all are on their way at once then, into pinned memory.
    """

    staged: Mapping[str, Tensor]

    def __init__(self, *, fast: bool) -> None:
        self._fast, self._copies = fast, StateDictStager(pin_memory=fast, share_memory=False)

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy the tensors, and wait until they are there: training goes on to change them."""
        copies: dict[str, Any] = self._copies.stage(state_dict, non_blocking=self._fast)
        if self._fast:
            torch.accelerator.synchronize()
        self.staged = copies[STATE]
        return copies

    def synchronize_staging(self) -> None:
        """Do nothing: all is there already."""
        return None

    def close(self) -> None:
        """Let go of the copies."""
        self._copies.close()  # type: ignore[no-untyped-call]


def judge(parts: Sequence[Part]) -> Outcome | None:
    """Return what speaks against a commit, if anything does."""
    if bad := sorted({name for part in parts for name in part.not_finite}):
        return Outcome("not_finite", f"{len(bad)} tensors are not finite, such as {bad[0]}")
    if failed := [part.failure for part in parts if part.failure]:
        return Outcome("failed", failed[0])
    return None


def commit(folder: Path, manifest: Manifest) -> None:
    """Make the files of a folder a checkpoint."""
    text = canonical(manifest.to_json()) + "\n"
    storage.create(str(folder / Manifest.FILE), text.encode())


def now() -> str:
    """Return the time as manifests have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _digested(folder: Path, rank: int) -> tuple[SavedFile, ...]:
    """Digest what a process wrote; the first one writes the index of all tensors too."""
    paths = [folder / file_of(rank)] + ([folder / Index.FILE] if rank == 0 else [])
    return tuple(
        SavedFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path)) for path in paths
    )


def _finite(value: Tensor) -> bool:
    """Tell whether all values are finite, in pieces: no copy of the whole is made."""
    local = value.to_local() if isinstance(value, DTensor) else value
    if not local.is_floating_point():
        return True
    return all(bool(torch.isfinite(piece).all()) for piece in torch.split(local.reshape(-1), _PIECE))


def _room(folder: Path) -> str:
    """Say how much room there is: torch has other words for a full disk than the system does."""
    try:
        return f"; {shutil.disk_usage(folder.parent).free / 2**20:,.1f} MiB are free there"
    except OSError:
        return ""


def _told(error: BaseException) -> str:
    """Say what went wrong in one line; torch wraps what each process met into an exception of its own."""
    if isinstance(error, CheckpointException):
        # Behind a full disk, torch has errors of its own about what it could not finish.
        causes = sorted(
            ((rank, cause) for rank, (cause, _) in error.failures.items()),
            key=lambda entry: (not isinstance(entry[1], OSError), entry[0]),
        )
        return f"on rank {causes[0][0]}: {_told(causes[0][1])}"
    if isinstance(error, TrainwrightError):
        return error.what
    return f"{type(error).__name__}: {error}"
