"""The tensors of a checkpoint on disk: raw bytes in one file per process, and one JSON index.

torch's ``FileSystemWriter`` pickles its index and every tensor instead: a pickle may name any function, and
differs between versions of Python. Planning, sharding and exchange stay torch's. A reader trusts nothing
before its digest holds, and never runs anything in a checkpoint.
"""

import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from trainwright.documents import digest_file
from trainwright.errors import DependencyError, InputError, InternalError, PermissionRefused, TrainwrightError
from trainwright.train.checkpoint.manifest import (
    CheckpointFile,
    Manifest,
    TensorChunk,
    TensorEntry,
    TensorIndex,
)
from trainwright.train.checkpoint.state import STATE_KEY

_FINITE_CHECK_SIZE = 1 << 24


def write_tensors(
    tensors: Mapping[str, Tensor], folder: Path, group: distributed.ProcessGroup
) -> tuple[list[CheckpointFile], list[str]]:
    """Write tensors into a folder; all processes of a gloo group call this together.

    Returns:
        The files of this process, and the names of its tensors that hold a NaN or an infinity.
    """
    rank = distributed.get_rank(group)
    writer = TensorWriter(folder, f"rank-{rank}.bin")
    try:
        save(
            {STATE_KEY: dict(tensors)},
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_sharded_tensors=False),
            process_group=group,
        )
    except CheckpointException as failed:
        # With a full disk, torch reports errors about unfinished work, too: the OSError is the cause.
        rank, error = min(
            ((each, error) for each, (error, _) in failed.failures.items()),
            key=lambda entry: (not isinstance(entry[1], OSError), entry[0]),
        )
        free = f"{shutil.disk_usage(folder.parent).free / 2**20:,.1f} MiB are free there"
        what = f"on rank {rank}: {type(error).__name__}: {error}; {free}"
        raise DependencyError(what, where=str(folder)) from None
    paths = [folder / writer.file] + ([folder / TensorIndex.FILE] if rank == 0 else [])
    files = [
        CheckpointFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path)) for path in paths
    ]
    return files, writer.not_finite


def read_tensors(
    tensors: Mapping[str, Tensor], reader: "TensorReader", group: distributed.ProcessGroup
) -> None:
    """Read a verified checkpoint into tensors of any sharding; all processes call this together."""
    try:
        load(
            {STATE_KEY: dict(tensors)},
            storage_reader=reader,
            planner=DefaultLoadPlanner(flatten_sharded_tensors=False),
            process_group=group,
        )
    except CheckpointException as failed:
        rank, (cause, _) = next(iter(failed.failures.items()))
        if isinstance(cause, TrainwrightError):
            raise cause from None
        raise InternalError(
            f"rank {rank} could not read the checkpoint: {type(cause).__name__}: {cause}",
            where=str(reader.folder),
        ) from None


def damage(folder: Path, files: Iterable[CheckpointFile]) -> str:
    """Describe the first damaged file of a checkpoint; empty if every file has its digest."""
    for entry in files:
        path = folder / entry.path
        try:
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode):
                return f"{entry.path} is not a file"
            if state.st_size != entry.size:
                return f"{entry.path} has {state.st_size:,} bytes, not {entry.size:,}"
            if digest_file(path) != entry.sha256:
                return f"{entry.path} was changed: its SHA-256 differs"
        except FileNotFoundError:
            return f"{entry.path} is missing"
        except OSError as error:
            raise DependencyError(
                f"{entry.path} of a checkpoint cannot be read: {error.strerror}",
                where=str(folder),
                hint="Let this step's user read it, or repair the disk; then run the step again.",
            ) from None
    return ""


