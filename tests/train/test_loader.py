"""Batches that are prepared ahead: the same for any number of processes, after a resume, in any cache."""

import gc
import threading
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.train.problems import source
from trainwright.errors import InputError
from trainwright.experiment import Mlp
from trainwright.experiment.training import Feeding
from trainwright.train.feeding.loader import Batch, Loader, SampleOrder, SampleSource
from trainwright.train.feeding.rows import EncodedRows, encode, fit
from trainwright.train.process_group import Ranks

SIZE = 512


@pytest.fixture(scope="module")
def rows(training_set: Path, tmp_path_factory: pytest.TempPathFactory, alone: Ranks) -> EncodedRows:
    transforms, labels = fit(source(training_set), Mlp(), alone)
    return encode(source(training_set), transforms, labels, tmp_path_factory.mktemp("cache"), alone)


def order(rows: SampleSource) -> SampleOrder:
    return SampleOrder(len(rows), SIZE, 8, seed=3, block=64, window=200)


def same(one: Batch, two: Batch) -> bool:
    tensors = zip((*one.inputs, one.target, one.ids), (*two.inputs, two.target, two.ids), strict=True)
    return all(torch.equal(first, second) for first, second in tensors)


def joined(parts: Iterable[Batch]) -> Batch:
    every = list(parts)
    inputs = tuple(torch.cat(each) for each in zip(*(part.inputs for part in every), strict=True))
    target, weight, ids = (
        torch.cat([getattr(part, name) for part in every]) for name in ("target", "weight", "ids")
    )
    return Batch(inputs, target, weight, ids)


def taken(samples: SampleSource, count: int, parts: int = 1, first: int = 0) -> list[Batch]:
    """The global batches of some steps, as several processes get them."""
    loaders = [Loader(samples, order(samples), part, parts) for part in range(parts)]
    for loader in loaders:
        loader.begin(first)
    found = [joined(loader.next() for loader in loaders) for _ in range(count)]
    for loader in loaders:
        loader.close()
    return found


def threads() -> int:
    return sum(thread.name.startswith("batches") for thread in threading.enumerate())


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_any_number_of_processes_gets_the_same_batches(parts: int, rows: EncodedRows) -> None:
    alone, shared = taken(rows, 25), taken(rows, 25, parts)
    assert all(same(one, two) for one, two in zip(alone, shared, strict=True))
    epoch = np.concatenate([batch.ids.numpy() for batch in alone[: order(rows).batches]])
    assert sorted(epoch.tolist()) == list(range(len(rows)))


@pytest.mark.covers("F18")
def test_resume_at_any_step_with_other_processes_gives_the_same_batches(
    rows: EncodedRows,
) -> None:
    undisturbed = taken(rows, 30)
    for step in (1, 11, 12, 13, 24, 29):
        resumed = taken(rows, 30 - step, parts=4 if step % 2 else 2, first=step)
        assert all(same(one, two) for one, two in zip(undisturbed[step:], resumed, strict=True))


def test_a_cache_that_holds_one_shard_gives_the_same_batches(
    training_set: Path, tmp_path: Path, rows: EncodedRows, alone: Ranks
) -> None:
    transforms, labels = fit(source(training_set), Mlp(), alone)
    largest = rows.shards.size // len(labels)
    feeding = Feeding(cache_gib=1.5 * largest / 2**30)
    tight = encode(source(training_set), transforms, labels, tmp_path, alone, feeding)
    assert not tight.shards.cached_whole
    assert all(same(one, two) for one, two in zip(taken(rows, 15), taken(tight, 15, parts=2), strict=True))
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".shard"]) == 1


@pytest.mark.covers("F17")
def test_loader_restarts_at_any_step_and_keeps_one_thread(rows: EncodedRows) -> None:
    batches, before = taken(rows, 20), threads()
    loader = Loader(rows, order(rows), 0, 1)
    for step in (0, 7, 3, 19, 0):
        loader.begin(step)
        assert all(same(loader.next(), batch) for batch in batches[step : step + 4])
        assert threads() == before + 1
    loader.close()
    loader.close()
    assert threads() == before
    assert same(loader.next(), batches[0])
    loader.close()


def test_garbage_collected_loader_ends_its_thread(rows: EncodedRows) -> None:
    before = threads()
    loader = Loader(rows, order(rows), 0, 1)
    loader.next()
    assert threads() == before + 1
    del loader
    gc.collect()
    for _ in range(6000):
        if threads() == before:
            break
        time.sleep(0.02)
    assert threads() == before


def test_skipped_batches_stay_skipped_after_a_restart(rows: EncodedRows) -> None:
    batches = taken(rows, 12)
    with Loader(rows, order(rows), 0, 1) as loader:
        loader.begin(2, skip=frozenset({4, 5, 7}))
        left = [batches[number] for number in (2, 3, 6, 8, 9, 10)]
        assert all(same(loader.next(), batch) for batch in left)
        assert loader.order.position(7) == 10
        loader.begin(4)
        assert same(loader.next(), batches[6])


class Counting:
    """Samples that count how often they are taken, and can break."""

    def __init__(self, rows: EncodedRows, broken: int = 10**9) -> None:
        self._rows, self._broken, self.taken = rows, broken, 0

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, index: NDArray[np.int64]) -> Batch:
        if self.taken == self._broken:
            raise InputError(f"batch {self.taken} cannot be read")
        self.taken += 1
        return self._rows.take(index)


def test_loader_prepares_at_most_prefetch_batches_ahead(rows: EncodedRows) -> None:
    samples = Counting(rows)
    with Loader(samples, order(rows), 0, 1, prefetch=3) as loader:
        loader.begin(0)
        for expected in (3, 4, 5):
            for _ in range(6000):
                if samples.taken >= expected:
                    break
                time.sleep(0.01)
            time.sleep(0.05)
            assert samples.taken == expected
            loader.next()


def test_prefetch_error_is_raised_by_the_step_that_needs_the_batch(rows: EncodedRows) -> None:
    with Loader(Counting(rows, broken=3), order(rows), 0, 1, prefetch=8) as loader:
        assert all(same(loader.next(), batch) for batch in islice(taken(rows, 3), 3))
        for _ in range(2):
            with pytest.raises(InputError, match="batch 3 cannot be read"):
                loader.next()
