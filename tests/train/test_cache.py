"""Shards on a disk: made once, verified, never more than allowed, whatever happens to who makes them."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainwright.errors import DependencyError, InputError
from trainwright.train.feeding.cache import HEADER_SIZE, SUFFIX, ShardCache, ShardedSplit, ShardSpec

ROWS = 1000


def shard(number: int, rows: int = ROWS, seen: Callable[[int], object] = abs) -> ShardSpec:
    """A shard whose array holds its number and that of the row."""

    def make() -> Iterator[NDArray[Any]]:
        seen(number)
        for part in np.array_split(np.arange(rows, dtype=np.int32), 3):
            yield np.column_stack([np.full_like(part, number), part])

    return ShardSpec(f"s{number}", "<i4", (rows, 2), make)


def right(array: NDArray[Any], number: int) -> bool:
    return bool((array == np.column_stack([np.full(len(array), number), np.arange(len(array))])).all())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


PROGRAM = """
import sys, time
from pathlib import Path
from tests.train.test_cache import ShardCache, ShardedSplit, right, shard
folder, count, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])

def seen(number):
    with (folder / "made").open("a") as log:
        log.write(f"{number}\\n")
    print("making", number, flush=True)
    time.sleep(pause)

"""
FILL = """
shards = [shard(number, seen=seen) for number in range(count)]
shelf = ShardedSplit(ShardCache(folder / "cache"), shards, [1000] * count)
shelf.encode_all(int(sys.argv[4]), int(sys.argv[5]))
numbers = iter(range(count))
def check(array):
    assert right(array, next(numbers))
shelf.each(check)
"""


def started(program: str, folder: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM + program, str(folder), *map(str, arguments)]
    paths = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def test_two_processes_encode_each_shard_once_and_share_the_work(tmp_path: Path) -> None:
    processes = [started(FILL, tmp_path, 12, 0.05, turn, 2) for turn in range(2)]
    for process in processes:
        ended(process)
    made = [int(line) for line in (tmp_path / "made").read_text().split()]
    assert sorted(made) == list(range(12))
    assert names(tmp_path / "cache") == sorted(f"s{number}{SUFFIX}" for number in range(12))


def test_shard_of_a_killed_process_is_encoded_again(tmp_path: Path) -> None:
    process = started(FILL, tmp_path, 3, 60, 0, 1)
    assert process.stdout
    assert process.stdout.readline() == "making 0\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert any(name.endswith(".part") for name in names(tmp_path / "cache"))
    ended(started(FILL, tmp_path, 3, 0, 0, 1))
    assert names(tmp_path / "cache") == [f"s{number}{SUFFIX}" for number in range(3)]


def test_partial_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    process = started(FILL, tmp_path, 1, 60, 0, 1)
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ShardCache(tmp_path / "cache")
    assert names(tmp_path / "cache") == []


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE + 4321] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: os.truncate(path, 10),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_bytes(b'{"dtype": "<i4"}'.ljust(HEADER_SIZE)),
    ],
    ids=["a flipped bit", "cut at the end", "cut in its head", "zeros", "another head"],
)
def test_damaged_shard_is_removed_and_encoded_again(
    damage: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ShardCache(tmp_path).take(shard(1))
    damage(tmp_path / f"s1{SUFFIX}")
    made: list[int] = []
    with caplog.at_level(logging.WARNING, "trainwright.train"):
        assert right(ShardCache(tmp_path).take(shard(1, seen=made.append)), 1)
    assert made == [1]
    assert "s1.shard is damaged" in caplog.text
    assert right(ShardCache(tmp_path).take(shard(1, seen=made.append)), 1)
    assert made == [1]


def test_disk_that_damages_every_shard_raises_dependency_error(tmp_path: Path) -> None:
    class Failing(ShardCache):
        def _opened(self, shard: ShardSpec) -> int:
            opened = super()._opened(shard)
            flip(tmp_path / f"{shard.key}{SUFFIX}")
            return opened

    with pytest.raises(DependencyError, match="encoded 3 times is damaged each time"):
        Failing(tmp_path).take(shard(1))


@pytest.mark.parametrize("most", [1, 2, 7])
def test_cache_stays_within_its_limit_and_returns_the_same_rows(most: int, tmp_path: Path) -> None:
    shards = [shard(number) for number in range(20)]
    shelf = ShardedSplit(ShardCache(tmp_path, most * shards[0].size + 100), shards, [ROWS] * 20)
    assert not shelf.cached_whole
    found, sizes = np.empty((64, 2), np.int32), []

    def pick(where: slice, array: NDArray[Any], places: NDArray[np.int64]) -> None:
        found[where] = array[places]
        sizes.append(size(tmp_path))

    for turn in range(6):
        index = np.random.default_rng(turn).integers(0, 20 * ROWS, 64)
        rows = found[shelf.visit(index, pick)]
        assert rows.tolist() == np.column_stack([index // ROWS, index % ROWS]).tolist()
    assert max(sizes) == most * shards[0].size


def test_advised_size_of_the_cache_holds_the_split(tmp_path: Path) -> None:
    shards = [shard(number, 1_080) for number in range(7)]
    split = ShardedSplit(ShardCache(tmp_path, 2 * shards[0].size), shards, [1_080] * 7)
    said = split.describe({"input_needed_per_s": 2.0, "input_given_per_s": 1.0}, 0.5)
    advised = re.search(r"cache_gib to (\S+)", said)
    assert advised
    assert float(advised[1]) * 2**30 >= split.size
    fast = split.describe({"input_needed_per_s": 2.0, "input_given_per_s": 20.0}, 0.5)
    assert "Put" not in fast
    assert "set training" not in fast


def test_least_recently_used_shard_is_evicted_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 3 * shard(0).size)
    for number in (0, 1, 2):
        cache.take(shard(number))
        time.sleep(0.02)
    cache.unmap()
    cache.take(shard(0))
    cache.unmap()
    cache.take(shard(3))
    assert names(tmp_path) == [f"s{number}{SUFFIX}" for number in (0, 2, 3)]


def test_shard_mapped_by_another_process_is_not_evicted(tmp_path: Path) -> None:
    mapping, other = (ShardCache(tmp_path, 2 * shard(0).size) for _ in range(2))
    mapping.take(shard(0))
    time.sleep(0.02)
    other.take(shard(1))
    other.take(shard(2))
    assert names(tmp_path) == [f"s{number}{SUFFIX}" for number in (0, 2)]
    mapping.unmap()
    gc.collect()
    other.take(shard(3))
    other.take(shard(4))
    assert names(tmp_path) == [f"s{number}{SUFFIX}" for number in (3, 4)]


def test_mapping_survives_forced_eviction_of_its_shard(tmp_path: Path) -> None:
    """Nothing waits for ever: a mapping outlives its file."""
    mapping, other = (ShardCache(tmp_path, shard(0).size) for _ in range(2))
    array = mapping.take(shard(0))
    assert right(other.take(shard(1)), 1)
    assert names(tmp_path) == [f"s1{SUFFIX}"]
    assert right(array, 0)
    assert right(mapping.take(shard(0)), 0)


def test_threads_sharing_a_cache_of_one_shard_all_finish(tmp_path: Path) -> None:
    """Each removes what another has just made; nobody fails by it, and nobody waits for ever."""
    wrong: list[int] = []

    def work(first: int) -> None:
        cache = ShardCache(tmp_path, shard(0).size)
        for turn in range(6):
            number = (first + 3 * turn) % 5
            if not right(cache.take(shard(number)), number):
                wrong.append(number)
            cache.unmap()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    assert len(names(tmp_path)) == 1


def test_shard_larger_than_the_cache_is_rejected_with_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one shard takes 12,096 bytes, and the whole cache may take 5,000"):
        ShardedSplit(ShardCache(tmp_path, 5000), [shard(0, 10), shard(1)], [10, ROWS])


FULL = """
import resource
from trainwright.errors import DependencyError
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
cache = ShardCache(folder / "cache")
try:
    cache.take(shard(0, seen=seen))
