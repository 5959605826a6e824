"""Monitor one attempt of a job to its end, within its limits. Time in a queue counts for no limit."""

import contextlib
import hashlib
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import urllib3

from trainwright.documents import Document
from trainwright.errors import InputError, InternalError, TrainwrightError
from trainwright.launch.agent.heartbeat import FOLDER as HEARTBEATS
from trainwright.launch.agent.heartbeat import STEPS
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.history import (
    AttemptHistory,
    AttemptLosses,
    exceeded_budget,
    last_checkpoint_s,
)
from trainwright.launch.cluster.lease import LeasedJob
from trainwright.launch.cluster.observer import Observer
from trainwright.launch.cluster.responses import ApiInvalid, ApiNotFound, ApiUnavailable
from trainwright.launch.diagnosis.diagnosis import Outcome, Success, diagnose, limit_failure, read_report
from trainwright.launch.diagnosis.incidents import Loss, charged_losses, find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import JobState
from trainwright.launch.diagnosis.waiting import JobStatus, job_status
from trainwright.launch.job import Job
from trainwright.launch.job_directory import completed, describe_progress
from trainwright.launch.manifests import grace_s

_STALL_MARGIN_S = 30.0
"""The job's own agents detect hangs too and know more; they come first."""

_UNSETTLED = frozenset({"UNKNOWN", "DELETED"})
"""Classes that more evidence can replace."""

_PODS_TIMEOUT_S = 3.0
"""Seconds in which the watch of the pods has to show which of them failed, once the job has."""

_SAVE_S, _FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 1.0, 60.0
_LATE_S = 3.0
"""Seconds for the rest of a log to arrive after its pod has ended."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Timeouts and polling intervals of a launcher, in seconds.

    Attributes:
        pending_s: Until all pods run, and until they run again after some were lost.
        broken_s: For a pod with an unusable image or configuration, since registries hiccup.
        gone_s: For a deleted job to disappear, beyond its grace period.
        cleaned_s: For the operator to end the pods of a failed job.
        stall_s: Without progress; None: the job's own.
        tick_s: Between two looks at the clock and at the files of the attempt.
        settle_s: For the marker of a job that says Succeeded to appear, and for the pods' last states.
        renew_s: Between two renewals of the lease.
        now: Returns the time in seconds since 1970; None: the clock of the API server.
    """

    pending_s: float = 1800.0
    broken_s: float = 120.0
    gone_s: float = 180.0
    cleaned_s: float = 10.0
    stall_s: float | None = None
    tick_s: float = 2.0
    settle_s: float = 60.0
    renew_s: float = 60.0
    now: Callable[[], float] | None = None


@dataclass(frozen=True)
class LimitExceeded:
    """A limit that a job has exceeded: the failure class, and a sentence with the limit."""

    kind: str
    what: str


