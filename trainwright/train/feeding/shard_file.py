"""One encoded shard: an array in a file, which processes verify and map into memory."""

import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InternalError
from trainwright.storage.local import naming_path

FORMAT = 1
"""Part of every key: raised when the meaning of the bytes changes, so that older shards are not read."""

HEADER_SIZE = 4096
"""Bytes before the array: one page, so that the array starts on a page boundary."""

_BLOCK = 1 << 22


class Damaged(Exception):
    """A file is not a complete shard."""


@dataclass(frozen=True)
class ShardHeader:
    """The header of a shard.

    Attributes:
        dtype: Type of the array, as numpy writes it.
        shape: Shape of the array.
        sha256: Digest of the array's bytes.
        token: Unique for every file that was ever written.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    token: str

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return array_size(self.dtype, self.shape)


def array_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def allocate(path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Allocate the file of a shard, so that a full disk fails here and not in the middle of a write.

    Raises:
        DependencyError: The disk is full.
    """
    with naming_path(path), path.open("xb") as stream:
        os.posix_fallocate(stream.fileno(), 0, HEADER_SIZE + array_size(dtype, shape))


def write_shard(path: Path, dtype: str, shape: tuple[int, ...], parts: Iterable[NDArray[Any]]) -> None:
    """Write the pieces of an array into an allocated file, and its header last.

    Raises:
        DependencyError: The disk fails.
    """
    total, left = hashlib.sha256(), array_size(dtype, shape)
    with naming_path(path), path.open("r+b") as stream:
        stream.seek(HEADER_SIZE)
        for part in parts:
            left -= part.nbytes
            if part.dtype != np.dtype(dtype) or left < 0:
                raise InternalError(f"a shard of {shape} {dtype} got {part.shape} {part.dtype} too much")
            content = np.ascontiguousarray(part).view(np.uint8).reshape(-1).data
            total.update(content)
            stream.write(content)
        if left:
            raise InternalError(f"a shard of {shape} {dtype} got {left:,} bytes too few")
        header = ShardHeader(dtype, shape, total.hexdigest(), secrets.token_hex(8))
        stream.seek(0)
        stream.write(json.dumps(asdict(header)).encode().ljust(HEADER_SIZE))


def read_header(descriptor: int) -> ShardHeader:
    """Read the header of a shard.

    Raises:
        Damaged: There is none, or the file does not have the size it states.
    """
    try:
        fields = json.loads(os.pread(descriptor, HEADER_SIZE, 0))
        header = ShardHeader(fields["dtype"], tuple(fields["shape"]), fields["sha256"], fields["token"])
        complete = os.fstat(descriptor).st_size == HEADER_SIZE + header.size
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"its header cannot be read: {error}") from None
    if not complete:
        raise Damaged("its size is not the one in its header")
    return header


def verify(descriptor: int, header: ShardHeader) -> None:
    """Check the digest of a shard.

    Raises:
        Damaged: It differs from the one in the header.
    """
    total, at = hashlib.sha256(), HEADER_SIZE
    while block := os.pread(descriptor, _BLOCK, at):
        total.update(block)
        at += len(block)
    if total.hexdigest() != header.sha256:
        raise Damaged(f"its digest is {total.hexdigest()[:12]}, it was written with {header.sha256[:12]}")


def map_array(descriptor: int, header: ShardHeader) -> NDArray[Any]:
    """Map the array of a shard into memory, read-only, for as long as the array is used."""
    if not header.size:
        return np.empty(header.shape, header.dtype)
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, header.dtype, offset=HEADER_SIZE).reshape(header.shape)
