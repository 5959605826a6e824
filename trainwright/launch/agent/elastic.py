"""torchrun's elastic agent, with its own rules for the end, the restart and the stop of a round.

The overridden methods are those that PyTorch documents for agents to define
(torch.distributed.elastic.agent.server.SimpleElasticAgent); tests/launch/test_agent.py tests them.
"""

import inspect
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (  # type: ignore[import-not-found,unused-ignore]
    RunResult,
    WorkerGroup,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import (  # type: ignore[import-not-found,unused-ignore]
    LocalElasticAgent,
)
from torch.distributed.elastic.rendezvous.api import (  # type: ignore[import-not-found,unused-ignore]
    RendezvousTimeoutError,
)

from trainwright.errors import Preempted
from trainwright.launch.agent.process_monitor import ProcessMonitor
from trainwright.launch.agent.rank_errors import ROUND_VARIABLE, begin_round
from trainwright.launch.failure import Failure

HAS_SHUTDOWN_TIMEOUT = "timeout" in inspect.signature(LocalElasticAgent._shutdown).parameters
"""True if torchrun has an option for the time between SIGTERM and SIGKILL: since torch 2.12. Before,
it is 30 s."""

_KEY = "trainwright/round"
_AGREE_TIMEOUT_S, _POLL_S = 900.0, 0.1
"""Seconds in which the first agent has to begin the round, as it has to join it, and between two looks."""

_CACHED_S = 1.0
"""Seconds for which torch's dynamic rendezvous answers from what it read before."""

_IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class ElasticAgent(LocalElasticAgent):  # type: ignore[misc,unused-ignore]
    """Runs the processes of one machine, and starts them again when that may help."""

    def __init__(self, monitor: ProcessMonitor, folder: Path, grace_s: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._monitor, self._folder, self._grace_s = monitor, folder, grace_s

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        number = self._agree(worker_group)
        os.environ[ROUND_VARIABLE] = str(number)  # torchrun hands its own environment on to the processes
        self._monitor.prepare([worker.global_rank for worker in worker_group.workers])
        started: dict[int, Any] = super()._start_workers(worker_group)
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        self._monitor.begin(number, {ranks[local]: int(pid) for local, pid in started.items()})
        return started

    def _agree(self, worker_group: WorkerGroup) -> int:
        """Return the number of the round that begins, the same on all of its agents.

        The first agent begins the round; the others learn its number from the store of this rendezvous. That
        one has a prefix for every rendezvous, but for a static one, where processes that have been restarted
        as often as one another form a world (``/worker/attempt_N`` in torch's own keys).

        Raises:
            RendezvousTimeoutError: The first agent does not begin the round.
        """
        static = worker_group.spec.rdzv_handler.get_backend() == "static"
        restarts = worker_group.spec.max_restarts - self._remaining_restarts
        key = f"{_KEY}/{restarts}" if static else _KEY
        if worker_group.group_rank == 0:
            number = begin_round(self._folder)
            (self._folder / Failure.FILE).unlink(missing_ok=True)  # of the round before
            worker_group.store.set(key, str(number))
            return number
        end = time.monotonic() + _AGREE_TIMEOUT_S
        while not worker_group.store.check([key]):  # not get: no signal would be heard meanwhile
            if time.monotonic() > end:
                raise RendezvousTimeoutError(
                    f"the first machine began no round within {_AGREE_TIMEOUT_S:g} s"
                )
            time.sleep(_POLL_S)
        return int(worker_group.store.get(key))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the processes; torch's own check would end all as soon as one has failed."""
        if not self._monitor.over():
            return RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        error = self._monitor.cause
        stopped = result.state == WorkerState.FAILED and error and error.code == Preempted.code
        if stopped and _joins(worker_group):
            # Another agent saw the machine first, and its stop signal reached these processes, too.
            return RunResult(state=WorkerState.HEALTHY)
        if result.state == WorkerState.FAILED and error and not error.retryable:
            self._remaining_restarts = 0
        if result.state == WorkerState.FAILED and self._remaining_restarts:
            most = self._worker_group.spec.max_restarts
            what = error.what if error else "a process failed and left no error"
            sys.stderr.write(
                f"restart {most - self._remaining_restarts + 1} of {most}: {what}; "
                "the processes start again and resume from the last checkpoint\n"
            )
        return result

    def _shutdown(self, *arguments: Any, **options: Any) -> None:
        """End the processes; a second signal does not cut short what the first one began."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED_SIGNALS}
        try:
            if arguments and not HAS_SHUTDOWN_TIMEOUT and self._pcontext:
                # A signal; what follows finds no process.
                self._pcontext.close(arguments[0], timeout=self._grace_s)
            super()._shutdown(*arguments, **options)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _joins(worker_group: WorkerGroup) -> bool:
    """Tell whether a machine waits to join, also one that came since torch last read the rendezvous."""
    end = time.monotonic() + _CACHED_S + _POLL_S
    while not worker_group.spec.rdzv_handler.num_nodes_waiting():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True