except DependencyError as error:
    assert error.code == 21 and "no room to write" in error.what and "takes 12,096 bytes" in error.what, error
    assert error.where == str(folder / "cache"), error.where
    assert not list((folder / "cache").iterdir()) and not (folder / "made").exists()
else:
    raise AssertionError
"""


def test_full_disk_raises_dependency_error_before_encoding(tmp_path: Path) -> None:
    ended(started(FULL, tmp_path, 1, 0))


def test_unmapped_shards_leave_no_open_file(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [cache.take(shard(number)) for number in range(30)]
    assert len(os.listdir("/proc/self/fd")) == before + 30
    cache.unmap()
    assert all(right(array, number) for number, array in enumerate(arrays))
    del arrays
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


FLAT = """
import numpy as np
big = 400_000
shards = [shard(number, big) for number in range(60)]
shelf = ShardedSplit(ShardCache(folder / "cache", 4 * shards[0].size), shards, [big] * len(shards))

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

shelf.each(lambda array: None if right(array[:9], int(array[0, 0])) else sys.exit("wrong"))
once = peak()
for _ in range(2):
    shelf.each(lambda array: array.sum())
assert shelf.size > 190e6
print("grew", peak() - once, flush=True)
"""


def test_memory_is_flat_when_data_exceeds_the_cache(tmp_path: Path) -> None:
    process = started(FLAT, tmp_path, 0, 0)
    told, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert int(told.split()[-1]) < 20e6


def test_threads_share_one_mapping(tmp_path: Path) -> None:
    cache, made, found = ShardCache(tmp_path), list[int](), list[NDArray[Any]]()
    slow = shard(0, seen=lambda number: (time.sleep(0.1), made.append(number)))
    threads = [threading.Thread(target=lambda: found.append(cache.take(slow))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [0]
    assert all(right(array, 0) for array in found)
    assert len(found) == 4