class _Storage:
    """The methods of torch's storage classes that need nothing done: folder and files are fixed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing."""

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """Do nothing: every process calls ``read_metadata``."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        """Return the plans unchanged."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        """Accept any folder."""
        return True


class TensorWriter(_Storage, StorageWriter):
    """Writes the tensors of this process into a file, and on rank 0 the index of all tensors.

    Files of a failed save are overwritten.
    """

    def __init__(self, folder: Path, file: str) -> None:
        super().__init__(folder)
        self.file = file
        self.not_finite: list[str] = []

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Write the tensors of this process one after another, and flush them to the disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        results = []
        with (self.folder / self.file).open("wb") as stream:
            for item in plan.items:
                data = planner.resolve_data(item)
                if not isinstance(data, Tensor):
                    raise InternalError(f"{item.index.fqn} is a {type(data).__name__}, not a tensor")
                if not _is_finite(data):
                    self.not_finite.append(item.index.fqn.removeprefix(f"{STATE_KEY}."))
                start = stream.tell()
                size = stream.write(_bytes(data))
                results.append(WriteResult(item.index, size, storage_data=(self.file, start)))
            stream.flush()
            os.fsync(stream.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index of the tensors of all processes."""
        extents = {result.index: result.storage_data for written in results for result in written}
        tensors = {}
        for name, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                chunks = []
                for part in entry.chunks:
                    file, start = extents[MetadataIndex(name, part.offsets)]
                    offsets, shape = tuple(part.offsets), tuple(part.sizes)
                    chunks.append(TensorChunk(offsets=offsets, shape=shape, file=file, start=start))
                dtype = str(entry.properties.dtype).removeprefix("torch.")
                tensors[name] = TensorEntry(dtype=dtype, shape=tuple(entry.size), chunks=tuple(chunks))
        with (self.folder / TensorIndex.FILE).open("w") as stream:
            # Not sorted: an optimizer that is filled from it gets the order of its own state.
            json.dump(TensorIndex(tensors=tensors).to_json(), stream, separators=(",", ":"), allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())


class TensorReader(_Storage, StorageReader):
    """Reads the tensors of a checkpoint, from files that its verified manifest lists and no others."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder)
        self._sizes = {entry.path: entry.size for entry in manifest.files}
        self._chunks: dict[MetadataIndex, tuple[TensorChunk, torch.dtype]] = {}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index of the tensors."""
        path, found = self.folder / TensorIndex.FILE, {}
        if TensorIndex.FILE not in self._sizes:
            raise PermissionRefused(f"{TensorIndex.FILE} is not in the manifest", where=str(path))
        for name, entry in TensorIndex.read(path).tensors.items():
            dtype = getattr(torch, entry.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise InputError(f"the index says {name} is of the type {entry.dtype!r}", where=str(path))
            for chunk in entry.chunks:
                self._require_inside(name, chunk, dtype)
                self._chunks[MetadataIndex(name, chunk.offsets)] = chunk, dtype
            chunks = [
                ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.shape))
                for part in entry.chunks
            ]
            found[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), torch.Size(entry.shape), chunks
            )
        return Metadata(state_dict_metadata=dict(found))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Read what this process needs, in the order of files and offsets."""
        items = [(*self._chunks[item.storage_index], item) for item in plan.items]
        for chunk, dtype, item in sorted(items, key=lambda entry: (entry[0].file, entry[0].start)):
            size = math.prod(chunk.shape) * dtype.itemsize
            buffer = torch.empty(size, dtype=torch.uint8)
            with (self.folder / chunk.file).open("rb") as stream:
                stream.seek(chunk.start)
                if size and stream.readinto(buffer.numpy().data) != size:
                    raise InputError(f"{chunk.file} ends within a tensor", where=str(self.folder))
            part = buffer.view(dtype).reshape(chunk.shape)
            for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                part = part.narrow(axis, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _require_inside(self, name: str, chunk: TensorChunk, dtype: torch.dtype) -> None:
        where = str(self.folder / TensorIndex.FILE)
        if chunk.file not in self._sizes:
            raise PermissionRefused(
                f"the index names {chunk.file!r}, which is not in the manifest", where=where
            )
        end, size = chunk.start + math.prod(chunk.shape) * dtype.itemsize, self._sizes[chunk.file]
        if min(0, chunk.start, *chunk.shape) < 0 or end > size:
            raise InputError(
                f"the index has {name} in bytes {chunk.start:,} to {end:,} of {chunk.file}, which has "
                f"{size:,}",
                where=where,
            )


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in C order, without a copy if it is contiguous on the host."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _is_finite(value: Tensor) -> bool:
    """Return whether all values are finite; checks pieces, so that no copy of the whole is made."""
    if not value.is_floating_point():
        return True
    pieces = torch.split(value.reshape(-1), _FINITE_CHECK_SIZE)
    return all(bool(torch.isfinite(piece).all()) for piece in pieces)
