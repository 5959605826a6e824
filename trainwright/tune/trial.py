"""A trial's training: ``python -m trainwright.tune.trial FOLDER PARENT``, and the handle of this process.

The process submits the training as the step `train` does. It dies with its parent, so a killed step leaves
no process behind; a job on a cluster continues, and the next start adopts it. SIGTERM saves a checkpoint and
stops the job. The trial's folder keeps what the next start needs, and at the end metrics, curves and log.
"""

import contextlib
import ctypes
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from trainwright.documents import Document
from trainwright.errors import (
    ERRORS,
    Diverged,
    Hang,
    InputError,
    Preempted,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
    as_record,
)
from trainwright.imports import collect_rarely
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import newest_attempt
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory, lines_from
from trainwright.train.config import TrialMetrics
from trainwright.train.submit import TRIAL_DIRECTORY, TrainRequest, submit_trial

LOG_FILE = "trial.log"
_PR_SET_PDEATHSIG = 1
_OUT_OF_MEMORY = frozenset({"CUDA_OOM", "HOST_OOM"})
_WAITING = re.compile(r"(queued|pending|starting): .+")
"""Status lines of the launcher that say why a job waits."""

_LOG_TAIL = 4096


@dataclass(frozen=True, kw_only=True)
class TrialSpec(Document):
    """The parameters of a trial's training, in its folder.

    Attributes:
        request: Fields of :class:`.TrainRequest`.
        encoded: Folder of encoded samples that all trials of a study share.
        destination: Tracking server and run for live curves; empty if none.
    """

    FILE: ClassVar[str] = "trial.json"
    request: dict[str, Any]
    encoded: str
    destination: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: TrainRequest, encoded: Path, destination: dict[str, str] | None = None) -> Self:
        """Describe a request."""
        fields = dataclasses.asdict(request) | {"training_set": str(request.training_set.absolute())}
        return cls(request=fields, encoded=str(encoded.absolute()), destination=destination or {})

    def train(self, folder: Path) -> None:
        """Run the training to its end."""
        fields = self.request | {"training_set": Path(self.request["training_set"])}
        submit_trial(TrainRequest(**fields), folder, Path(self.encoded), self.destination)


@dataclass(frozen=True, kw_only=True)
class TrialFailure(Document):
    """The error of a trial's last start, in its folder; ``kind`` is its failure class, where it is known."""

    FILE: ClassVar[str] = "error.json"
    code: int
    what: str
    where: str = ""
    hint: str = ""
    kind: str = ""

    @property
    def infeasible(self) -> bool:
        """True if the same training fails again: out of memory, diverged, rejected, or hanging."""
        return self.code in {InputError.code, Diverged.code, Hang.code}

    @property
    def rejected(self) -> bool:
        """True if the configuration is wrong; running out of memory has the same exit code."""
        return self.code == InputError.code and self.kind not in _OUT_OF_MEMORY

    @property
    def stopped(self) -> bool:
        """True if it was stopped from outside."""
        return self.code in {Preempted.code, PreemptedUnsaved.code}

    @property
    def transient(self) -> bool:
        """True if the same call may succeed later."""
        return self.code == TransientError.code

    @property
    def sentence(self) -> str:
        """The failure in one line."""
        kind = f"{self.kind}: " if self.kind and not self.what.startswith(self.kind) else ""
        return f"{kind}{self.what.splitlines()[0]}"

    def to_error(self) -> TrainwrightError:
        """Return the error to end the step with."""
        return ERRORS[self.code](self.what, where=self.where, hint=self.hint)


@dataclass(frozen=True, kw_only=True)
class TrialStarts(Document):
    """The starts of a trial: their times in seconds since 1970, and the run time of those that ended."""

    FILE: ClassVar[str] = "starts.json"
    times: tuple[float, ...] = ()
    ended: int = 0
    seconds: float = 0.0


