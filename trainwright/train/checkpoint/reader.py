"""Reads checkpoints: trusts nothing before its digest holds, and never runs anything in them."""

import math
import os
import pickle
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_into
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from trainwright.documents import digest_file
from trainwright.errors import DependencyError, InputError, InternalError, PermissionRefused, TrainwrightError
from trainwright.train.checkpoint.manifest import CheckpointFile, Manifest, TensorChunk, TensorIndex
from trainwright.train.checkpoint.state import STATE_KEY

_PICKLED_INDEX = ".metadata"
"""The index of a checkpoint in torch's pickled format, which trainwright wrote before its own."""


def open_reader(folder: Path, manifest: Manifest) -> "TensorReader | PickledReader":
    """Return the reader for the format of a verified checkpoint."""
    pickled = any(entry.path == _PICKLED_INDEX for entry in manifest.files)
    return PickledReader(folder, manifest) if pickled else TensorReader(folder, manifest)


def load(
    tensors: dict[str, Tensor], folder: Path, manifest: Manifest, group: distributed.ProcessGroup
) -> None:
    """Read a verified checkpoint into tensors of any sharding; all processes call this together.

    Raises:
        PermissionRefused: A pickle in it names something unknown.
        InternalError: It cannot be read, though its digests hold.
    """
    try:
        load_into(
            {STATE_KEY: dict(tensors)},
            storage_reader=open_reader(folder, manifest),
            planner=DefaultLoadPlanner(flatten_sharded_tensors=False),
            process_group=group,
        )
    except CheckpointException as failed:
        for cause, _ in failed.failures.values():
            if isinstance(cause, TrainwrightError):
                raise cause from None
            if isinstance(cause, pickle.UnpicklingError):
                named = re.search(r"GLOBAL (\S+)", str(cause))  # torch names what it rejects so
                raise _unsafe(named[1] if named else "something", folder) from None
        rank, (cause, _) = next(iter(failed.failures.items()))
        raise InternalError(
            f"rank {rank} could not read the checkpoint: {type(cause).__name__}: {cause}", where=str(folder)
        ) from None


def damage(folder: Path, files: Iterable[CheckpointFile]) -> str:
    """Describe the first damaged file of a checkpoint; empty if every file has its digest.

    Raises:
        DependencyError: A file exists and cannot be read; that may be temporary, and is no damage.
    """
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


