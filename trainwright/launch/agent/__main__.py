"""Run torchrun with the exit code of the rank that failed first, and leave no process behind.

``python -m trainwright.launch.agent FOLDER [OPTIONS] -- TORCHRUN-ARGUMENTS`` runs torchrun in this process.
It exits with the code of the rank that failed first, where torchrun itself exits with 1; with 40 when it was
stopped and the state was saved, and 41 when it was not; and never with 0 without the completion marker. With
``--tethered`` it stops when its standard input closes: when the launcher that started it is gone.
"""

import argparse
import dataclasses
import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from trainwright import redaction
from trainwright.errors import (
    DependencyError,
    InternalError,
    Preempted,
    PreemptedUnsaved,
    TrainwrightError,
    forbid_core_dumps,
)
from trainwright.imports import uncollected
from trainwright.launch.agent.process_monitor import ProcessMonitor
from trainwright.launch.agent.rank_errors import (
    RankError,
    errors_of_round,
    first_error,
    last_round,
    round_folder,
    upcoming_round,
)
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import FAILED_ATTEMPT_FILE, Completion, completed


def main(argv: list[str]) -> int:
    """Run torchrun and return the exit code of the job on this machine."""
    forbid_core_dumps()
    split = argv.index("--")
    parser = argparse.ArgumentParser("trainwright.launch.agent")
    parser.add_argument("folder", type=Path, help="The attempt's folder.")
    parser.add_argument("--tethered", action="store_true", help="Stop when standard input closes.")
    parser.add_argument("--grace-s", type=int, default=30, help="Seconds to finish a step and save.")
    parser.add_argument("--stall-s", type=float, help="Seconds without a step that count as a hang.")
    options = parser.parse_args(argv[:split])
    folder: Path = options.folder
    # The attempt is over: some operators start its pods again (trainer#3737).
    if completed(folder, folder.name):
        sys.stderr.write(f"attempt {folder.name} is complete: nothing is run\n")
        return 0
    if (folder / FAILED_ATTEMPT_FILE).exists():
        sys.stderr.write(f"attempt {folder.name} was ended by its launcher: nothing is run\n")
        return PreemptedUnsaved.code
    if options.tethered:
        tether = functools.partial(_stop_when_untethered, options.grace_s)
        threading.Thread(target=tether, name="tether", daemon=True).start()
    monitor = ProcessMonitor(folder, options.grace_s, options.stall_s)
    with TemporaryDirectory() as errors:  # torchrun itself leaves the folder of its error files behind
        return Agent(folder, monitor, options.grace_s).run([f"--log-dir={errors}", *argv[split + 1 :]])


