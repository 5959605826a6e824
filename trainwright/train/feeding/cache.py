"""The shard cache: encoded shards on a fast disk, shared by all processes of the node, bounded in size.

A shard's key determines its content, so any epoch, process or training may reuse it. A shard is written under
a temporary name and renamed when it is complete, under a lock that prevents duplicate work. A mapping holds a
lock on its file; when space is needed, unlocked shards are evicted, least recently used first, and encoded
again on demand. The kernel releases locks with their process. On a file system whose locks do not reach other
nodes, work may be done twice; nothing else breaks.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import mmap
import os
import resource
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError, InternalError
from trainwright.experiment.training import Feeding
from trainwright.storage.local import file_lock, is_same_file, naming_path, remove_unlocked
from trainwright.train.process_group import Ranks

FORMAT = 1
"""Part of every key: raised when the meaning of the bytes changes, so that older shards are not read."""

SUFFIX = ".shard"

HEADER_SIZE = 4096
"""Bytes before the array: one page, so that the array starts on a page boundary."""

Pick: TypeAlias = Callable[[slice, NDArray[Any], NDArray[np.int64]], None]

_READ_SIZE = 1 << 22
_POLL_S = 0.02
_EVICT_MAPPED_AFTER_S = 0.5
"""Wait before a shard that others map is evicted, too: they keep their mapping."""

_TRIES = 3
_WAITS_MUCH = 0.05
_SHARE_OF_FREE = 0.9
_GIB = 2**30
_log = logging.getLogger("trainwright.train")


class _Damaged(Exception):
    """A file is not a complete shard."""


@dataclass(frozen=True)
class ShardSpec:
    """A shard: its key, which determines its bytes; its array; and what yields the array in pieces."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    encode: Callable[[], Iterable[NDArray[Any]]]

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return HEADER_SIZE + int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class ShardCache:
    """A folder of encoded shards.

    Args:
        folder: Its path; created if missing.
        limit: Maximum bytes of all its files; if absent, 90 % of the space that is free or its own.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder, self._limit = folder, limit
        self._mapped: OrderedDict[str, NDArray[Any]] = OrderedDict()
        self._verified: dict[str, str] = {}
        self._mutex = threading.RLock()
        self.encoded_bytes, self.encode_s = 0, 0.0
        self._most_mapped = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        with naming_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._remove_partial_files()

    @property
    def capacity(self) -> int:
        """Bytes that all shards together may take."""
        if self._limit is not None:
            return self._limit
        state = os.statvfs(self.folder)
        return int(_SHARE_OF_FREE * (state.f_bavail * state.f_frsize + self._used()))

    def require_fits(self, shard: ShardSpec) -> None:
        """Check that a shard is not larger than the cache."""
        if self._limit is not None and shard.size > self._limit:
            raise InputError(
                f"one shard takes {shard.size:,} bytes, and the whole cache may take {self._limit:,}",
                where="training.feeding.cache_gib",
                hint=f"Set it to {2 * shard.size / _GIB:.2g} or more, or write the data in smaller files.",
            )

    def has(self, shard: ShardSpec) -> bool:
        """Return whether a shard is cached."""
        return self._path(shard).exists()

    def take(self, shard: ShardSpec) -> NDArray[Any]:
        """Return the array of a shard, verified and mapped; encode it if it is not cached."""
        for _ in range(_TRIES):
            with self._mutex:
                if shard.key in self._mapped:
                    self._mapped.move_to_end(shard.key)
                    return self._mapped[shard.key]
            with naming_path(self._path(shard)), contextlib.suppress(_Damaged):
                return self._map(shard, self._opened(shard))
        raise DependencyError(
            f"a shard that was encoded {_TRIES} times is damaged each time",
            where=str(self._path(shard)),
            hint="Check that disk, or use another one: training.feeding.cache.",
        )

    def encode(self, shard: ShardSpec) -> bool:
        """Encode a shard unless it is cached or another process does; return whether it is cached."""
        with file_lock(self._lock(shard.key)) as acquired:
            if acquired and not self.has(shard):
                os.close(self._encode(shard))
        return self.has(shard) or acquired

    def unmap(self, keep: int = 0) -> None:
        """Drop all mappings but the ``keep`` most recently used; arrays still in use stay valid."""
        with self._mutex:
            while len(self._mapped) > keep:
                self._mapped.popitem(last=False)

    def _opened(self, shard: ShardSpec) -> int:
        """Open a shard; encode it, or wait for the process that does, if it is not cached.

        The process that encodes it has it open before others can see it, so it cannot be evicted in between.
        """
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._path(shard), os.O_RDONLY)
            with file_lock(self._lock(shard.key)) as acquired:
                if acquired and not self.has(shard):
                    return self._encode(shard)
            if not acquired:
                time.sleep(_POLL_S)

    def _map(self, shard: ShardSpec, descriptor: int) -> NDArray[Any]:
        """Verify and map an open shard, read-only; remove it if it is damaged."""
        path = self._path(shard)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            token = _verify(descriptor, shard, self._verified.get(shard.key))
            memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            array = np.frombuffer(memory, shard.dtype, offset=HEADER_SIZE).reshape(shard.shape)
            os.utime(descriptor)
        except _Damaged as error:
            _log.warning("%s is damaged: %s. It is encoded again.", path, error)
            if is_same_file(path, descriptor):
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)  # the mapping has a copy of it, and so keeps the lock
        with self._mutex:
            self._verified[shard.key] = token
            self._mapped[shard.key] = array
            self.unmap(self._most_mapped)
        return array

    def _encode(self, shard: ShardSpec) -> int:
        """Encode a shard, and return its open file."""
        self.require_fits(shard)
        part = self.folder / f".{shard.key}.{secrets.token_hex(4)}.part"
        started = time.monotonic()
        try:
            while not self._allocate(part, shard, force=time.monotonic() - started > _EVICT_MAPPED_AFTER_S):
                time.sleep(_POLL_S)
            with naming_path(part), part.open("r+b") as stream:
                began = time.monotonic()
                _write(stream, shard)
            self.encoded_bytes += shard.size
            self.encode_s += time.monotonic() - began
            descriptor = os.open(part, os.O_RDONLY)
            part.replace(self._path(shard))
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return descriptor

    def _allocate(self, part: Path, shard: ShardSpec, *, force: bool) -> bool:
        """Allocate space for a shard, evicting others, with ``force`` even mapped ones; False to try again.

        One process at a time does. A full disk fails here, and not in the middle of a write.
        """
        with file_lock(self.folder / ".room.lock") as acquired:
            if not acquired:
                return False
            lacking = self._used() + shard.size - self.capacity
            if lacking > 0:
                self.unmap()
                self._remove_partial_files()
                shards = [(path, state) for path, state in self._files() if path.suffix == SUFFIX]
                for path, state in sorted(shards, key=lambda entry: entry[1].st_mtime):
                    if lacking > 0 and remove_unlocked(path, force=force):
                        lacking -= state.st_size
            if lacking > 0 and not (force and self._limit is None):
                return False
            try:
                with naming_path(part), part.open("xb") as stream:
                    os.posix_fallocate(stream.fileno(), 0, shard.size)
            except DependencyError as error:
                raise DependencyError(
                    f"{error.what}; a shard of encoded samples takes {shard.size:,} bytes",
                    where=str(self.folder),
                    hint="Free space there, or set another disk (training.feeding.cache) or a limit "
                    "(cache_gib).",
                ) from None
        return True

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return found

    def _used(self) -> int:
        return sum(state.st_size for _, state in self._files())

    def _path(self, shard: ShardSpec) -> Path:
        return self.folder / f"{shard.key}{SUFFIX}"

    def _lock(self, key: str) -> Path:
        return self.folder / f".{key}.lock"

    def _remove_partial_files(self) -> None:
        """Remove what killed processes left."""
        for part in self.folder.glob(".*.part"):
            with file_lock(self._lock(part.name.split(".")[1])) as acquired:
                if acquired:
                    part.unlink(missing_ok=True)


def _write(stream: Any, shard: ShardSpec) -> None:
    """Write the pieces of an array into an allocated file, and its header last."""
    total, left = hashlib.sha256(), shard.size - HEADER_SIZE
    stream.seek(HEADER_SIZE)
    for part in shard.encode():
        left -= part.nbytes
        if part.dtype != np.dtype(shard.dtype) or left < 0:
            raise InternalError(f"a shard of {shard.shape} {shard.dtype} got {part.shape} {part.dtype} more")
        content = np.ascontiguousarray(part).view(np.uint8).reshape(-1).data
        total.update(content)
        stream.write(content)
    if left:
        raise InternalError(f"a shard of {shard.shape} {shard.dtype} got {left:,} bytes too few")
    header = {"dtype": shard.dtype, "shape": shard.shape}
    header |= {"sha256": total.hexdigest(), "token": secrets.token_hex(8)}
    stream.seek(0)
    stream.write(json.dumps(header).encode().ljust(HEADER_SIZE))


def _verify(descriptor: int, shard: ShardSpec, verified: str | None) -> str:
    """Check size and digest of a shard; return its token, which differs for every file ever written."""
    try:
        header = read_json(os.pread(descriptor, HEADER_SIZE, 0))
        expected, token = header["sha256"], header["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"its header cannot be read: {error}") from None
    if os.fstat(descriptor).st_size != shard.size:
        raise _Damaged(f"it does not have {shard.size:,} bytes")
    if token != verified:
        total, at = hashlib.sha256(), HEADER_SIZE
        while block := os.pread(descriptor, _READ_SIZE, at):
            total.update(block)
            at += len(block)
        if total.hexdigest() != expected:
            raise _Damaged(f"its digest is {total.hexdigest()[:12]}, it was written with {expected[:12]}")
    return str(token)


class ShardedSplit:
    """The shards of a split in order, in a cache that holds all of them, or some at a time."""

    def __init__(self, cache: ShardCache, shards: Sequence[ShardSpec], samples: Sequence[int]) -> None:
        cache.require_fits(max(shards, key=lambda shard: shard.size))
        self._cache, self._shards = cache, shards
        self._starts = np.cumsum([0, *samples])
        self.size = sum(shard.size for shard in shards)
        self.cached_whole = self.size <= cache.capacity
        """Whether the cache can hold all shards at the same time."""

    @classmethod
    def open(
        cls,
        feeding: Feeding,
        folder: Path,
        shards: Sequence[ShardSpec],
        samples: Sequence[int],
        ranks: Ranks,
    ) -> "ShardedSplit":
        """Open a split in the configured cache, by default in ``folder``, and encode it if it fits."""
        limit = None if feeding.cache_gib is None else int(feeding.cache_gib * _GIB)
        cache = ShardCache(Path(feeding.cache) if feeding.cache else folder, limit)
        split = cls(cache, shards, samples)
        if split.cached_whole:
            split.encode_all(ranks.local_rank, ranks.local_size)
        elif ranks.local_rank == 0:
            _log.warning(
                "The encoded split takes %.3g GiB, the cache may take %.3g: shards are encoded again on "
                "demand. training.feeding.block is %s and a shard has up to %s samples; with blocks of "
                "that size, each shard is encoded about once per epoch.",
                *(split.size / _GIB, cache.capacity / _GIB, f"{feeding.block:,}", f"{max(samples):,}"),
            )
        return split

    def __len__(self) -> int:
        return int(self._starts[-1])

    def encoding(self) -> dict[str, float]:
        """Return the samples per second that this process read and encoded, and how often each; if any."""
        times = self._cache.encoded_bytes / self.size
        if not times:
            return {}
        rate = times * len(self) / max(self._cache.encode_s, 1e-9)
        return {"input_encoded_per_s": rate, "input_encoded_times": times}

    def describe(self, rates: Mapping[str, float], waited: float) -> str:
        """Describe what the steps needed and the input gave, with a hint if a slower input made them wait."""
        needed, given = rates["input_needed_per_s"], rates["input_given_per_s"]
        line = f"input: the steps need {needed:,.0f} samples/s, the input gives {given:,.0f}; "
        line += f"they waited {waited:.0%} of the time"
        if "input_encoded_per_s" in rates:
            line += (
                f"; this process read and encoded {rates['input_encoded_per_s']:,.0f} samples/s, "
                f"{rates['input_encoded_times']:.1f} times the split"
            )
        if waited < _WAITS_MUCH or given >= needed:  # else only the first batch was late
            return line
        if self.cached_whole:
            return f"{line}. Put training.feeding.cache on a faster disk"
        gib, most = 1.01 * self.size / _GIB, max(np.diff(self._starts))  # still enough when rounded
        return (
            f"{line}. The source is the bottleneck: set training.feeding.cache_gib to {gib:.3g} to hold the "
            f"split, or block and window to {most:,}"
        )

    def encode_all(self, local_rank: int, local_size: int) -> None:
        """Encode all shards; the processes of a node share the work."""
        first = local_rank * len(self._shards) // local_size
        left = [*self._shards[first:], *self._shards[:first]]
        while left := [shard for shard in left if not self._cache.encode(shard)]:
            time.sleep(_POLL_S)

    def visit(self, index: NDArray[np.int64], pick: Pick) -> NDArray[np.int64]:
        """Visit the shards of some samples, each once.

        Args:
            index: Numbers of samples, shape (samples,), each in [0, len).
            pick: Called for each shard that has any, with their slice among all samples sorted by shard, the
                shard's array, and their rows in it. It must keep no reference to the array.

        Returns:
            Position of each sample of ``index`` among those sorted by shard, shape (samples,).
        """
        kind = np.uint16 if len(self._shards) < 1 << 16 else np.int64  # numpy sorts the former by radix
        owners = (np.searchsorted(self._starts, index, side="right") - 1).astype(kind)
        order = np.argsort(owners, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        owners, index = owners[order], index[order]
        edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        runs = [(int(owners[first]), slice(first, last)) for first, last in itertools.pairwise(edges) if last]
        if not self.cached_whole:  # cached shards first: encoding the others may evict them
            runs.sort(key=lambda run: not self._cache.has(self._shards[run[0]]))
        for owner, run in runs:
            pick(run, self._cache.take(self._shards[owner]), index[run] - self._starts[owner])
        if not self.cached_whole:
            self._cache.unmap()
        return back

    def each(self, pick: Callable[[NDArray[Any]], None]) -> None:
        """Visit all shards in order; ``pick`` must keep no reference to the array."""
        for shard in self._shards:
            pick(self._cache.take(shard))
            if not self.cached_whole:
                self._cache.unmap()
