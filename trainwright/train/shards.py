"""One encoded shard: an array in a file, which processes map into their memory once it is verified."""

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
"""Part of every key: raised when what the bytes mean changes, so that older shards are not read."""

HEAD = 4096
"""Bytes before the array: a page, so that the array begins on one."""

_BLOCK = 1 << 22


class Damaged(Exception):
    """A file is not a whole shard."""


@dataclass(frozen=True)
class Head:
    """What a shard says of itself.

    Attributes:
        dtype: Type of the array, as numpy writes it.
        shape: Shape of the array.
        sha256: Digest of the array's bytes.
        token: Differs for every file that was ever made.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    token: str

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return size_of(self.dtype, self.shape)


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def allocate(path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Make the file of a shard with all the room that it will need, but not yet its bytes.

    Where the disk has no room, this says so; later, writing into a hole of a mapped file would kill.

    Raises:
        DependencyError: The disk is full.
    """
    with naming_path(path), path.open("xb") as stream:
        os.posix_fallocate(stream.fileno(), 0, HEAD + size_of(dtype, shape))


def fill(path: Path, dtype: str, shape: tuple[int, ...], parts: Iterable[NDArray[Any]]) -> None:
    """Write a shard into the file that was allocated for it; its head comes last.

    Args:
        path: The file.
        dtype: Type of the array.
        shape: Shape of the array.
        parts: The array in pieces, in their order, each contiguous.

    Raises:
        DependencyError: The disk fails.
    """
    total, left = hashlib.sha256(), size_of(dtype, shape)
    with naming_path(path), path.open("r+b") as stream:
        stream.seek(HEAD)
        for part in parts:
            left -= part.nbytes
            if part.dtype != np.dtype(dtype) or left < 0:
                raise InternalError(
                    f"a shard of {shape} {dtype} was given {part.shape} {part.dtype} too much"
                )
            content = np.ascontiguousarray(part).view(np.uint8).reshape(-1).data
            total.update(content)
            stream.write(content)
        if left:
            raise InternalError(f"a shard of {shape} {dtype} was given {left:,} bytes too few")
        head = Head(dtype, shape, total.hexdigest(), secrets.token_hex(8))
        stream.seek(0)
        stream.write(json.dumps(asdict(head)).encode().ljust(HEAD))


def read_head(descriptor: int) -> Head:
    """Read the head of a shard.

    Raises:
        Damaged: It has none, or the file is not as long as it says.
    """
    try:
        fields = json.loads(os.pread(descriptor, HEAD, 0))
        head = Head(fields["dtype"], tuple(fields["shape"]), fields["sha256"], fields["token"])
        whole = os.fstat(descriptor).st_size == HEAD + head.size
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"its head cannot be read: {error}") from None
    if not whole:
        raise Damaged("it is not as long as its head says")
    return head


def verify(descriptor: int, head: Head) -> None:
    """Check every byte of a shard.

    Raises:
        Damaged: They are not those that were written.
    """
    total, at = hashlib.sha256(), HEAD
    while block := os.pread(descriptor, _BLOCK, at):
        total.update(block)
        at += len(block)
    if total.hexdigest() != head.sha256:
        raise Damaged(f"its digest is {total.hexdigest()[:12]}, it was written with {head.sha256[:12]}")


def mapped(descriptor: int, head: Head) -> NDArray[Any]:
    """Map the array of a shard into memory, to be read; it stays there as long as the array is used."""
    if not head.size:
        return np.empty(head.shape, head.dtype)
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, head.dtype, offset=HEAD).reshape(head.shape)
