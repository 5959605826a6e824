"""Shards on a disk: made once, verified, never more than allowed, whatever happens to who makes them."""

import gc
import logging
import os
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
from trainwright.train.feeding.cache import SUFFIX, ShardCache, ShardedSplit, ShardSpec
from trainwright.train.feeding.shard_file import HEADER_SIZE

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


def test_two_processes_make_each_shard_once_and_share_the_work(tmp_path: Path) -> None:
    processes = [started(FILL, tmp_path, 12, 0.05, turn, 2) for turn in range(2)]
    for process in processes:
        ended(process)
    made = [int(line) for line in (tmp_path / "made").read_text().split()]
    assert sorted(made) == list(range(12))
    assert names(tmp_path / "cache") == sorted(f"s{number}{SUFFIX}" for number in range(12))


def test_what_a_killed_process_was_making_is_made_again(tmp_path: Path) -> None:
    process = started(FILL, tmp_path, 3, 60, 0, 1)
    assert process.stdout
    assert process.stdout.readline() == "making 0\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert any(name.endswith(".part") for name in names(tmp_path / "cache"))
    ended(started(FILL, tmp_path, 3, 0, 0, 1))
    assert names(tmp_path / "cache") == [f"s{number}{SUFFIX}" for number in range(3)]


def test_what_a_killed_process_left_takes_no_room_for_good(tmp_path: Path) -> None:
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
def test_a_damaged_shard_is_thrown_away_and_made_again(
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


def test_a_disk_that_damages_whatever_is_written_is_an_error(tmp_path: Path) -> None:
    class Failing(ShardCache):
        def _opened(self, shard: ShardSpec) -> int:
            opened = super()._opened(shard)
            flip(tmp_path / f"{shard.key}{SUFFIX}")
            return opened

    with pytest.raises(DependencyError, match="encoded 3 times is damaged each time"):
        Failing(tmp_path).take(shard(1))


@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_folder_never_takes_more_than_allowed_and_gives_the_same(most: int, tmp_path: Path) -> None:
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


def test_the_least_recently_used_shard_goes_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 3 * shard(0).size)
    for number in (0, 1, 2):
        cache.take(shard(number))
        time.sleep(0.02)
    cache.unmap()
    cache.take(shard(0))
    cache.unmap()
    cache.take(shard(3))
    assert names(tmp_path) == [f"s{number}{SUFFIX}" for number in (0, 2, 3)]


def test_a_shard_that_another_process_maps_is_not_the_one_that_goes(tmp_path: Path) -> None:
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


def test_who_maps_a_shard_keeps_it_even_when_there_is_no_other_room(tmp_path: Path) -> None:
    """Nothing waits for ever: a mapping outlives its file."""
    mapping, other = (ShardCache(tmp_path, shard(0).size) for _ in range(2))
    array = mapping.take(shard(0))
    assert right(other.take(shard(1)), 1)
    assert names(tmp_path) == [f"s1{SUFFIX}"]
    assert right(array, 0)
    assert right(mapping.take(shard(0)), 0)


def test_many_in_a_cache_for_one_all_get_on(tmp_path: Path) -> None:
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


def test_a_shard_larger_than_the_cache_is_refused_with_both_sizes(tmp_path: Path) -> None:
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


def test_a_full_disk_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    ended(started(FULL, tmp_path, 1, 0))


def test_mappings_that_are_let_go_leave_nothing_open(tmp_path: Path) -> None:
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


def test_memory_is_flat_however_much_larger_the_data_is(tmp_path: Path) -> None:
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


def test_shards_that_are_about_to_be_needed_are_made_meanwhile(tmp_path: Path) -> None:
    shards = [shard(number) for number in range(9)]
    shelf = ShardedSplit(ShardCache(tmp_path, 8 * shards[0].size), shards, [ROWS] * 9)
    shelf.expect([(2 * ROWS + 5, 4 * ROWS + 1), (7 * ROWS, 7 * ROWS + 1)])
    for _ in range(6000):
        if len(names(tmp_path)) == 4 and not [name for name in names(tmp_path) if name.startswith(".")]:
            break
        time.sleep(0.02)
    assert names(tmp_path) == [f"s{number}{SUFFIX}" for number in (2, 3, 4, 7)]
    shelf.close()


def test_what_goes_wrong_while_shards_are_made_ahead_is_raised(tmp_path: Path) -> None:
    def broken(number: int) -> None:
        raise InputError(f"shard {number} cannot be made")

    shards = [shard(number, seen=broken) for number in range(9)]
    shelf = ShardedSplit(ShardCache(tmp_path, 8 * shards[0].size), shards, [ROWS] * 9)

    def expect() -> None:
        for _ in range(6000):
            shelf.expect([(2 * ROWS, 3 * ROWS)])
            time.sleep(0.02)

    with pytest.raises(InputError, match="shard 2 cannot be made"):
        expect()
    assert names(tmp_path) == []
    shelf.close()
