"""How the tensors of a checkpoint lie in files: raw bytes of every process, and one index of them as JSON.

torch's own ``FileSystemWriter`` pickles its index and every tensor. A pickle differs between versions of
Python (3.11.0 to 3.11.3 pickle an enum as ``builtins.getattr``), and may name any function. Planning,
sharding and the exchange between the processes stay torch's.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from trainwright.documents import Document
from trainwright.errors import InputError, InternalError, PermissionRefused
from trainwright.train.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Extent:
    """Where the bytes of a part of a tensor lie: a file of the checkpoint, and from where on."""

    file: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a tensor.

    Attributes:
        offsets: Where the part begins in the tensor.
        shape: Its shape.
        file: The file that holds its bytes, in C order and the machine's own byte order.
        start: Where they begin there.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A tensor: its type without ``torch.``, its whole shape, and its parts."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Index(Document):
    """All tensors of a checkpoint by name."""

    FILE: ClassVar[str] = "index.json"
    tensors: dict[str, Saved]


def file_of(rank: int) -> str:
    """Return the name of the file that a process writes its tensors into."""
    return f"rank-{rank}.bin"


class TensorWriter(StorageWriter):
    """Writes the tensors of each process into one file, and the index of all into another.

    Args:
        folder: Where. What a save that failed has left there is overwritten: no other start writes into it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Do nothing: the folder is the one that this was made for."""

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Do nothing: each process learns from its plan which file is its own."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each process its file; the plans come in the order of the ranks."""
        return [dataclasses.replace(plan, storage_data=file_of(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Write the tensors of this process, one behind the other, and flush them to the disk."""
        file, results = str(plan.storage_data), []
        with (self._folder / file).open("wb") as stream:
            for item in plan.items:
                data = planner.resolve_data(item)
                if not isinstance(data, Tensor):
                    raise InternalError(f"{item.index.fqn} is no tensor but {type(data).__name__}")
                extent, size = Extent(file, stream.tell()), stream.write(_bytes(data))
                results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=extent))
            stream.flush()
            os.fsync(stream.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index of the tensors of all processes."""
        places = {result.index: result.storage_data for written in results for result in written}
        tensors = {
            name: _saved(name, entry, places)
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with (self._folder / Index.FILE).open("w") as stream:
            # In the order of the state, not sorted: an optimizer that is filled from it gets its own order.
            json.dump(Index(tensors=tensors).to_json(), stream, separators=(",", ":"), allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:  # noqa: ARG003
        """Tell torch that any folder will do."""
        return True


class TensorReader(StorageReader):
    """Reads the tensors of a checkpoint: the files that its manifest lists, and no others.

    Args:
        folder: The checkpoint.
        manifest: Its manifest, whose digests hold.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__()
        self._folder, self._sizes = folder, {entry.path: entry.size for entry in manifest.files}
        self._places: dict[MetadataIndex, tuple[Extent, torch.dtype, tuple[int, ...]]] = {}

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Do nothing: the folder is the one that this was made for."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index of the tensors.

        Raises:
            InputError: It is no such index.
            PermissionRefused: The manifest does not list it, or it leads out of the manifest's files.
        """
        path = self._folder / Index.FILE
        if Index.FILE not in self._sizes:
            raise PermissionRefused(f"{Index.FILE} is not in the manifest", where=str(path))
        index, found = Index.read(path), {}
        for name, entry in index.tensors.items():
            dtype = getattr(torch, entry.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise InputError(f"the index says {name} is of the type {entry.dtype!r}", where=str(path))
            for chunk in entry.chunks:
                self._require_inside(name, chunk, dtype, path)
                key = MetadataIndex(name, chunk.offsets)
                self._places[key] = Extent(chunk.file, chunk.start), dtype, chunk.shape
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
        """Do nothing: :meth:`read_metadata`, which every process calls, knows where the bytes lie."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Read what this process needs, file by file in the order of the bytes."""
        wanted = sorted(plan.items, key=lambda item: _order(self._places[item.storage_index][0]))
        for item in wanted:
            whole = self._read(*self._places[item.storage_index])
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
        """Tell torch that any folder will do."""
        return True

    def _read(self, extent: Extent, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        buffer = torch.empty(size, dtype=torch.uint8)
        with (self._folder / extent.file).open("rb") as stream:
            stream.seek(extent.start)
            got = stream.readinto(buffer.numpy().data) if size else 0
        if got != size:
            raise InputError(f"{extent.file} ends within a tensor", where=str(self._folder))
        return buffer.view(dtype).reshape(shape)

    def _require_inside(self, name: str, chunk: Chunk, dtype: torch.dtype, path: Path) -> None:
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


def _order(extent: Extent) -> tuple[str, int]:
    return extent.file, extent.start


def _saved(name: str, entry: TensorStorageMetadata, places: Mapping[MetadataIndex, Extent]) -> Saved:
    chunks = []
    for part in entry.chunks:
        extent = places[MetadataIndex(name, part.offsets)]
        chunks.append(
            Chunk(offsets=tuple(part.offsets), shape=tuple(part.sizes), file=extent.file, start=extent.start)
        )
    dtype = str(entry.properties.dtype).removeprefix("torch.")
    return Saved(dtype=dtype, shape=tuple(entry.size), chunks=tuple(chunks))


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in C order, without a copy where it lies so already."""
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().data
