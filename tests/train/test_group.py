"""How long processes wait for each other: at the start minutes, in a step as told, for a dead one never."""

import os
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import distributed

from trainwright.train.checkpoint.agreement import Circle
from trainwright.train.group import Group, joined, limit_exchanges, wait_for_all

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
        time.sleep(4 * LIMIT_S)
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
            time.sleep(4 * LIMIT_S)
        return found + circle.greatest([group.rank])[0]

    said, _ = pair(tmp_path, both, both)
    assert "Timed out waiting 500ms" in said


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
