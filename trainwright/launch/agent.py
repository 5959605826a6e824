"""torchrun with honest exit codes, and without orphans.

``python -m trainwright.launch.agent FOLDER [OPTIONS] -- TORCHRUN-ARGUMENTS`` runs torchrun in this process.
It ends with the exit code of the rank that failed first, where torchrun itself ends with 1; with 40 when it
was stopped and the state was saved, and 41 when it was not; and never with 0 without the completion marker.
Tethered, it stops when its standard input closes: that is, when the launcher that started it is gone,
however that came about.
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
from types import FrameType

from trainwright.errors import DependencyError, InternalError, Preempted, PreemptedUnsaved
from trainwright.launch.attempt import ENDED
from trainwright.launch.diagnosis import redaction
from trainwright.launch.failure import Failure
from trainwright.launch.job import Completion, completed
from trainwright.launch.ranks import RankError, first_error, rounds
from trainwright.launch.watch import Watch


def main(argv: list[str]) -> int:
    """Run torchrun and return the exit code of the job on this machine."""
    split = argv.index("--")
    parser = argparse.ArgumentParser("trainwright.launch.agent")
    parser.add_argument("folder", type=Path, help="The attempt's folder.")
    parser.add_argument("--tethered", action="store_true", help="Stop when standard input closes.")
    parser.add_argument("--grace-s", type=int, default=30, help="Seconds to finish a step and save.")
    parser.add_argument("--stall-s", type=float, help="Seconds without a step that count as a hang.")
    options = parser.parse_args(argv[:split])
    if (code := _over(options.folder)) is not None:
        return code
    if options.tethered:
        tether = functools.partial(_stop_when_untethered, options.grace_s)
        threading.Thread(target=tether, name="tether", daemon=True).start()
    watch = Watch(options.folder, options.grace_s, options.stall_s)
    return _torchrun(options.folder, watch, options.grace_s, argv[split + 1 :])


def _over(folder: Path) -> int | None:
    """Return what to end with if the attempt is over: some operators start its pods again (trainer#3737)."""
    if completed(folder, folder.name):
        sys.stderr.write(f"attempt {folder.name} is complete: nothing is run\n")
        return 0
    if (folder / ENDED).exists():
        sys.stderr.write(f"attempt {folder.name} was ended by its launcher: nothing is run\n")
        return PreemptedUnsaved.code
    return None


def _torchrun(folder: Path, watch: Watch, grace_s: int, arguments: list[str]) -> int:
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

    from trainwright.launch.rounds import TOLD_HOW_LONG, Rounds

    def stop(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number)
        raise SignalException(f"got {name.name}", sigval=name)

    # torchrun sets the same handler, but only when it has found the other machines.
    signal.signal(signal.SIGTERM, stop)
    api.LocalElasticAgent = functools.partial(Rounds, watch, folder, grace_s)  # type: ignore[assignment,attr-defined,unused-ignore]
    patience = [f"--shutdown-timeout={grace_s}"] if TOLD_HOW_LONG else []
    try:
        run.run(run.parse_args([*patience, *arguments]))  # type: ignore[no-untyped-call,unused-ignore]
    except ChildFailedError:
        return _failed(folder)
    except SignalException as stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return _stopped(folder, watch, signal.Signals(stopped.sigval).name)
    except (RendezvousError, DistError) as error:
        return _apart(folder, error)
    finally:
        watch.leave()
    return _succeeded(folder, watch)


def _failed(folder: Path) -> int:
    """Say why the job failed, and return the exit code for it."""
    first = first_error(folder)
    if first is None:
        return InternalError.code
    _describe(folder, first).write(folder)
    return first.code


def _apart(folder: Path, error: Exception) -> int:
    """Say that the machines did not find one another, or what ended the round after which they did not."""
    if first_error(folder):
        return _failed(folder)
    what = f"the machines of the job did not find one another: {type(error).__name__}: {error!s:.300}"
    Failure.of("INFRASTRUCTURE", what.removesuffix(": "), code=DependencyError.code).write(folder)
    return DependencyError.code


def _stopped(folder: Path, watch: Watch, name: str) -> int:
    """Return the exit code of a job that was stopped: what it had saved, or what made it fail before."""
    if watch.ranks and completed(folder, folder.name):
        return 0
    watch.unsaved(name)
    if first_error(folder) is None:
        what = f"stopped by {name} before its processes began"
        Failure.of("PREEMPTED", what, code=PreemptedUnsaved.code).write(folder)
        return PreemptedUnsaved.code
    return _failed(folder)


def _succeeded(folder: Path, watch: Watch) -> int:
    if 0 not in watch.ranks or completed(folder, folder.name):
        return 0
    what = f"every process ended with exit code 0, but without the completion marker {Completion.FILE}"
    Failure.of("UNKNOWN", what, exit_code=0, code=DependencyError.code).write(folder)
    return DependencyError.code


def _describe(folder: Path, first: RankError) -> Failure:
    """Describe why a job failed, with what ended each of its rounds."""
    past = rounds(folder)[:-1]
    told = [f"round {number}: {_line(entries[0])}" for number, entries in enumerate(past) if entries]
    others = [_line(entry) for entry in rounds(folder)[-1][1:8]]
    stacks = [str(path) for path in sorted((folder / "stacks").glob("rank-*.txt"))][:16]
    failure = Failure.of(
        first.kind,
        redaction.shortened(redaction.clean(first.what)),
        rank=first.rank,
        exit_code=None if first.witnessed else first.code,
        reason=first.error,
        evidence=redaction.bounded([_line(first), *first.evidence, *others, *told, *stacks]),
        advice=redaction.clean(first.hint),
        code=first.code,
    )
    return dataclasses.replace(failure, retryable=failure.retryable or first.code == Preempted.code)


def _line(entry: RankError) -> str:
    return f"rank {entry.rank}: {entry.error}: {entry.what}"


def _stop_when_untethered(grace_s: int) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s + 10)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