class Agent:
    """Runs the processes of this machine with torchrun, and reports how they ended.

    Args:
        folder: The attempt's folder.
        monitor: Monitors the processes.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, folder: Path, monitor: ProcessMonitor, grace_s: int) -> None:
        self._folder, self._monitor, self._grace_s = folder, monitor, grace_s
        # What earlier agents left in this folder is none of this one's errors: their job was suspended,
        # their container was restarted, or their pod was replaced.
        self._upcoming = upcoming_round(folder)

    def run(self, arguments: list[str]) -> int:
        """Run torchrun and return the exit code of the job on this machine."""
        with uncollected():
            from torch.distributed import DistError, run  # type: ignore[import-not-found,unused-ignore]
            from torch.distributed.elastic.multiprocessing import (  # type: ignore[import-not-found,unused-ignore]
                SignalException,
            )
            from torch.distributed.elastic.multiprocessing.errors import (  # type: ignore[import-not-found,unused-ignore]
                ChildFailedError,
            )
            from torch.distributed.elastic.rendezvous.api import (  # type: ignore[import-not-found,unused-ignore]
                RendezvousError,
            )
            from torch.distributed.launcher import api  # type: ignore[import-not-found,unused-ignore]

            from trainwright.launch.agent.elastic import HAS_SHUTDOWN_TIMEOUT, ElasticAgent

        def stop(number: int, _frame: FrameType | None) -> None:
            name = signal.Signals(number)
            raise SignalException(f"got {name.name}", sigval=name)

        # torchrun sets the same handler, but only when it has found the other machines.
        signal.signal(signal.SIGTERM, stop)
        api.LocalElasticAgent = functools.partial(ElasticAgent, self._monitor, self._folder, self._grace_s)  # type: ignore[assignment,attr-defined,unused-ignore]
        timeout = [f"--shutdown-timeout={self._grace_s}"] if HAS_SHUTDOWN_TIMEOUT else []
        try:
            run.run(run.parse_args([*timeout, *arguments]))  # type: ignore[no-untyped-call,unused-ignore]
        except ChildFailedError:
            first = self._monitor.cause
            return InternalError.code if first is None else self._report(first)
        except SignalException as stopped:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return self._stopped(signal.Signals(stopped.sigval).name)
        except (RendezvousError, DistError) as error:
            # The machines did not find one another, or the round before has failed.
            if first := self._monitor.cause:
                return self._report(first)
            what = f"the machines of the job did not find one another: {type(error).__name__}: {error!s:.300}"
            return self._fail(DependencyError(what.removesuffix(": ")))
        finally:
            self._monitor.leave()
        return self._succeeded()

    def _stopped(self, name: str) -> int:
        """Return the exit code of a job that was stopped: what it had saved, or what made it fail before."""
        if self._monitor.ranks and completed(self._folder, self._folder.name):
            return 0
        self._monitor.unsaved(name)
        if first := self._monitor.cause:
            return self._report(first)
        return self._fail(PreemptedUnsaved(f"stopped by {name} before its processes began"))

    def _succeeded(self) -> int:
        if 0 not in self._monitor.ranks or completed(self._folder, self._folder.name):
            return 0
        what = f"every process ended with exit code 0, but without the completion marker {Completion.FILE}"
        hint = "Its last lines are in the log of the step."
        return self._fail(DependencyError(what, where=str(self._folder), hint=hint), kind="UNKNOWN")

    def _fail(self, error: TrainwrightError, kind: str = "") -> int:
        """Record an error of this agent itself; return the exit code of the likeliest cause of its round.

        An agent that waited while others ran the round may be the last to report: a rank's error comes first.
        """
        number = self._upcoming if self._monitor.round is None else self._monitor.round
        entry = RankError.of(error, None, number=number, witnessed=True, kind=kind)
        entry.save(self._folder)
        return self._report(first_error(self._folder, number) or entry)

    def _report(self, first: RankError) -> int:
        """Write why the round failed; return the exit code.

        It goes into the round's folder, where launchers read it, and into the attempt's, for people.
        """
        failure = _describe(self._folder, first)
        try:
            failure.write(round_folder(self._folder, first.number) / Failure.FILE)
            if first.number == last_round(self._folder):
                failure.write(self._folder)
        except OSError as error:  # a full disk must not change the exit code
            sys.stderr.write(f"{failure.what} (could not be noted: {error})\n")
        return first.code


def _describe(folder: Path, first: RankError) -> Failure:
    """Describe why a round failed, with what ended the rounds before it."""
    past = [(number, errors_of_round(folder, number)) for number in range(first.number)]
    earlier = [f"round {number}: {_line(entries[0])}" for number, entries in past if entries]
    others = [_line(entry) for entry in errors_of_round(folder, first.number)[1:8] if entry != first]
    stacks = [str(path) for path in sorted((folder / "stacks").glob("rank-*.txt"))][:16]
    failure = Failure.of(
        first.kind,
        redaction.shorten(redaction.redact(first.what)),
        rank=first.rank,
        exit_code=None if first.witnessed else first.code,
        reason=first.error,
        evidence=redaction.bounded_evidence([_line(first), *first.evidence, *others, *earlier, *stacks]),
        advice=redaction.redact(first.hint),
        code=first.code,
    )
    return dataclasses.replace(failure, retryable=failure.retryable or first.code == Preempted.code)


def _line(entry: RankError) -> str:
    return f"{entry.name}: {entry.error}: {entry.what}"


def _stop_when_untethered(grace_s: int) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s + 10)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