class Watchdog:
    """Detects that a job exceeds a limit. It has no clock: each call passes the time.

    ``folder`` is the attempt's, with the progress of the processes; earlier attempts took ``earlier_s``.
    """

    def __init__(self, job: Job, settings: ClusterSettings, folder: Path, earlier_s: float = 0.0) -> None:
        self._job, self._settings, self._folder, self._earlier_s = job, settings, folder, earlier_s
        self._broken_since: float | None = None
        self._short_since: float | None = None
        self._mark, self._moved_s = "", 0.0

    def check(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        """Return the limit that the job exceeds at ``now_s`` (seconds since 1970), if any."""
        return (
            self._late(observed, now_s)
            or self._broken(observed, status, now_s)
            or self._short(observed, status, now_s)
            or self._pending(observed, status, now_s)
            or self._stalled(observed, status, now_s)
        )

    def _late(self, observed: ObservedJob, now_s: float) -> LimitExceeded | None:
        limit_s, took_s = self._job.timeout_s, active_s(observed.job, now_s) + self._earlier_s
        if took_s <= limit_s:
            return None
        state = describe_progress(self._folder) or "training had not begun"
        attempts = ", over all attempts," if self._earlier_s else ""
        what = f"job {observed.name} did not end within {limit_s:,.0f} s{attempts} and was ended: {state}"
        return LimitExceeded("DEADLINE", what)

    def _broken(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        waiting = status.waiting
        # An elastic job continues without the pod that cannot start.
        if waiting is None or not waiting.broken or status.phase in {"running", "ending"}:
            self._broken_since = None
            return None
        self._broken_since = now_s if self._broken_since is None else self._broken_since
        if now_s - self._broken_since <= self._settings.broken_s:
            return None
        return LimitExceeded(waiting.kind, f"job {observed.name} cannot start and was deleted: {waiting}")

    def _short(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        """Check that lost pods are replaced, and that a job ends after its pods, in ``pending_s``."""
        limit_s, waiting = self._settings.pending_s, status.waiting
        if status.phase != "restarting" and not (status.phase == "ending" and not status.running):
            self._short_since = None
            return None
        self._short_since = now_s if self._short_since is None else self._short_since
        if now_s - self._short_since <= limit_s:
            return None
        lost = [entry.failure for entry in find_incidents(observed) if not entry.recovered]
        kind = waiting.kind if waiting else next((failure.kind for failure in lost), "INFRASTRUCTURE")
        why = str(waiting) if waiting else "; ".join([str(status), *(failure.what for failure in lost[:1])])
        missed = "get its pods back" if status.phase == "restarting" else "end after its pods"
        what = f"job {observed.name} did not {missed} within {limit_s:,.0f} s and was deleted: {why}"
        return LimitExceeded(kind, what)

    def _pending(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        limit_s, waiting, job = self._settings.pending_s, status.waiting, observed.job
        started = {"running", "ended", "restarting", "ending", "absent"}
        if status.phase in started or job is None or job.holds("Suspended"):
            return None
        waited_s = active_s(job, now_s)
        if job.suspensions:  # each time the job leaves the queue, its pods start anew
            waited_s = min(waited_s, now_s - (job.suspensions[-1][1] or now_s))
        if waited_s <= limit_s:
            return None
        within = f"within {limit_s:,.0f} s"
        what = f"job {observed.name} did not start {within} and was deleted: {waiting or status}"
        return LimitExceeded(waiting.kind if waiting else "UNSCHEDULABLE", what)

    def _stalled(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        limit_s = self._settings.stall_s or self._job.stall_s
        if limit_s is None or status.phase not in {"running", "ending"}:
            self._mark = ""
            return None
        mark = _progress_mark(self._folder)
        if mark != self._mark or not mark:
            self._mark, self._moved_s = mark, now_s
        limit_s += _STALL_MARGIN_S
        if not mark or now_s - self._moved_s <= limit_s:
            return None
        state = describe_progress(self._folder) or "it had begun"
        what = f"job {observed.name} made no progress for {limit_s:,.0f} s and was ended: {state}"
        return LimitExceeded("STUCK", what)


def active_s(job: JobState | None, now_s: float) -> float:
    """Return the seconds since a job's creation, until its end if it has ended, without suspended time."""
    if job is None or job.created_s is None:
        return 0.0
    if job.final and job.ended_s is not None:
        now_s = min(now_s, job.ended_s)
    waited_s = sum(
        max(0.0, (until if until is not None else now_s) - since) for since, until in job.suspensions
    )
    return max(0.0, now_s - job.created_s - waited_s)


def _progress_mark(folder: Path) -> str:
    """Return a value that changes with every progress of the job; empty while silence means nothing.

    That is before its first step, and while any process does something of unknown length, such as an
    evaluation or the commit of a checkpoint.
    """
    texts = []
    for path in (folder / "progress.json", *sorted((folder / HEARTBEATS).glob("rank-*"))):
        try:
            text = path.read_text(errors="replace")
        except OSError:  # removed with the round of another machine
            text = ""
        if path.parent != folder and not text.startswith(STEPS):
            return ""
        texts.append(text)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest() if any(texts) else ""


@dataclass(frozen=True, kw_only=True)
class AttemptOutcome:
    """An attempt that has ended.

    Attributes:
        lost: The pods, or runs of their containers, that it lost.
        followed: The pod whose log was shown while it was written; empty if none.
    """

    outcome: Outcome
    observed: ObservedJob
    took_s: float
    lost: tuple[Loss, ...]
    followed: str = ""


class JobMonitor:
    """Monitors one attempt."""

    def __init__(self, job: Job, leased: LeasedJob, settings: ClusterSettings) -> None:
        self._job, self._leased, self._folder, self._settings = job, leased, leased.folder, settings
        self._now = settings.now or leased.api.clock.now
        self._history = AttemptHistory.before(leased.folder)
        self._before = self._losses = AttemptLosses.of(leased.folder)
        self._watchdog = Watchdog(job, settings, leased.folder, self._history.took_s)
        self._observer = Observer(leased, renew_s=settings.renew_s)
        self._logs = ExitStack()
        self._log: LogFollower | None = None
        self._line, self._phase, self._exits, self._grace_s = "", "", 0, grace_s(job)

    def follow(self) -> AttemptOutcome:
        """Follow the attempt to its end. The caller deletes one that exceeds a limit.

        Raises:
            LeaseLost: Another launcher has adopted the job.
            TrainwrightError: The API rejects a call, or is unreachable for too long.
        """
        with self._observer, self._logs:
            while True:
                self._observer.wait(self._settings.tick_s)
                observed = self._observer.observed
                # Logs that exist only for a moment are read before anything is judged by them. A restarted
                # container counts too: the log of its last run is kept until the next restart.
                exits = sum(len(pod.endings) + len(pod.starts) for pod in observed.pods if pod.endings)
                if exits != self._exits:
                    self._exits = exits
                    self._observer.read_details()
                status = job_status(observed)
                if status.phase == "ended":
                    return self._ended(self._settled())
                if exceeded := self._exceeded(observed, status):
                    return self._ended(self._given_up(exceeded))
                self._report(observed, status)

    def _exceeded(self, observed: ObservedJob, status: JobStatus) -> LimitExceeded | None:
        """Return the limit or the budget that the attempt exceeds."""
        if not self._observer.listed:
            return None  # nothing is known yet of an adopted job, which may have run for days
        if exceeded := self._watchdog.check(observed, status, self._now()):
            return exceeded
        if observed.job is None or observed.job.needed == observed.job.pods:
            return None  # a lost pod ends a job of fixed size, and then the diagnosis decides
        losses = self._before.with_observed(observed)
        if losses != self._losses:  # saved for a launcher that adopts the job
            self._losses = losses
            losses.save(self._folder)
        counts, charged = self._history.spent, charged_losses(losses.lost)
        for loss in charged:
            counts[loss.budget] = counts.get(loss.budget, 0) + 1
        if status.phase == "running" and (name := exceeded_budget(self._job.budget, counts)):
            last = ([loss for loss in charged if loss.budget == name] or list(losses.lost))[-1:]
            cause = f"; at last {last[0].what}" if last else " by the attempts before"
            what = f"job {observed.name} was ended: its {name} budget is used up{cause}"
            return LimitExceeded(last[0].kind if last else "UNKNOWN", what)
        return None

    def _given_up(self, exceeded: LimitExceeded) -> Outcome:
        """Return the outcome of a job at a limit: success if only its pods fail to end."""
        if marker := completed(self._folder, self._folder.name):
            return Success(completion=marker, doubts=(exceeded.what,))
        self._observer.read_details()
        saved_s = last_checkpoint_s(self._folder)
        return limit_failure(self._observer.observed, exceeded.kind, exceeded.what, saved_s=saved_s)

    def _report(self, observed: ObservedJob, status: JobStatus) -> None:
        """Read why a job waits, show the log, and print the status unless it repeats the last line."""
        if status.phase != "running":
            self._observer.read_details(waiting=status.phase == self._phase)
        self._phase = status.phase
        self._follow_log(observed)
        self._compare_grace(observed)
        progress = describe_progress(self._folder) if status.phase in {"running", "ending"} else ""
        line = progress or str(status)
        if line != self._line and not (progress and self._log and self._log.flows):
            self._line = line
            sys.stderr.write(f"{line}\n")

    def _compare_grace(self, observed: ObservedJob) -> None:
        """Warn once if pods are killed before they can have saved: a TrainJob's runtime sets the grace."""
        short = min((pod.grace_s for pod in observed.pods if pod.grace_s is not None), default=self._grace_s)
        if short < self._grace_s:
            sys.stderr.write(
                f"the pods are killed {short} s after SIGTERM, and may need {self._grace_s} s to "
                "save: raise terminationGracePeriodSeconds in the runtime, or lower resources.grace_s\n"
            )
            self._grace_s = short

    def _follow_log(self, observed: ObservedJob) -> None:
        """Follow the log of the pod of rank 0 that runs now."""
        chief = next((pod for pod in reversed(observed.pods) if pod.chief and pod.starts), None)
        if chief is None or (self._log and self._log.uid == chief.uid):
            return
        self._logs.close()
        self._log = LogFollower(self._leased.api, self._folder, chief.name, chief.uid)
        self._logs.enter_context(self._log)

    def _settled(self) -> Outcome:
        """Return the outcome once waiting longer cannot improve it.

        A network file system may show a file of another machine late, and the pods' last states arrive after
        the job's.
        """
        start = time.monotonic()
        outcome = self._outcome()
        while not self._is_settled(outcome, time.monotonic() - start):
            self._observer.wait(min(self._settings.tick_s, 1.0))
            self._observer.read_details()
            outcome = self._outcome()
        if not isinstance(outcome, Success):
            self._observer.read_details()
            outcome = self._outcome()
        return outcome

    def _outcome(self) -> Outcome:
        observed, marker = self._observer.observed, completed(self._folder, self._folder.name)
        saved_s = last_checkpoint_s(self._folder)
        outcome = diagnose(observed, marker, read_report(self._folder), saved_s=saved_s)
        if outcome is None:
            raise InternalError(f"job {observed.name} is diagnosed although it has not ended")
        return outcome

    def _is_settled(self, outcome: Outcome, waited_s: float) -> bool:
        if isinstance(outcome, Success) or waited_s > self._settings.settle_s:
            return True
        job = self._observer.observed.job
        says_success = job is not None and job.holds("Succeeded") and not job.holds("Failed")
        if says_success or (outcome.kind in _UNSETTLED and not outcome.pod):
            return False
        # The rest of a log, or an event, may yet explain an unexplained end.
        return (bool(outcome.pod) and outcome.kind not in _UNSETTLED) or waited_s > _PODS_TIMEOUT_S

    def _ended(self, outcome: Outcome) -> AttemptOutcome:
        observed, log = self._observer.observed, self._log
        followed = [pod.name for pod in observed.pods if log and log.flows and pod.uid == log.uid]
        with contextlib.suppress(OSError):
            self._logs.close()
        return AttemptOutcome(
            outcome=outcome,
            observed=observed,
            took_s=active_s(observed.job, self._now()),
            lost=self._before.with_observed(observed).lost,
            followed=next(iter(followed), ""),
        )


@dataclass(frozen=True, kw_only=True)
class LogPosition(Document):
    """The position in a pod's log: ``time`` is that of the last copied line, empty before the first."""

    FILE: ClassVar[str] = "log-position.json"
    pod: str
    uid: str
    time: str = ""


class LogFollower:
    """Copies a pod's log to standard error without a gap, in a thread; ``flows`` tells that lines arrive.

    The position is saved in the attempt's folder, so that a launcher that is started again continues there.
    A pod that replaces it has the same name and a log of its own, so its ``uid`` counts.
    """

    def __init__(
        self, api: Api, folder: Path, pod: str, uid: str, *, retry_s: float = _LONGEST_RETRY_S
    ) -> None:
        self._api, self._folder, self._retry_s = api, folder, retry_s
        self._position = LogPosition(pod=pod, uid=uid)
        with contextlib.suppress(InputError, OSError):
            saved = LogPosition.read(folder / LogPosition.FILE)
            self._position = saved if saved.uid == uid else self._position
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._open: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._saved_s, self.flows, self.uid = 0.0, False, uid

    def __enter__(self) -> Self:
        """Start copying."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop; the last lines of the pod are still copied if they arrive soon."""
        self._ended.set()
        if kind is None or issubclass(kind, Exception):
            self._thread.join(_LATE_S)
            self._save()
        self._stopped.set()
        if (response := self._open) is not None:
            with contextlib.suppress(Exception):  # it may be closing itself at this moment
                response.shutdown()

    def _run(self) -> None:
        pause_s, reported = _FIRST_RETRY_S, False
        while not self._stopped.is_set():
            over = self._ended.is_set()
            try:
                self._copy()
                pause_s, reported = _FIRST_RETRY_S, False
            except (ApiNotFound, ApiInvalid, ApiUnavailable):
                pass  # it has not started yet, or the kubelet or the API does not answer
            except TrainwrightError as error:
                # The right can come back: an API restarts, a role is edited.
                self.flows, pause_s = False, min(2 * pause_s, self._retry_s)
                if not reported:
                    sys.stderr.write(f"the log of pod {self._position.pod} cannot be shown: {error.what}\n")
                reported = True
            if over:
                return
            self._ended.wait(pause_s)

    def _copy(self) -> None:
        """Copy lines until the log ends, except those that were copied before."""
        last = self._position.time
        query = {"follow": "true"} | ({"sinceTime": last} if last else {})
        with self._api.log_lines(self._position.pod, query) as (response, lines):
            self._open = response
            for stamp, text in lines:
                if self._stopped.is_set():
                    return
                self.flows = True
                if stamp and _sort_key(stamp) <= _sort_key(last):
                    continue
                sys.stderr.write(f"{text}\n")
                if stamp:  # "failed to create fsnotify watcher" has none
                    self._position = replace(self._position, time=stamp)
                    if time.monotonic() - self._saved_s >= _SAVE_S:
                        self._save()

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        with contextlib.suppress(OSError):  # then some lines appear twice after a restart of the launcher
            self._position.write(self._folder / LogPosition.FILE)


def _sort_key(stamp: str) -> tuple[str, str]:
    """Return a sortable form of a timestamp, whose fraction has no trailing zeros."""
    seconds, _, fraction = stamp.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")
