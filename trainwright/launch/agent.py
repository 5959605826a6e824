"""torchrun with honest exit codes, and without orphans.

``python -m trainwright.launch.agent FOLDER [--tethered] -- TORCHRUN-ARGUMENTS`` runs torchrun in this
process. It ends with the exit code of the rank that failed first, where torchrun itself ends with 1, and
with 143 after SIGTERM. Tethered, it stops when its standard input closes: that is, when the launcher that
started it is gone, however that came about.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import InternalError, TrainwrightError, TransientError
from trainwright.launch.ranks import RankError, first_error

GRACE_S = 10
"""Seconds that a rank is given between SIGTERM and SIGKILL."""


def main(argv: list[str]) -> int:
    """Run torchrun and return the exit code of the job on this node."""
    split = argv.index("--")
    folder, options, arguments = Path(argv[0]), argv[1:split], argv[split + 1 :]
    if "--tethered" in options:
        threading.Thread(target=_stop_when_untethered, name="tether", daemon=True).start()
    return _torchrun(folder, arguments)


def _torchrun(folder: Path, arguments: list[str]) -> int:
    from torch.distributed import run  # type: ignore[import-not-found,unused-ignore]
    from torch.distributed.elastic.multiprocessing import (  # type: ignore[import-not-found,unused-ignore]
        SignalException,
    )
    from torch.distributed.elastic.multiprocessing.errors import (  # type: ignore[import-not-found,unused-ignore]
        ChildFailedError,
    )

    options = run.parse_args(arguments)  # type: ignore[no-untyped-call,unused-ignore]
    try:
        run.run(options)  # type: ignore[no-untyped-call,unused-ignore]
    except ChildFailedError as failed:
        for rank, failure in _causes(failed.failures, options.shutdown_timeout):
            RankError.of(_explain(rank, failure), rank, witnessed=True).save(folder)
        first = first_error(folder)
        return first.code if first else InternalError.code
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def _causes(failures: Mapping[int, Any], grace_s: float) -> Iterator[tuple[int, Any]]:
    """Leave out the ranks that torchrun itself ended because another one had failed: it lists them too.

    It sends them SIGTERM, and SIGKILL after its grace. The first of the list failed by itself, because
    nothing is ended before.
    """
    first = next(iter(failures.values()))
    for rank, failure in failures.items():
        # Its times are whole seconds.
        waited = failure.timestamp - first.timestamp >= max(1, grace_s - 1)
        ended = failure.exitcode == -signal.SIGTERM or (failure.exitcode == -signal.SIGKILL and waited)
        if failure is first or not ended:
            yield rank, failure


def _explain(rank: int, failure: Any) -> TrainwrightError:
    """Say in words how a process ended that could not say it itself."""
    log = "Its last lines are in the log of the step."
    if failure.exitcode < 0:
        memory = (
            "This mostly means that the machine ran out of memory: give the job more, use fewer processes, "
            "or a smaller batch."
        )
        hint = memory if failure.exitcode == -signal.SIGKILL else log
        return TransientError(f"rank {rank} was killed by {failure.signal_name()}", hint=hint)
    return InternalError(f"rank {rank} ended with exit code {failure.exitcode} and left no error", hint=log)


def _stop_when_untethered() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2 * GRACE_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
