"""A pool of worker processes that gives results in the order of the tasks, and survives no parent.

``multiprocessing.Pool`` and ``ProcessPoolExecutor`` hang or lose the cause when a worker is killed, and leave
workers behind when the parent is. Here a dead worker is an error that names its task, and a worker ends when
its pipe is closed, so also when the parent dies.
"""

import gc
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError, InternalError, TrainwrightError, in_our_words, traceback_of

Task = TypeVar("Task")
Result = TypeVar("Result")

_GRACE_S = 5.0


@dataclass(frozen=True)
class Pool(Generic[Task, Result]):
    """Worker processes for one kind of task.

    Workers are forked from this process after everything is loaded: each is ready in milliseconds, and
    ``work`` and the tasks need no pickle. A fork copies the calling thread alone: numpy and Arrow handle
    that, the threads of storage clients do not. Where those have run, name modules in ``preload``: workers
    then come from a fork server without threads, and ``work`` and the tasks are pickled.

    Attributes:
        work: Does a task. Its results are pickled.
        processes: Worker processes; with one, or one task, this process does everything if ``inline``.
        describe: Names a task in errors.
        died: Error to raise when a worker dies.
        threads: Arrow's threads in each worker.
        ahead: Tasks that a worker has at a time; with two, it never waits for this process.
        preload: Modules that a fork server loads.
    """

    work: Callable[[Task], Result]
    processes: int
    describe: Callable[[Task], str] = repr
    died: type[TrainwrightError] = DependencyError
    threads: int = 1
    ahead: int = 2
    preload: Sequence[str] = ()
    inline: bool = True

    def run(self, tasks: Sequence[Task]) -> Iterator[Result]:
        """Do all tasks and yield their results in the order of the tasks.

        After a failure no further task starts, and those in progress are completed: so the error is always
        the one of the first task that fails, however many workers there are.

        Raises:
            TrainwrightError: The error of the first task that failed, with its class and text.
        """
        count = min(self.processes, len(tasks))
        if count < 2 and self.inline:  # noqa: PLR2004
            yield from map(self.work, tasks)
            return
        workers: list[_Worker] = []
        try:
            gc.freeze()  # forked processes then share what is loaded, as the collector does not write to it
            for _ in range(count):
                workers.append(self._start(tasks, [worker.pipe for worker in workers]))
            gc.unfreeze()
            yield from _Run(self, tasks, workers).results()
        finally:
            _stop(workers)

    def _start(self, tasks: Sequence[Task], others: Sequence[Connection]) -> "_Worker":
        context: Any = multiprocessing.get_context("forkserver" if self.preload else "fork")
        if self.preload:
            context.set_forkserver_preload(list(self.preload))
        ours, theirs = context.Pipe()
        inherited = [] if self.preload else [*others, ours]
        arguments = (theirs, inherited, self.work, tasks, self.threads)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    tasks: list[int] = field(default_factory=list)
    """Places of its tasks, in order."""


@dataclass(frozen=True)
class TaskFailure:
    """An error of a worker, in a form that every process can unpickle."""

    kind: type[TrainwrightError]
    what: str
    where: str
    hint: str

    @classmethod
    def of(cls, error: BaseException) -> "TaskFailure":
        """Return the failure that an error stands for; one that nobody expects goes to the log."""
        known = in_our_words(error)
        if isinstance(known, TrainwrightError):
            return cls(type(known), known.what, known.where, known.hint)
        if isinstance(error, MemoryError | pa.ArrowMemoryError):
            what = f"a worker process has no memory left: {error}"
            return cls(DependencyError, what, "", "Give the step more memory, or use fewer workers.")
        sys.stderr.write(traceback_of(error))
        what = f"{type(error).__name__}: {error}"
        return cls(InternalError, what, "a worker process", "The traceback is in the log.")

    def error(self) -> TrainwrightError:
        """Return the error itself."""
        return self.kind(self.what, where=self.where, hint=self.hint)


class _Run(Generic[Task, Result]):
    """One run over the tasks: which worker has which, and what is done."""

    def __init__(self, pool: Pool[Task, Result], tasks: Sequence[Task], workers: Sequence[_Worker]) -> None:
        self._pool, self._tasks, self._workers = pool, tasks, workers
        self._waiting, self._done = deque(range(len(tasks))), dict[int, Any]()

    def results(self) -> Iterator[Result]:
        for _ in range(self._pool.ahead):
            for worker in self._workers:
                self._assign(worker)
        for place in range(len(self._tasks)):
            while place not in self._done:
                self._receive()
            result = self._done.pop(place)
            if isinstance(result, TaskFailure):
                while any(worker.tasks for worker in self._workers):
                    self._receive()
                raise result.error()
            yield result

    def _assign(self, worker: _Worker) -> None:
        if self._waiting:
            worker.tasks.append(self._waiting.popleft())
            with suppress(BrokenPipeError, ConnectionResetError):  # reported when its answer is missed
                worker.pipe.send(worker.tasks[-1])

    def _receive(self) -> None:
        ready = wait([worker.pipe for worker in self._workers if worker.tasks])
        for worker in (worker for worker in self._workers if worker.pipe in ready):
            try:
                place, answer = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                raise self._death(worker) from None
            worker.tasks.remove(place)
            self._done[place] = answer
            if isinstance(answer, TaskFailure):
                self._waiting.clear()
            self._assign(worker)

    def _death(self, worker: _Worker) -> TrainwrightError:
        worker.process.join(_GRACE_S)
        code = worker.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        memory = "SIGKILL mostly means that memory ran out: give the step more of it, or use fewer workers."
        return self._pool.died(
            f"a worker process {how}",
            where=self._pool.describe(self._tasks[worker.tasks[0]]),
            hint=memory if code < 0 else "Its last lines in the log say why.",
        )


def _serve(
    pipe: Connection,
    inherited: Sequence[Connection],
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    threads: int,
) -> None:
    """Do the parent's tasks, as a worker, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    pa.set_cpu_count(threads)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            place = pipe.recv()
            try:
                answer: object = work(tasks[place])
            except Exception as error:
                answer = TaskFailure.of(error)
            pipe.send((place, answer))
            del answer
            pa.default_memory_pool().release_unused()  # one task's peak is not added to the next one's


def _stop(workers: Sequence[_Worker]) -> None:
    """End every worker, at once if it is working."""
    for worker in workers:
        worker.pipe.close()
        if worker.tasks:
            worker.process.terminate()
    for worker in workers:
        worker.process.join(_GRACE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