class TensorReader(StorageReader):
    """Reads the tensors of a checkpoint, from files that its manifest lists and no others.

    Args:
        folder: The checkpoint.
        manifest: Its manifest, whose digests hold.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__()
        self._folder, self._sizes = folder, {entry.path: entry.size for entry in manifest.files}
        self._chunks: dict[MetadataIndex, tuple[TensorChunk, torch.dtype]] = {}

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Do nothing: the folder is fixed."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index of the tensors.

        Raises:
            InputError: It is not a valid index.
            PermissionRefused: The manifest does not list it, or it names a file outside the manifest.
        """
        path = self._folder / TensorIndex.FILE
        if TensorIndex.FILE not in self._sizes:
            raise PermissionRefused(f"{TensorIndex.FILE} is not in the manifest", where=str(path))
        index, found = TensorIndex.read(path), {}
        for name, entry in index.tensors.items():
            dtype = getattr(torch, entry.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise InputError(f"the index says {name} is of the type {entry.dtype!r}", where=str(path))
            for chunk in entry.chunks:
                self._require_inside(name, chunk, dtype, path)
                self._chunks[MetadataIndex(name, chunk.offsets)] = chunk, dtype
            found[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=dtype),
                size=torch.Size(entry.shape),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(part.offsets), sizes=torch.Size(part.shape))
                    for part in entry.chunks
                ],
            )
        return Metadata(state_dict_metadata=dict(found))

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """Do nothing: every process calls :meth:`read_metadata`."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Read what this process needs, in the order of files and offsets."""
        for item in sorted(plan.items, key=lambda item: _position(self._chunks[item.storage_index][0])):
            whole = self._read(*self._chunks[item.storage_index])
            for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                whole = whole.narrow(axis, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(whole)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:  # noqa: ARG003
        """Accept any folder."""
        return True

    def _read(self, chunk: TensorChunk, dtype: torch.dtype) -> Tensor:
        size = math.prod(chunk.shape) * dtype.itemsize
        buffer = torch.empty(size, dtype=torch.uint8)
        with (self._folder / chunk.file).open("rb") as stream:
            stream.seek(chunk.start)
            got = stream.readinto(buffer.numpy().data) if size else 0
        if got != size:
            raise InputError(f"{chunk.file} ends within a tensor", where=str(self._folder))
        return buffer.view(dtype).reshape(chunk.shape)

    def _require_inside(self, name: str, chunk: TensorChunk, dtype: torch.dtype, path: Path) -> None:
        if chunk.file not in self._sizes:
            raise PermissionRefused(
                f"the index names {chunk.file!r}, which is not in the manifest", where=str(path)
            )
        end, size = chunk.start + math.prod(chunk.shape) * dtype.itemsize, self._sizes[chunk.file]
        if min(0, chunk.start, *chunk.shape) < 0 or end > size:
            raise InputError(
                f"the index has {name} in bytes {chunk.start:,} to {end:,} of {chunk.file}, which has "
                f"{size:,}",
                where=str(path),
            )


def _position(chunk: TensorChunk) -> tuple[str, int]:
    return chunk.file, chunk.start


class PickledReader(FileSystemReader):
    """Reads checkpoints of earlier releases, in torch's pickled format, without running what a pickle names.

    Args:
        folder: The checkpoint.
        manifest: Its manifest, whose digests hold; other files are not read.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder)
        self._folder, self._files = folder, {entry.path for entry in manifest.files}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index of the tensors.

        Raises:
            PermissionRefused: It holds anything but tensors in the manifest's files.
        """
        path = self._folder / _PICKLED_INDEX
        with path.open("rb") as stream:
            metadata = cast(Metadata, _Unpickler(stream, path).load())  # nosec B301
        kinds = metadata.state_dict_metadata.items()
        if others := [name for name, entry in kinds if not isinstance(entry, TensorStorageMetadata)]:
            raise PermissionRefused(f"{others[0]!r} is a pickle, not a tensor", where=str(path))
        for entry in metadata.storage_data.values():
            if entry.relative_path not in self._files or entry.transform_descriptors:
                raise PermissionRefused(
                    f"the index names {entry.relative_path!r}, which is not in the manifest", where=str(path)
                )
        return metadata


_METADATA_TYPES = (
    "_MEM_FORMAT_ENCODING",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
)
_ALLOWED = {
    "builtins.set",
    "collections.OrderedDict",
    "pathlib.Path",
    "pathlib.PosixPath",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in _METADATA_TYPES),
}
"""Everything the index of a checkpoint consists of; data types such as ``torch.float32`` are allowed, too."""


class _Unpickler(pickle.Unpickler):
    """Builds allowed types only; anything else in a pickle is neither imported nor called."""

    def __init__(self, stream: Any, where: Path) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """Look up an allowed type.

        Raises:
            PermissionRefused: The type is not allowed.
        """
        if f"{module}.{name}" == "builtins.getattr":
            return self._enum_member
        module = "pathlib" if module == "pathlib._local" else module  # its name in Python 3.13
        is_dtype = (
            module == "torch" and "." not in name and isinstance(getattr(torch, name, None), torch.dtype)
        )
        if f"{module}.{name}" not in _ALLOWED and not is_dtype:
            raise _unsafe(f"{module}.{name}", self._where)
        return super().find_class(module, name)

    def _enum_member(self, kind: Any, name: Any) -> _MEM_FORMAT_ENCODING:
        """Stand for ``getattr``: Python 3.11.0 to 3.11.3 pickle a member of an enum so."""
        if kind is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
            raise _unsafe("builtins.getattr", self._where)
        return _MEM_FORMAT_ENCODING[name]


def _unsafe(name: str, where: Path) -> PermissionRefused:
    return PermissionRefused(
        f"a pickle in the checkpoint names {name}, which no checkpoint needs",
        where=str(where),
        hint="Somebody else wrote it: remove the checkpoint, and find out who may write there.",
    )
