"""Encoded shards on a fast disk: made once, shared by all processes of the node, never larger than allowed.

A shard has a key that names its content, so whoever finds it may use it: another epoch, another process,
another training. It is made under a name of its own and renamed when it is whole, under a lock that spares
others the same work. A mapping carries a lock on its file, for as long as it lives; when room is needed, the
shards that nobody maps go, the least recently used first, and are made again when they are needed. Locks die
with their process. On a file system whose locks do not reach the other nodes, work may be done twice, and
nothing else.
"""

import contextlib
import fcntl
import logging
import os
import resource
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from trainwright.errors import DependencyError, InputError
from trainwright.experiment.feeding import Feeding
from trainwright.storage.local import naming_path
from trainwright.train import shards
from trainwright.train.locks import is_still, only_one, removed

_log = logging.getLogger("trainwright.train")

SUFFIX = ".shard"

_POLL_S = 0.02
_PATIENCE_S = 0.5
"""How long room is waited for before a shard that others map goes too: they keep their mapping."""

_TRIES = 3
_SHARE_OF_FREE = 0.9


@dataclass(frozen=True)
class Shard:
    """A shard as it is to be.

    Attributes:
        key: Names its content: whoever has the same key has the same bytes.
        dtype: Type of its array.
        shape: Shape of its array.
        make: Gives the array in pieces.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], Iterable[NDArray[Any]]]

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return shards.HEAD + shards.size_of(self.dtype, self.shape)


class Cache:
    """A folder of encoded shards.

    Args:
        folder: Its place; made if it is not there.
        limit: Most bytes of all files in it; absent: what is free of its disk, less a tenth.

    Raises:
        PermissionRefused: Nothing may be written there.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder, self.limit = folder, limit
        self._held: OrderedDict[str, NDArray[Any]] = OrderedDict()
        self._verified: dict[str, str] = {}
        self._mutex = threading.RLock()
        self._most = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        with naming_path(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._sweep()

    @classmethod
    def of(cls, feeding: Feeding, folder: Path) -> Self:
        """Open the cache that a training is told to use; ``folder`` is its own, if it is told of none."""
        limit = None if feeding.cache_gib is None else int(feeding.cache_gib * 2**30)
        return cls(Path(feeding.cache) if feeding.cache else folder, limit)

    @property
    def room(self) -> int:
        """Bytes that all shards together may take here, from now on."""
        if self.limit is not None:
            return self.limit
        used = sum(entry.st_size for _, entry in self._files())
        return int(_SHARE_OF_FREE * (self._free() + used))

    def require(self, shard: Shard) -> None:
        """Check that a shard is not larger than all of them together may be.

        Raises:
            InputError: It is.
        """
        if self.limit is not None and shard.size > self.limit:
            raise InputError(
                f"one shard takes {shard.size:,} bytes, and the whole cache may take {self.limit:,}",
                where="training.feeding.cache_gib",
                hint=f"Give it {2 * shard.size / 2**30:.2g} or more, or write the data in smaller files.",
            )

    def has(self, shard: Shard) -> bool:
        """Tell whether a shard is there."""
        return self._place(shard).exists()

    def take(self, shard: Shard) -> NDArray[Any]:
        """Return the array of a shard, verified and mapped; it is made if it is not there.

        Raises:
            InputError: It alone is larger than the cache may be.
            DependencyError: There is no room for it, or the disk fails.
        """
        for _ in range(_TRIES):
            with self._mutex:
                if shard.key in self._held:
                    self._held.move_to_end(shard.key)
                    return self._held[shard.key]
            with naming_path(self._place(shard)), contextlib.suppress(shards.Damaged):
                return self._map(shard, self._opened(shard))
        raise DependencyError(
            f"a shard that was made {_TRIES} times is damaged each time",
            where=str(self._place(shard)),
            hint="Look at that disk, or name another one: training.feeding.cache.",
        )

    def make(self, shard: Shard) -> bool:
        """Make a shard if it is not there and no other process makes it; tell whether it is there now."""
        with only_one(self._lock(shard)) as mine:
            if mine and not self.has(shard):
                os.close(self._make(shard))
        return self.has(shard) or mine

    def let_go(self, keep: int = 0) -> None:
        """Let go of all mappings but the ``keep`` most recently used; arrays still in use stay valid."""
        with self._mutex:
            while len(self._held) > keep:
                self._held.popitem(last=False)

    def _opened(self, shard: Shard) -> int:
        """Open a shard; make it, or wait for who makes it, if it is not there.

        Whoever made it has it open before anyone else can see it: it cannot be removed from under them.
        """
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._place(shard), os.O_RDONLY)
            with only_one(self._lock(shard)) as mine:
                if mine and not self.has(shard):
                    return self._make(shard)
            if not mine:
                time.sleep(_POLL_S)

    def _map(self, shard: Shard, descriptor: int) -> NDArray[Any]:
        """Verify and map a shard that was opened; one that is damaged is thrown away.

        Raises:
            Damaged: It was.
        """
        place = self._place(shard)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            head = shards.read_head(descriptor)
            if self._verified.get(shard.key) != head.token:
                shards.verify(descriptor, head)
            array = shards.mapped(descriptor, head)
            os.utime(descriptor)
        except shards.Damaged as error:
            _log.warning("%s is damaged: %s. It is made again.", place, error)
            if is_still(place, descriptor):
                place.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)  # the mapping has a copy of it, and so keeps the lock
        with self._mutex:
            self._verified[shard.key] = head.token
            self._held[shard.key] = array
            self.let_go(self._most)
        return array

    def _make(self, shard: Shard) -> int:
        """Make a shard, and return it opened."""
        part = self.folder / f".{shard.key}.{secrets.token_hex(4)}.part"
        for left in self.folder.glob(f".{shard.key}.*.part"):  # of a process that was killed
            left.unlink(missing_ok=True)
        try:
            self._allocate(part, shard)
            shards.fill(part, shard.dtype, shard.shape, shard.make())
            descriptor = os.open(part, os.O_RDONLY)
            part.replace(self._place(shard))
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return descriptor

    def _allocate(self, part: Path, shard: Shard) -> None:
        """Take the room of a shard, from others if need be; one process at a time."""
        self.require(shard)
        asked = time.monotonic()
        while True:
            with only_one(self.folder / ".room.lock") as mine:
                if mine and self._has_room(shard.size, force=time.monotonic() - asked > _PATIENCE_S):
                    return self._reserve(part, shard)
            time.sleep(_POLL_S)

    def _reserve(self, part: Path, shard: Shard) -> None:
        try:
            shards.allocate(part, shard.dtype, shard.shape)
        except DependencyError as error:
            raise DependencyError(
                f"{error.what}; a shard of encoded samples takes {shard.size:,} bytes",
                where=str(self.folder),
                hint="Make room there, name another disk (training.feeding.cache) or a limit (cache_gib).",
            ) from None

    def _has_room(self, size: int, *, force: bool) -> bool:
        """Make room for some bytes; with ``force``, also by what others map. True if it is done."""
        files = self._files()
        used = sum(state.st_size for _, state in files)
        lacking = used + size - self.limit if self.limit is not None else size - self._free()
        if lacking <= 0:
            return True
        self.let_go()
        self._sweep()
        oldest = sorted((entry for entry in files if entry[0].suffix == SUFFIX), key=lambda e: e[1].st_mtime)
        for path, state in oldest:
            if lacking > 0 and removed(path, force=force):
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

    def _place(self, shard: Shard) -> Path:
        return self.folder / f"{shard.key}{SUFFIX}"

    def _lock(self, shard: Shard) -> Path:
        return self.folder / f".{shard.key}.lock"

    def _sweep(self) -> None:
        """Remove what killed processes left."""
        for part in self.folder.glob(".*.part"):
            with only_one(self.folder / f".{part.name.split('.')[1]}.lock") as mine:
                if mine:
                    part.unlink(missing_ok=True)
