"""The shard cache: encoded shards on a fast disk, shared by all processes of the node, bounded in size.

A shard's key determines its content, so any epoch, process or training may reuse it. A shard is written under
a temporary name and renamed when it is complete, under a lock that prevents duplicate work. A mapping holds a
lock on its file; when space is needed, unlocked shards are evicted, least recently used first, and encoded
again on demand. The kernel releases locks with their process. On a file system whose locks do not reach other
nodes, work may be done twice; nothing else breaks.
"""

import contextlib
import fcntl
import itertools
import logging
import os
import resource
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import DependencyError, InputError
from trainwright.experiment.training import Feeding
from trainwright.storage.file_lock import file_lock, is_same_file, remove_unlocked
from trainwright.storage.local import naming_path
from trainwright.train.feeding import shard_file

SUFFIX = ".shard"

Pick: TypeAlias = Callable[[slice, NDArray[Any], NDArray[np.int64]], None]

_POLL_S = 0.02
_EVICT_MAPPED_AFTER_S = 0.5
"""Wait before a shard that others map is evicted, too: they keep their mapping."""

_TRIES = 3
_SHARE_OF_FREE = 0.9
_GIB = 2**30
_log = logging.getLogger("trainwright.train")


@dataclass(frozen=True)
class ShardSpec:
    """The specification of a shard.

    Attributes:
        key: Determines its content: equal keys mean equal bytes.
        dtype: Type of its array.
        shape: Shape of its array.
        encode: Yields the array in pieces.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    encode: Callable[[], Iterable[NDArray[Any]]]

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return shard_file.HEADER_SIZE + shard_file.array_size(self.dtype, self.shape)


class ShardCache:
    """A folder of encoded shards.

    Args:
        folder: Its path; created if missing.
        limit: Maximum bytes of all its files; if absent, 90 % of the disk's free space.

    Raises:
        PermissionRefused: The folder is not writable.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder, self.limit = folder, limit
        self._mapped: OrderedDict[str, NDArray[Any]] = OrderedDict()
        self._verified: dict[str, str] = {}
        self._mutex = threading.RLock()
        self._most_mapped = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        with naming_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._remove_partial_files()

    @classmethod
    def of(cls, feeding: Feeding, folder: Path) -> Self:
        """Open the configured cache, by default in ``folder``."""
        limit = None if feeding.cache_gib is None else int(feeding.cache_gib * _GIB)
        return cls(Path(feeding.cache) if feeding.cache else folder, limit)

    @property
    def capacity(self) -> int:
        """Bytes that all shards together may take."""
        if self.limit is not None:
            return self.limit
        used = sum(entry.st_size for _, entry in self._files())
        return int(_SHARE_OF_FREE * (self._free() + used))

    def require_fits(self, shard: ShardSpec) -> None:
        """Check that a shard is not larger than the cache.

        Raises:
            InputError: It is.
        """
        if self.limit is not None and shard.size > self.limit:
            raise InputError(
                f"one shard takes {shard.size:,} bytes, and the whole cache may take {self.limit:,}",
                where="training.feeding.cache_gib",
                hint=f"Set it to {2 * shard.size / _GIB:.2g} or more, or write the data in smaller files.",
            )

    def has(self, shard: ShardSpec) -> bool:
        """Return whether a shard is cached."""
        return self._path(shard).exists()

    def take(self, shard: ShardSpec) -> NDArray[Any]:
        """Return the array of a shard, verified and mapped; encode it if it is not cached.

        Raises:
            InputError: It is larger than the cache.
            DependencyError: There is no space for it, or the disk fails.
        """
        for _ in range(_TRIES):
            with self._mutex:
                if shard.key in self._mapped:
                    self._mapped.move_to_end(shard.key)
                    return self._mapped[shard.key]
            with naming_path(self._path(shard)), contextlib.suppress(shard_file.Damaged):
                return self._map(shard, self._opened(shard))
        raise DependencyError(
            f"a shard that was encoded {_TRIES} times is damaged each time",
            where=str(self._path(shard)),
            hint="Check that disk, or use another one: training.feeding.cache.",
        )

    def encode(self, shard: ShardSpec) -> bool:
        """Encode a shard unless it is cached or another process does; return whether it is cached."""
        with file_lock(self._lock(shard)) as acquired:
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
            with file_lock(self._lock(shard)) as acquired:
                if acquired and not self.has(shard):
                    return self._encode(shard)
            if not acquired:
                time.sleep(_POLL_S)

    def _map(self, shard: ShardSpec, descriptor: int) -> NDArray[Any]:
        """Verify and map an open shard; remove it if it is damaged.

        Raises:
            Damaged: It is.
        """
        path = self._path(shard)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            header = shard_file.read_header(descriptor)
            if self._verified.get(shard.key) != header.token:
                shard_file.verify(descriptor, header)
            array = shard_file.map_array(descriptor, header)
            os.utime(descriptor)
        except shard_file.Damaged as error:
            _log.warning("%s is damaged: %s. It is encoded again.", path, error)
            if is_same_file(path, descriptor):
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)  # the mapping has a copy of it, and so keeps the lock
        with self._mutex:
            self._verified[shard.key] = header.token
            self._mapped[shard.key] = array
            self.unmap(self._most_mapped)
        return array

    def _encode(self, shard: ShardSpec) -> int:
        """Encode a shard, and return its open file."""
        part = self.folder / f".{shard.key}.{secrets.token_hex(4)}.part"
        for left in self.folder.glob(f".{shard.key}.*.part"):  # of a process that was killed
            left.unlink(missing_ok=True)
        try:
            self._allocate(part, shard)
            shard_file.write_shard(part, shard.dtype, shard.shape, shard.encode())
            descriptor = os.open(part, os.O_RDONLY)
            part.replace(self._path(shard))
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return descriptor

    def _allocate(self, part: Path, shard: ShardSpec) -> None:
        """Allocate space for a shard, evicting others if need be; one process at a time."""
        self.require_fits(shard)
        started = time.monotonic()
        while True:
            with file_lock(self.folder / ".room.lock") as acquired:
                waited_s = time.monotonic() - started
                if acquired and self._make_space(shard.size, force=waited_s > _EVICT_MAPPED_AFTER_S):
                    try:
                        return shard_file.allocate(part, shard.dtype, shard.shape)
                    except DependencyError as error:
                        raise DependencyError(
                            f"{error.what}; a shard of encoded samples takes {shard.size:,} bytes",
                            where=str(self.folder),
                            hint="Free space there, or set another disk (training.feeding.cache) or a limit "
                            "(cache_gib).",
                        ) from None
            time.sleep(_POLL_S)

    def _make_space(self, size: int, *, force: bool) -> bool:
        """Evict shards, with ``force`` even mapped ones; return whether ``size`` bytes are free."""
        files = self._files()
        used = sum(state.st_size for _, state in files)
        lacking = used + size - self.limit if self.limit is not None else size - self._free()
        if lacking <= 0:
            return True
        self.unmap()
        self._remove_partial_files()
        oldest = sorted((entry for entry in files if entry[0].suffix == SUFFIX), key=lambda e: e[1].st_mtime)
        for path, state in oldest:
            if lacking > 0 and remove_unlocked(path, force=force):
                lacking -= state.st_size
        return lacking <= 0 or (force and self.limit is None)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return found

    def _free(self) -> int:
        state = os.statvfs(self.folder)
        return int(_SHARE_OF_FREE * state.f_bavail * state.f_frsize)

    def _path(self, shard: ShardSpec) -> Path:
        return self.folder / f"{shard.key}{SUFFIX}"

    def _lock(self, shard: ShardSpec) -> Path:
        return self.folder / f".{shard.key}.lock"

    def _remove_partial_files(self) -> None:
        """Remove what killed processes left."""
        for part in self.folder.glob(".*.part"):
            with file_lock(self.folder / f".{part.name.split('.')[1]}.lock") as acquired:
                if acquired:
                    part.unlink(missing_ok=True)


