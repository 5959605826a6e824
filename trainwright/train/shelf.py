"""A split as a row of encoded shards: which of them hold a sample, and where."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.train.cache import Cache, Shard

Pick: TypeAlias = Callable[[slice, NDArray[Any], NDArray[np.int64]], None]

_log = logging.getLogger("trainwright.train")

_POLL_S = 0.05
_GIB = 2**30


class Shelf:
    """The shards of a split in their order, in a cache that holds all of them, or some at a time.

    Args:
        cache: Where they lie.
        shards: All of them.
        samples: Samples of each, in the same order.

    Raises:
        InputError: One alone is larger than the cache may be.
    """

    def __init__(self, cache: Cache, shards: Sequence[Shard], samples: Sequence[int]) -> None:
        cache.require(max(shards, key=lambda shard: shard.size))
        self._cache, self._shards = cache, shards
        self._starts = np.cumsum([0, *samples])
        self.size = sum(shard.size for shard in shards)
        self.whole = self.size <= cache.room
        """Whether all shards have room at the same time."""
        self._maker: ThreadPoolExecutor | None = None
        self._making: Future[None] | None = None

    def __len__(self) -> int:
        """Number of samples."""
        return int(self._starts[-1])

    def fill(self, turn: int, turns: int) -> None:
        """Make all shards, where they all have room; each of the processes of a node makes some.

        Args:
            turn: Number of this process among those of the node: where it begins.
            turns: Number of those.

        Raises:
            DependencyError: There is no room, or the disk fails.
        """
        if not self.whole:
            return
        first = turn * len(self._shards) // turns
        left = [*self._shards[first:], *self._shards[:first]]
        while left := [shard for shard in left if not self._cache.make(shard)]:
            time.sleep(_POLL_S)

    def told_of(self, block: int, largest: int) -> None:
        """Say in the log what it costs when the cache does not hold the split."""
        if not self.whole:
            _log.warning(
                "The encoded split takes %.3g GiB, the cache may take %.3g: shards are made again when they "
                "are needed. training.feeding.block is %s and a shard has up to %s samples; with blocks of "
                "that size, each shard is made about once an epoch.",
                *(self.size / _GIB, self._cache.room / _GIB, f"{block:,}", f"{largest:,}"),
            )

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Begin to make the shards of some ranges of samples [first, last) that are about to be needed.

        Does nothing while the last call's are still being made: what is needed meanwhile is made then.
        """
        if self.whole or (self._making is not None and not self._making.done()):
            return
        if self._making is not None:
            self._making.result()
        ends = np.array([(first, last - 1) for first, last in ranges], np.int64).reshape(-1, 2)
        low, high = np.searchsorted(self._starts, ends.T, side="right") - 1
        wanted = {each for begin, end in zip(low, high, strict=True) for each in range(begin, end + 1)}
        if 2 * sum(self._shards[each].size for each in wanted) > self._cache.room:
            return  # beside those that are in use now there is no room for them
        missing = [self._shards[each] for each in sorted(wanted) if not self._cache.has(self._shards[each])]
        if missing:
            self._maker = self._maker or ThreadPoolExecutor(1, "shards")
            self._making = self._maker.submit(self._make, missing)

    def close(self) -> None:
        """Give up what is being made, and unmap everything."""
        if self._maker is not None:
            self._maker.shutdown(cancel_futures=True)
            self._maker = None
        self._cache.let_go()

    def visit(self, index: NDArray[np.int64], pick: Pick) -> NDArray[np.int64]:
        """Visit the shards of some samples, each once.

        Args:
            index: Numbers of samples, shape (samples,), each in [0, len).
            pick: Is given, for each shard that has any: where its samples come among all of them sorted by
                shard, its array, and their places in it. It keeps no reference to the array.

        Returns:
            Where each sample of ``index`` is among those sorted by shard, shape (samples,).
        """
        kind = np.uint16 if len(self._shards) < 1 << 16 else np.int64  # numpy sorts the former by radix
        owners = (np.searchsorted(self._starts, index, side="right") - 1).astype(kind)
        order = np.argsort(owners, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        owners, index = owners[order], index[order]
        edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        runs = [(int(owners[first]), slice(first, last)) for first, last in itertools.pairwise(edges) if last]
        if not self.whole:  # what is there first: it may have to make room for the rest
            runs.sort(key=lambda run: not self._cache.has(self._shards[run[0]]))
        for owner, run in runs:
            pick(run, self._cache.take(self._shards[owner]), index[run] - self._starts[owner])
        if not self.whole:
            self._cache.let_go()
        return back

    def each(self, pick: Callable[[NDArray[Any]], None]) -> None:
        """Visit all shards in their order; ``pick`` keeps no reference to the array that it is given."""
        for shard in self._shards:
            pick(self._cache.take(shard))
            if not self.whole:
                self._cache.let_go()

    def _make(self, missing: list[Shard]) -> None:
        for shard in missing:
            self._cache.make(shard)
