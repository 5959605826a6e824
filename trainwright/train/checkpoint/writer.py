"""Writes a checkpoint: copies the tensors at once, then writes and digests them while training continues.

The files hold raw bytes of every process, and one JSON index. torch's ``FileSystemWriter`` pickles its index
and every tensor instead: a pickle differs between versions of Python (3.11.0 to 3.11.3 pickle an enum as
``builtins.getattr``) and may name any function. Planning, sharding and exchange stay torch's.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, distributed
from torch import futures as torch_futures
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor

from trainwright.documents import digest_file
from trainwright.errors import InternalError, TrainwrightError
from trainwright.train.checkpoint.manifest import CheckpointFile, TensorChunk, TensorEntry, TensorIndex
from trainwright.train.checkpoint.state import STATE_KEY

_FINITE_CHECK_SIZE = 1 << 24


@dataclass(frozen=True)
class SaveResult:
    """The result of a save, the same on every process.

    Attributes:
        kind: ``committed``; ``failed``, to be retried; ``not_finite``; or ``superseded`` by another start.
        why: Cause of the failure.
    """

    kind: Literal["committed", "failed", "not_finite", "superseded"]
    why: str = ""


@dataclass(frozen=True)
class SavedPart:
    """The part of a save by one process.

    Attributes:
        files: Files that it wrote.
        not_finite: Names of its tensors that hold a NaN or an infinity.
        failure: Cause of a failure; empty if there was none.
    """

    files: tuple[CheckpointFile, ...] = ()
    not_finite: tuple[str, ...] = ()
    failure: str = ""


class CheckpointWriter:
    """Writes the tensors of a state with torch's distributed checkpoint.

    Args:
        group: A gloo group of all processes that nothing else uses during a save.
        rank: Rank of this process.
        device: Device of the tensors.
    """

    def __init__(self, group: distributed.ProcessGroup, rank: int, device: torch.device) -> None:
        self._group, self._rank = group, rank
        self._stager = _Stager(pinned=device.type == "cuda")

    def begin(self, tensors: Mapping[str, Tensor], folder: Path) -> "Future[Any]":
        """Copy the tensors, and start writing the copies into a folder; overwrites a failed save."""
        response = async_save(
            {STATE_KEY: dict(tensors)},
            storage_writer=TensorWriter(folder),
            planner=DefaultSavePlanner(flatten_sharded_tensors=False),
            process_group=self._group,
            async_stager=self._stager,
        )
        assert isinstance(response, Future)  # noqa: S101 - unless staging is asynchronous, too
        return response

    def finish(self, written: "Future[Any]", folder: Path) -> SavedPart:
        """Wait until the files are written; digest those of this process, and look for non-finite values."""
        try:
            bad = tuple(name for name, value in self._stager.staged.items() if not _is_finite(value))
            written.result()
            paths = [folder / file_of(self._rank)] + ([folder / TensorIndex.FILE] if self._rank == 0 else [])
            files = [
                CheckpointFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path))
                for path in paths
            ]
            return SavedPart(files=tuple(files), not_finite=bad)
        except (Exception, CheckpointException) as error:  # passed to the other processes, which wait for it
            return SavedPart(failure=f"{_cause(error)}{_free_space(folder)}")

    def gather(self, part: SavedPart) -> list[SavedPart]:
        """Return the parts of all processes on rank 0; the list is meaningless elsewhere."""
        parts: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.gather_object(part, parts if self._rank == 0 else None, group=self._group)
        return parts

    def broadcast(self, result: SaveResult) -> SaveResult:
        """Return the result of rank 0 on all processes."""
        shared = [result]
        distributed.broadcast_object_list(shared, group=self._group)
        return shared[0]


def reason_not_to_commit(parts: Sequence[SavedPart]) -> SaveResult | None:
    """Return the result of a save that must not be committed; None if all parts are good."""
    if bad := sorted({name for part in parts for name in part.not_finite}):
        return SaveResult("not_finite", f"{len(bad)} tensors are not finite, such as {bad[0]}")
    if failed := [part.failure for part in parts if part.failure]:
        return SaveResult("failed", failed[0])
    return None


@dataclass(frozen=True)
class Extent:
    """Position of the bytes of a tensor chunk: a file of the checkpoint, and the offset in it."""

    file: str
    start: int


def file_of(rank: int) -> str:
    """Return the name of the file that a process writes its tensors into."""
    return f"rank-{rank}.bin"


class TensorWriter(StorageWriter):
    """Writes the tensors of each process into one file, and the index of all into another.

    Args:
        folder: The checkpoint's folder; files of a failed save are overwritten.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Do nothing: the folder is fixed."""

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Do nothing: the plan names the file of each process."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Create the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Assign each process its file; the plans are ordered by rank."""
        return [dataclasses.replace(plan, storage_data=file_of(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "torch_futures.Future[list[WriteResult]]":
        """Write the tensors of this process one after another, and flush them to the disk."""
        file, results = str(plan.storage_data), []
        with (self._folder / file).open("wb") as stream:
            for item in plan.items:
                data = planner.resolve_data(item)
                if not isinstance(data, Tensor):
                    raise InternalError(f"{item.index.fqn} is a {type(data).__name__}, not a tensor")
                extent, size = Extent(file, stream.tell()), stream.write(_bytes(data))
                results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=extent))
            stream.flush()
            os.fsync(stream.fileno())
        done: torch_futures.Future[list[WriteResult]] = torch_futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index of the tensors of all processes."""
        extents = {result.index: result.storage_data for written in results for result in written}
        tensors = {
            name: _index_entry(name, entry, extents)
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with (self._folder / TensorIndex.FILE).open("w") as stream:
            # Not sorted: an optimizer that is filled from it gets the order of its own state.
            json.dump(TensorIndex(tensors=tensors).to_json(), stream, separators=(",", ":"), allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:  # noqa: ARG003
        """Accept any folder."""
        return True


class _Stager(AsyncStager):
    """Copies tensors to host memory, into the buffers of the save before.

    torch's ``DefaultStager`` does so from 2.13 on. Before, it drops the buffers after each use, and a second
    use ends in a KeyError.
    """

    staged: Mapping[str, Tensor]

    def __init__(self, *, pinned: bool) -> None:
        self._pinned, self._buffers = pinned, StateDictStager(pin_memory=pinned, share_memory=False)

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy the tensors, and wait for the copies: training changes the tensors next."""
        copies: dict[str, Any] = self._buffers.stage(state_dict, non_blocking=self._pinned)
        if self._pinned:
            torch.accelerator.synchronize()
        self.staged = copies[STATE_KEY]
        return copies

    def synchronize_staging(self) -> None:
        """Do nothing: :meth:`stage` has waited already."""

    def close(self) -> None:
        """Free the buffers."""
        self._buffers.close()  # type: ignore[no-untyped-call]


def _index_entry(
    name: str, entry: TensorStorageMetadata, extents: Mapping[MetadataIndex, Extent]
) -> TensorEntry:
    chunks = []
    for part in entry.chunks:
        at = extents[MetadataIndex(name, part.offsets)]
        chunks.append(
            TensorChunk(offsets=tuple(part.offsets), shape=tuple(part.sizes), file=at.file, start=at.start)
        )
    dtype = str(entry.properties.dtype).removeprefix("torch.")
    return TensorEntry(dtype=dtype, shape=tuple(entry.size), chunks=tuple(chunks))


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in C order, without a copy if it is contiguous on the host."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _is_finite(value: Tensor) -> bool:
    """Return whether all values are finite; checks pieces, so that no copy of the whole is made."""
    local = value.to_local() if isinstance(value, DTensor) else value
    if not local.is_floating_point():
        return True
    pieces = torch.split(local.reshape(-1), _FINITE_CHECK_SIZE)
    return all(bool(torch.isfinite(piece).all()) for piece in pieces)


def _free_space(folder: Path) -> str:
    """Describe the free space: torch's error for a full disk does not name it."""
    try:
        return f"; {shutil.disk_usage(folder.parent).free / 2**20:,.1f} MiB are free there"
    except OSError:
        return ""


def _cause(error: BaseException) -> str:
    """Describe an error in one line; torch wraps the errors of all processes into one exception."""
    if isinstance(error, CheckpointException):
        # With a full disk, torch reports errors about unfinished work, too: the OSError is the cause.
        causes = sorted(
            ((rank, cause) for rank, (cause, _) in error.failures.items()),
            key=lambda entry: (not isinstance(entry[1], OSError), entry[0]),
        )
        return f"on rank {causes[0][0]}: {_cause(causes[0][1])}"
    if isinstance(error, TrainwrightError):
        return error.what
    return f"{type(error).__name__}: {error}"
