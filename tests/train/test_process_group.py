"""How long processes wait for each other: at the start minutes, in a step as told, for a dead one never."""

import os
import socket
import stat
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import distributed, nn
from torch.distributed import distributed_c10d

from tests.train import clean
from trainwright import tables
from trainwright.errors import TransientError
from trainwright.experiment import Mlp
from trainwright.experiment.training import Checkpointing
from trainwright.launch.agent import rank_errors
from trainwright.train.checkpoint import Checkpointer, checkpointer, committed, tensor_files
from trainwright.train.checkpoint.state import TrainState
from trainwright.train.config import input_kinds
from trainwright.train.feeding.rows import RowSource, fit
from trainwright.train.process_group import (
    Coordinator,
    Ranks,
    barrier,
    gather_to_leader,
    process_group,
    set_step_timeout,
)
from trainwright.transforms import Fit

LIMIT_S = 0.5


def pair(folder: Path, first: Callable[[Ranks], object], second: Callable[[Ranks], object]) -> list[str]:
    """Start two processes that join one another, the second one late; return what each said at last."""
    started = [
        clean.start(say, folder / str(rank), body, **place)
        for rank, (place, body) in enumerate(zip(clean.places((0, 2), (1, 2)), (first, second), strict=True))
    ]
    assert [clean.ended(process) for process in started] == [0, 0]
    return [(folder / str(rank)).read_text() for rank in (0, 1)]


def say(file: Path, body: Callable[[Ranks], object]) -> None:
    """Be one of the two processes, and leave what it said at last in a file."""
    try:
        file.write_text(said_by(int(os.environ["RANK"]), body))
    finally:
        os._exit(0)


def until_said(folder: Path) -> None:
    """Wait until the first process has said something, which it does when it ends."""
    end = time.monotonic() + 120
    while not (folder / "0").exists() and time.monotonic() < end:
        time.sleep(0.05)


def said_by(rank: int, body: Callable[[Ranks], object]) -> str:
    time.sleep(2 * LIMIT_S * rank)
    try:
        with process_group(0, LIMIT_S) as group:
            return f"well: {body(group)}"
    except Exception as error:
        traceback.print_exc()
        return str(error)


def _two_barriers(folder: Path, group: Ranks) -> None:
    if group.rank:
        time.sleep(2 * LIMIT_S)
    distributed.barrier()
    set_step_timeout(group)
    if group.rank:
        until_said(folder)
    distributed.barrier()


def test_collective_limit_is_long_before_the_steps_and_short_in_them(tmp_path: Path) -> None:
    both = partial(_two_barriers, tmp_path)
    said, _ = pair(tmp_path, both, both)
    assert "Timed out waiting 500ms" in said


def _end_early(_: Ranks) -> str:
    return "ended early"


def test_barrier_notices_the_end_of_a_process_at_once(tmp_path: Path) -> None:
    said = pair(tmp_path, barrier, _end_early)
    assert "Connection closed by peer" in said[0] or "Connection reset by peer" in said[0]
    assert said[1] == "well: ended early"


def _slow() -> int:
    time.sleep(2 * LIMIT_S)
    return 7


def _call_and_exchange(folder: Path, group: Ranks) -> int:
    circle = Coordinator(group)
    found = circle.on_leader(_slow)
    assert circle.on_all(lambda: group.rank and _slow()) == [0, 7]
    if group.rank:
        until_said(folder)
    return found + circle.maximum([group.rank])[0]


def test_coordinator_waits_for_calls_but_limits_exchanges_of_numbers(tmp_path: Path) -> None:
    both = partial(_call_and_exchange, tmp_path)
    said, _ = pair(tmp_path, both, both)
    assert "Timed out waiting 500ms" in said


