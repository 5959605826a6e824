"""Shards shared out among processes of this machine, none of which outlives the one that started them."""

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from trainwright.errors import TransientError

if TYPE_CHECKING:
    from trainwright.ingest.runner import Outcome
    from trainwright.ingest.shards import Plan, Shard

    Attempt = Callable[[Plan, Shard], Outcome]

_GRACE_S = 5.0
_PR_SET_THP_DISABLE = 41


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    shard: "Shard | None" = None


def run_in_processes(plan: "Plan", shards: Sequence["Shard"], attempt: "Attempt") -> "Iterator[Outcome]":
    """Make shards in as many processes as the plan says; each is given the plan once.

    Processes are forked from a server that has no threads and has the libraries loaded, so they start
    quickly and share that memory. Shards are handed out in order. After a failure no more are, but those
    that are being made are waited for: so of all failures, that of the first shard is always among them.

    Args:
        plan: What every worker needs; can be pickled.
        shards: What to do.
        attempt: What makes one, at the top of a module; raises nothing.

    Yields:
        What became of each, as they end.

    Raises:
        TransientError: A worker died.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainwright.ingest.runner"])
    count = min(plan.data.runner.workers, len(shards))
    threads = max(1, (os.cpu_count() or 1) // count)
    workers = [_start(context, plan, attempt, threads) for _ in range(count)]
    waiting = deque(shards)
    try:
        for worker in workers:
            _hand_out(worker, waiting)
        while busy := [worker for worker in workers if worker.shard is not None]:
            ready = wait([worker.pipe for worker in busy])
            for worker in (worker for worker in busy if worker.pipe in ready):
                outcome = _outcome(worker)
                if outcome.failure:
                    waiting.clear()
                _hand_out(worker, waiting)
                yield outcome
    finally:
        _end(workers)


def _start(
    context: multiprocessing.context.ForkServerContext, plan: "Plan", attempt: "Attempt", threads: int
) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, plan, attempt, threads), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _work(pipe: Connection, plan: "Plan", attempt: "Attempt", threads: int) -> None:
    """Make one shard after another, until the other end says that there is no more, or is gone."""
    import pyarrow as pa  # type: ignore[import-untyped]

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(threads)
    _refuse_huge_pages()
    try:
        while (shard := pipe.recv()) is not None:
            pipe.send(attempt(plan, shard))
            pa.default_memory_pool().release_unused()  # what one shard needed is not added to the next one's
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _refuse_huge_pages() -> None:
    """Keep Linux from rounding buffers up to pages of 2 MB: 30 MB a worker, at the same speed."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def _hand_out(worker: _Worker, waiting: "deque[Shard]") -> None:
    worker.shard = waiting.popleft() if waiting else None
    if worker.shard is not None:
        worker.pipe.send(worker.shard)


def _outcome(worker: _Worker) -> "Outcome":
    try:
        outcome: Outcome = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(_GRACE_S)
        assert worker.shard is not None  # noqa: S101 - only busy workers are waited for
        raise _died(worker.process.exitcode, worker.shard.index) from None
    return outcome


def _died(code: int | None, shard: int) -> TransientError:
    killed = code is not None and code < 0
    how = f"was killed by {signal.Signals(-code).name}" if killed and code else f"ended with code {code}"
    return TransientError(
        f"a worker process {how} while it made shard {shard}",
        where="data.runner",
        hint="If memory ran out, use fewer workers or smaller shards, or give the step more of it.",
    )


def _end(workers: Sequence[_Worker]) -> None:
    """Let idle workers go, and end those that are still at work: their shards are not wanted any more."""
    for worker in workers:
        if worker.shard is not None:
            worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_GRACE_S)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.process.close()
