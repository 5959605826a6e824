"""How long processes wait for each other: at the start minutes, in a step as told, for a dead one never."""

import os
import socket
import stat
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import distributed, nn
from torch.distributed import distributed_c10d

from trainwright import tables
from trainwright.errors import TransientError
from trainwright.experiment import Mlp
from trainwright.experiment.checkpoints import Checkpointing
from trainwright.launch import causes
from trainwright.train.checkpoint import Checkpoints, committed
from trainwright.train.checkpoint.agreement import Circle
from trainwright.train.checkpoint.writing import Part
from trainwright.train.group import Group, brought, joined, limit_exchanges, wait_for_all
from trainwright.train.rows import Source, fit
from trainwright.train.specification import input_kinds
from trainwright.train.state import State
from trainwright.transforms import Fit

LIMIT_S = 0.5


def pair(folder: Path, first: Callable[[Group], object], second: Callable[[Group], object]) -> list[str]:
    """Fork two processes that join one another, the second one late; return what each said at last."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank, body in enumerate((first, second)):
        child = os.fork()
        if not child:
            try:
                (folder / str(rank)).write_text(said_by(rank, port, body))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return [(folder / str(rank)).read_text() for rank in (0, 1)]


def until_said(folder: Path) -> None:
    """Wait until the first process has said something, which it does when it ends."""
    end = time.monotonic() + 120
    while not (folder / "0").exists() and time.monotonic() < end:
        time.sleep(0.05)


def said_by(rank: int, port: int, body: Callable[[Group], object]) -> str:
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    time.sleep(2 * LIMIT_S * rank)
    try:
        with joined(0, LIMIT_S) as group:
            return f"well: {body(group)}"
    except Exception as error:
        traceback.print_exc()
        return str(error)


def test_before_the_steps_processes_may_be_far_apart_and_in_them_not(tmp_path: Path) -> None:
    def first(group: Group) -> None:
        distributed.barrier()
        limit_exchanges(group)
        distributed.barrier()

    def second(group: Group) -> None:
        time.sleep(2 * LIMIT_S)
        distributed.barrier()
        limit_exchanges(group)
        until_said(tmp_path)
        distributed.barrier()

    said, _ = pair(tmp_path, first, second)
    assert "Timed out waiting 500ms" in said


def test_the_end_of_a_process_is_seen_at_once_by_who_waits_for_it_for_hours(tmp_path: Path) -> None:
    said = pair(tmp_path, wait_for_all, lambda _: "ended early")
    assert "Connection closed by peer" in said[0] or "Connection reset by peer" in said[0]
    assert said[1] == "well: ended early"


def test_a_call_is_waited_for_as_long_as_it_takes_and_numbers_are_not(tmp_path: Path) -> None:
    def slow() -> int:
        time.sleep(2 * LIMIT_S)
        return 7

    def both(group: Group) -> int:
        circle = Circle(group)
        found = circle.first(slow)
        assert circle.all(lambda: group.rank and slow()) == [0, 7]
        if group.rank:
            until_said(tmp_path)
        return found + circle.greatest([group.rank])[0]

    said, _ = pair(tmp_path, both, both)
    assert "Timed out waiting 500ms" in said


def test_every_connection_is_probed_so_that_a_machine_that_is_gone_is_noticed(tmp_path: Path) -> None:
    def probes(_: Group) -> list[tuple[int, ...]]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family != socket.AF_UNIX and one.type == socket.SOCK_STREAM and _connected(one):
                        found.append(_probing(one))
        return found

    for said in pair(tmp_path, probes, probes):
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


def test_a_machine_that_is_gone_is_what_may_pass_and_not_an_error_of_the_program() -> None:
    """As gloo says it when probes are not answered: recorded between two network namespaces."""
    said = (
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.77.0.2]:42651: "
        "Connection timed out. This is typically caused by a remote worker hanging."
    )
    cause = causes.understood(RuntimeError(said))
    assert isinstance(cause.error, TransientError)
    assert (cause.kind, cause.follows) == ("INFRASTRUCTURE", True)


def test_a_save_waits_for_the_slowest_process_beyond_what_torch_waits_for_by_itself(tmp_path: Path) -> None:
    def save(group: Group) -> list[int]:
        distributed_c10d.default_pg_timeout = timedelta(seconds=LIMIT_S)
        keeper = Checkpoints(Checkpointing(every_steps=1), tmp_path / "home", "0001", {}, group)
        finish = keeper._writer.finish

        def slow(*given: object) -> Part:
            time.sleep(4 * LIMIT_S * group.rank)
            return finish(*given)

        keeper._writer.finish = slow  # type: ignore[assignment, method-assign]
        module = nn.Linear(2, 1)
        state = State(module, torch.optim.SGD(module.parameters(), lr=0.1))
        keeper.resume(state)
        state.step = 1
        keeper.saw(state, 0.5, last=True)
        return [name.step for name in committed(tmp_path / "home" / "checkpoints")]

    assert pair(tmp_path, save, save) == ["well: [1]", "well: [1]"]


@pytest.fixture
def few_words(tmp_path: Path) -> Source:
    """A split of two pieces with 6 words each, 12 in all."""
    size = 2 * tables.ROW_GROUP
    tells = [np.array([f"{piece}-{number}" for number in range(6)])[np.arange(size) % 6] for piece in (0, 1)]
    columns = {"id": np.arange(2 * size), "late": np.arange(2 * size) % 2, "word": np.concatenate(tells)}
    roles = {"key": "id", "label": "late"}
    snapshot = tables.write_snapshot(
        tmp_path / "words", {"train": [pa.table(columns)]}, parents={}, roles=roles, rows_per_file=size
    )
    return Source(tmp_path / "words", snapshot, "train", input_kinds(snapshot))


def test_what_each_found_is_added_up_by_the_first_and_known_to_all(tmp_path: Path, few_words: Source) -> None:
    def both(group: Group) -> tuple[list[str], list[int]]:
        transforms, labels = fit(few_words, Mlp(), group)
        return sorted(transforms.categories[0].values), [part.rows for part in labels]

    words = [f"{piece}-{number}" for piece in (0, 1) for number in range(6)]
    said = f"well: {(words, [2 * tables.ROW_GROUP] * 2)}"
    assert pair(tmp_path, both, both) == [said, said]


def test_what_is_wrong_with_all_that_was_found_is_said_by_all_and_none_waits_for_ever(
    tmp_path: Path, few_words: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fit.__init__, "__defaults__", ("standard", 8))

    def both(group: Group) -> object:
        return fit(few_words, Mlp(), group)

    said = "column 'word' has more than 8 different values"
    assert [words.splitlines()[0] for words in pair(tmp_path, both, both)] == [said, said]


def test_what_is_brought_comes_one_after_another_by_rank(tmp_path: Path) -> None:
    def both(group: Group) -> list[int]:
        return list(brought(7 + group.rank, group))

    assert pair(tmp_path, both, both) == ["well: [7, 8]", "well: []"]


def test_a_process_alone_waits_for_nobody(alone: Group) -> None:
    wait_for_all(alone)
    limit_exchanges(alone)
    assert Circle(alone).greatest([3, 4]) == [3, 4]
    assert Circle(alone).first(lambda: "said") == "said"


@pytest.fixture(autouse=True)
def _alone_comes_last(request: pytest.FixtureRequest) -> None:
    """Processes are forked from one that has no group, and so no threads of one."""
    if "alone" not in request.fixturenames:
        assert not distributed.is_initialized()