class ShardedSplit:
    """The shards of a split in order, in a cache that holds all of them, or some at a time.

    Args:
        cache: Their cache.
        shards: All of them.
        samples: Samples of each, in the same order.

    Raises:
        InputError: One shard is larger than the cache.
    """

    def __init__(self, cache: ShardCache, shards: Sequence[ShardSpec], samples: Sequence[int]) -> None:
        cache.require_fits(max(shards, key=lambda shard: shard.size))
        self._cache, self._shards = cache, shards
        self._starts = np.cumsum([0, *samples])
        self.size = sum(shard.size for shard in shards)
        self.cached_whole = self.size <= cache.capacity
        """Whether the cache can hold all shards at the same time."""
        self._executor: ThreadPoolExecutor | None = None
        self._encoding: Future[None] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def encode_all(self, local_rank: int, local_size: int) -> None:
        """Encode all shards, if the cache can hold them; the processes of a node share the work.

        Raises:
            DependencyError: There is no space, or the disk fails.
        """
        if not self.cached_whole:
            return
        first = local_rank * len(self._shards) // local_size
        left = [*self._shards[first:], *self._shards[:first]]
        while left := [shard for shard in left if not self._cache.encode(shard)]:
            time.sleep(_POLL_S)

    def warn_if_partial(self, block: int, largest: int) -> None:
        """Log the cost of a cache that cannot hold the split."""
        if not self.cached_whole:
            _log.warning(
                "The encoded split takes %.3g GiB, the cache may take %.3g: shards are encoded again on "
                "demand. training.feeding.block is %s and a shard has up to %s samples; with blocks of "
                "that size, each shard is encoded about once per epoch.",
                *(self.size / _GIB, self._cache.capacity / _GIB, f"{block:,}", f"{largest:,}"),
            )

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Start encoding the shards of ranges of samples [first, last) that will be needed soon.

        Does nothing while those of an earlier call are being encoded: what is needed meanwhile is encoded on
        demand.
        """
        if self.cached_whole or (self._encoding is not None and not self._encoding.done()):
            return
        if self._encoding is not None:
            self._encoding.result()
        ends = np.array([(first, last - 1) for first, last in ranges], np.int64).reshape(-1, 2)
        low, high = np.searchsorted(self._starts, ends.T, side="right") - 1
        needed = {each for begin, end in zip(low, high, strict=True) for each in range(begin, end + 1)}
        if 2 * sum(self._shards[each].size for each in needed) > self._cache.capacity:
            return  # no space for them beside those in use now
        missing = [self._shards[each] for each in sorted(needed) if not self._cache.has(self._shards[each])]
        if missing:
            self._executor = self._executor or ThreadPoolExecutor(1, "shards")
            self._encoding = self._executor.submit(self._encode, missing)

    def close(self) -> None:
        """Cancel pending encoding, and unmap everything."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
        self._cache.unmap()

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

    def _encode(self, missing: list[ShardSpec]) -> None:
        for shard in missing:
            self._cache.encode(shard)