def _probes(_: Ranks) -> list[tuple[int, ...]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family != socket.AF_UNIX and one.type == socket.SOCK_STREAM and _connected(one):
                    found.append(_probing(one))
    return found


def test_every_connection_has_tcp_keepalive(tmp_path: Path) -> None:
    for said in pair(tmp_path, _probes, _probes):
        assert said.count("(1, 60, 10, 6)") >= 2, "to the other process, and to the store of their addresses"
        assert "(0, " not in said


def _connected(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


def _probing(one: socket.socket) -> tuple[int, ...]:
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    told = (one.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    return one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *told


def test_lost_machine_is_a_transient_error() -> None:
    """As gloo says it when probes are not answered: recorded between two network namespaces."""
    said = (
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.77.0.2]:42651: "
        "Connection timed out. This is typically caused by a remote worker hanging."
    )
    cause = rank_errors.classify(RuntimeError(said))
    assert isinstance(cause.error, TransientError)
    assert (cause.kind, cause.follows) == ("INFRASTRUCTURE", True)


def _save(folder: Path, group: Ranks) -> list[int]:
    distributed_c10d.default_pg_timeout = timedelta(seconds=LIMIT_S)
    keeper = Checkpointer(Checkpointing(every_steps=1), folder / "home", "0001", {}, group)

    def slow(*arguments: Any) -> Any:
        time.sleep(4 * LIMIT_S * group.rank)
        return tensor_files.write_tensors(*arguments)

    checkpointer.write_tensors = slow  # type: ignore[assignment]
    module = nn.Linear(2, 1)
    state = TrainState(module, torch.optim.SGD(module.parameters(), lr=0.1))
    keeper.resume(state)
    state.step = 1
    keeper.after_step(state, 0.5, last=True)
    return [name.step for name in committed(folder / "home" / "checkpoints")]


def test_save_waits_for_the_slowest_process(tmp_path: Path) -> None:
    both = partial(_save, tmp_path)
    assert pair(tmp_path, both, both) == ["well: [1]", "well: [1]"]


@pytest.fixture
def few_words(tmp_path: Path) -> RowSource:
    """A split of two pieces with 6 words each, 12 in all."""
    size = 2 * tables.ROW_GROUP
    tells = [np.array([f"{piece}-{number}" for number in range(6)])[np.arange(size) % 6] for piece in (0, 1)]
    columns = {"id": np.arange(2 * size), "late": np.arange(2 * size) % 2, "word": np.concatenate(tells)}
    roles = {"key": "id", "label": "late"}
    snapshot = tables.write_snapshot(
        tmp_path / "words", {"train": [pa.table(columns)]}, parents={}, roles=roles, rows_per_file=size
    )
    return RowSource(tmp_path / "words", snapshot, "train", input_kinds(snapshot))


def _fit(words: RowSource, group: Ranks) -> tuple[list[str], list[int]]:
    transforms, labels = fit(words, Mlp(), group)
    return sorted(transforms.categories[0].values), [part.rows for part in labels]


def test_fit_of_two_processes_is_merged_and_shared(tmp_path: Path, few_words: RowSource) -> None:
    words = [f"{piece}-{number}" for piece in (0, 1) for number in range(6)]
    said = f"well: {(words, [2 * tables.ROW_GROUP] * 2)}"
    both = partial(_fit, few_words)
    assert pair(tmp_path, both, both) == [said, said]


def _fit_few(words: RowSource, group: Ranks) -> object:
    Fit.__init__.__defaults__ = ("standard", 8)  # type: ignore[misc]
    return fit(words, Mlp(), group)


def test_error_while_merging_is_raised_on_all_processes(tmp_path: Path, few_words: RowSource) -> None:
    said, both = "column 'word' has more than 8 different values", partial(_fit_few, few_words)
    assert [words.splitlines()[0] for words in pair(tmp_path, both, both)] == [said, said]


def _bring(group: Ranks) -> list[int]:
    return list(gather_to_leader(7 + group.rank, group))


def test_gather_to_leader_yields_objects_by_rank(tmp_path: Path) -> None:
    assert pair(tmp_path, _bring, _bring) == ["well: [7, 8]", "well: []"]


def test_single_process_does_not_wait(alone: Ranks) -> None:
    barrier(alone)
    set_step_timeout(alone)
    assert Coordinator(alone).maximum([3, 4]) == [3, 4]
    assert Coordinator(alone).on_leader(lambda: "said") == "said"