class TrialCurves:
    """Reads the history of a trial while it grows."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._offset = folder, 0
        self._history = TrainingHistory()
        self._first = self._last = self._before = 0
        self._began_ms = self._last_ms = self._before_ms = 0
        self.total = 0
        """Steps of the whole training; 0 until it has begun."""

    def read(self) -> None:
        """Read what is new."""
        # The file in the trial's folder is a copy of the other one, made after the end.
        for path in (self._folder / HISTORY_FILE, self._folder / TRIAL_DIRECTORY / HISTORY_FILE):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > self._offset:
                    for end, line in lines_from(path, self._offset):
                        self._take(line)
                        self._offset = end
                return

    def _take(self, line: dict[str, Any]) -> None:
        self._history.take(line)
        if line.get("event") == "began" or not self._began_ms:
            self._before_ms += self._last_ms - self._began_ms
            self._began_ms = int(line["time_ms"])
        self._last_ms = int(line["time_ms"])
        if line.get("event") == "began":
            self._before, self.total = self.steps, int(line["total"])
            self._first = self._last = int(line["step"])
        self._last = max(self._last, int(line["step"]))

    @property
    def steps(self) -> int:
        """Steps of all starts, repeated ones included."""
        return self._before + self._last - self._first

    @property
    def seconds(self) -> float:
        """Seconds of all starts, each from its first step on."""
        return (self._before_ms + self._last_ms - self._began_ms) / 1000

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """Step and held-out loss of each evaluation, by step."""
        return list(zip(*self._history.curve("watched_loss"), strict=True))


class TrialProcess:
    """The process of a trial.

    Args:
        folder: The trial's folder.
        spec: The parameters; ignored where an earlier start of the trial has already ended it.
    """

    def __init__(self, folder: Path, spec: TrialSpec) -> None:
        self.folder, self.curves = folder, TrialCurves(folder)
        self._spec, self._stopping = spec, False
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = time.monotonic()

    def start(self) -> None:
        """Start or resume the training; do nothing if an earlier start has ended it for good."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.result() is not None:
            return
        (self.folder / TrialFailure.FILE).unlink(missing_ok=True)
        self._spec.write(self.folder)
        self._note_start()
        command = [sys.executable, "-m", "trainwright.tune.trial", str(self.folder), str(os.getpid())]
        with (self.folder / LOG_FILE).open("ab") as log:
            # A session of its own: the search stops its trials itself after Ctrl-C.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._clock, self._stopping = time.monotonic(), False

    def stop(self) -> None:
        """Ask the training to save a checkpoint and to stop; return at once."""
        if self._process and not self._stopping:
            self._stopping = True
            self._process.terminate()

    def kill(self) -> None:
        """End the process at once; ranks of a local job end with it."""
        if self._process:
            self._process.kill()

    def poll(self) -> bool:
        """Return whether it has ended."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            return False
        starts = self._starts()
        seconds = starts.seconds + time.monotonic() - self._clock
        dataclasses.replace(starts, ended=len(starts.times), seconds=seconds).write(self.folder)
        if not self._recorded():
            self._record_death(self._process.returncode)
        self._process = None
        return True

    def result(self) -> TrialMetrics | TrialFailure | None:
        """Return metrics, or the failure that any further start would repeat; None if it may be resumed."""
        if (self.folder / TrialMetrics.FILE).exists():
            return TrialMetrics.read(self.folder)
        failure = self.failure()
        return failure if failure and failure.infeasible else None

    def failure(self) -> TrialFailure | None:
        """Return the error of the last start; None if there is none."""
        return TrialFailure.read(self.folder) if (self.folder / TrialFailure.FILE).exists() else None

    @property
    def waiting(self) -> str:
        """Return why its job waits, such as ``queued: …``; empty if it does not."""
        if self.curves.total or self._process is None:
            return ""
        with contextlib.suppress(OSError), (self.folder / LOG_FILE).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
            lines = log.read().decode(errors="replace").splitlines()
            return lines[-1] if lines and _WAITING.match(lines[-1]) else ""
        return ""

    def figures(self, job_hour: float | None) -> dict[str, Any]:
        """Return steps, total, seconds, cost, attempts and started, as in :class:`.Trial`.

        Args:
            job_hour: Price of an hour of its job; None if unknown.
        """
        starts = self._starts()
        running = time.monotonic() - self._clock if self._process else 0.0
        first = starts.times[0] if starts.times else time.time()
        return {
            "steps": self.curves.steps,
            "total": self.curves.total,
            "seconds": round(starts.seconds + running, 3),
            "cost": None if job_hour is None else self.curves.seconds / 3600 * job_hour,
            "attempts": len(starts.times),
            "started": datetime.fromtimestamp(first, UTC).isoformat(timespec="seconds"),
        }

    def _starts(self) -> TrialStarts:
        found = self.folder / TrialStarts.FILE
        return TrialStarts.read(self.folder) if found.exists() else TrialStarts()

    def _note_start(self) -> None:
        """Note a start; one that was killed ended when its history or its log did."""
        starts, seconds = self._starts(), 0.0
        if starts.ended < len(starts.times):
            files = [self.folder / LOG_FILE, self.folder / TRIAL_DIRECTORY / HISTORY_FILE]
            seconds = max([path.stat().st_mtime for path in files if path.exists()], default=0.0)
            seconds = max(0.0, seconds - starts.times[-1])
        times = (*starts.times, time.time())
        TrialStarts(times=times, ended=len(starts.times), seconds=starts.seconds + seconds).write(self.folder)

    def _recorded(self) -> bool:
        return any((self.folder / name).exists() for name in (TrialMetrics.FILE, TrialFailure.FILE))

    def _record_death(self, code: int) -> None:
        """Record a process that could not do so itself: killed, or stopped before it had begun."""
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        kind = PreemptedUnsaved if self._stopping else TransientError
        what = f"the process of the trial ended with {name}, and left no error"
        TrialFailure(code=kind.code, what=what, where=str(self.folder / LOG_FILE)).write(self.folder)


def main(folder: Path, parent: int) -> int:
    """Train, and return the exit code; the error is in the folder, too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        return Preempted.code
    try:
        TrialSpec.read(folder).train(folder)
    except Exception as error:
        if (folder / TrialMetrics.FILE).exists():  # only the removal of the job directory failed
            return 0
        record = as_record(error, "tune")
        sys.stderr.write(f"{record['error']}: {error}\n")
        fields = {name: record[name] for name in ("code", "what", "where", "hint")}
        TrialFailure(**fields, kind=_failure_kind(folder)).write(folder)
        return int(record["code"])
    return 0


def _failure_kind(folder: Path) -> str:
    attempt = newest_attempt(folder / TRIAL_DIRECTORY)
    with contextlib.suppress(InputError, OSError):
        return Failure.read(attempt).kind if attempt else ""
    return ""


def remove_checkpoints(folder: Path) -> None:
    """Remove what a trial could resume from; its curves stay."""
    history = folder / TRIAL_DIRECTORY / HISTORY_FILE
    if history.exists() and not (folder / HISTORY_FILE).exists():
        shutil.copyfile(history, folder / HISTORY_FILE)
    shutil.rmtree(folder / TRIAL_DIRECTORY, ignore_errors=True)


if __name__ == "__main__":
    collect_rarely()
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
