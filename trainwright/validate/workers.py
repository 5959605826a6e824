"""Worker processes, forked from this one after everything is loaded: each is ready in milliseconds.

A fork takes the calling thread alone along. numpy's and Arrow's threads know of that; TensorFlow starts none
when it is loaded. A worker is sent the number of a task and sends back what came of it, so nothing but
results is pickled. It ends when its pipe is closed, and so also when this process dies.
"""

import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError, InternalError, TrainwrightError, in_our_words

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
"""Tasks that a worker has at a time, so that it never waits for this process."""

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection


@dataclass(frozen=True)
class _Failure:
    """What went wrong in a worker, in a form that every process can read."""

    kind: type[TrainwrightError]
    what: str
    where: str
    hint: str

    @classmethod
    def of(cls, error: BaseException) -> "_Failure":
        told = in_our_words(error)
        if isinstance(told, TrainwrightError):
            return cls(type(told), told.what, told.where, told.hint)
        if isinstance(error, MemoryError | pa.ArrowMemoryError):
            what = f"a worker process has no memory left: {error}"
            return cls(DependencyError, what, "", "Give the step more memory, or set fewer workers.")
        traceback.print_exception(error, file=sys.stderr)
        return cls(InternalError, f"{type(error).__name__}: {error}", "a worker process", "")

    def error(self) -> TrainwrightError:
        return self.kind(self.what, where=self.where, hint=self.hint)


def run_all(
    work: Callable[[Task], Result], tasks: Sequence[Task], workers: int, named: Callable[[Task], str] = repr
) -> Iterator[Result]:
    """Do all tasks and give what comes of them, in the order of the tasks.

    Args:
        work: Does a task. It and the tasks are taken along by the fork; results are pickled.
        tasks: What is to be done.
        workers: Processes; with one, or one task, everything is done in this one.
        named: Says what a task is about, should its worker die.

    Raises:
        TrainwrightError: Of the kind, and with the words, that the first worker to fail ended with.
        DependencyError: A worker died.
    """
    count = min(workers, len(tasks))
    if count < 2:  # noqa: PLR2004
        yield from map(work, tasks)
        return
    crew: list[_Worker] = []
    try:
        with _frozen():
            for _ in range(count):
                crew.append(_start(work, tasks, [member.pipe for member in crew]))
        yield from _in_order(crew, tasks, named)
    finally:
        _dismiss(crew)


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the search for garbage off what is loaded, so that the processes go on sharing its memory."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _start(work: Callable[[Any], Any], tasks: Sequence[Any], others: Sequence[Connection]) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, [*others, ours], work, tasks), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(
    pipe: Connection, foreign: Sequence[Connection], work: Callable[[Any], Any], tasks: Sequence[Any]
) -> None:
    """Live as a worker: do what is asked for until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in foreign:
        other.close()
    pa.set_cpu_count(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            place = pipe.recv()
            try:
                answer: object = work(tasks[place])
            except Exception as error:
                answer = _Failure.of(error)
            pipe.send((place, answer))


def _in_order(crew: Sequence[_Worker], tasks: Sequence[Any], named: Callable[[Any], str]) -> Iterator[Any]:
    waiting, done = iter(range(len(tasks))), dict[int, Any]()
    given: dict[Connection, list[int]] = {worker.pipe: [] for worker in crew}
    for _ in range(_AHEAD):
        for worker in crew:
            _give(worker.pipe, waiting, given)
    for place in range(len(tasks)):
        while place not in done:
            for pipe in wait([pipe for pipe, places in given.items() if places]):
                number, answer = _answer(pipe, crew, [named(tasks[n]) for n in given[pipe]])  # type: ignore[arg-type,index]
                given[pipe].remove(number)  # type: ignore[index]
                done[number] = answer
                _give(pipe, waiting, given)  # type: ignore[arg-type]
        yield done.pop(place)


def _give(pipe: Connection, waiting: Iterator[int], given: dict[Connection, list[int]]) -> None:
    place = next(waiting, None)
    if place is not None:
        given[pipe].append(place)
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: told when its answer is missed
            pipe.send(place)


def _answer(pipe: Connection, crew: Sequence[_Worker], asked: Sequence[str]) -> tuple[int, Any]:
    try:
        place, answer = pipe.recv()
    except (EOFError, ConnectionResetError):
        (worker,) = [worker for worker in crew if worker.pipe is pipe]
        raise _died(worker.process, asked[0]) from None
    if isinstance(answer, _Failure):
        raise answer.error()
    return place, answer


def _died(process: BaseProcess, task: str) -> DependencyError:
    process.join(_PATIENCE_S)
    code = process.exitcode
    how = (
        f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    )
    return DependencyError(
        f"a worker process {how}",
        where=task,
        hint="SIGKILL mostly means that memory ran out: give the step more, or set fewer workers.",
    )


def _dismiss(crew: Sequence[_Worker]) -> None:
    """End every worker, at once if it is at work."""
    for worker in crew:
        worker.pipe.close()
        if worker.process.is_alive():
            worker.process.terminate()
    for worker in crew:
        worker.process.join(_PATIENCE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))
