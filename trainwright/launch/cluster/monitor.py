"""Monitor one attempt of a job to its end, within its limits. Time in a queue counts for no limit."""

import contextlib
import dataclasses
import hashlib
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import InternalError
from trainwright.launch import progress
from trainwright.launch.agent.heartbeat import STEPS
from trainwright.launch.cluster.adoption import LeasedJob
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.history import (
    AttemptHistory,
    AttemptLosses,
    exceeded_budget,
    last_checkpoint_s,
)
from trainwright.launch.cluster.log_follower import LogFollower
from trainwright.launch.cluster.observer import Observer
from trainwright.launch.diagnosis.diagnosis import Outcome, Success, diagnose, limit_failure
from trainwright.launch.diagnosis.incidents import Loss, charged_losses, find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.reports import read_report
from trainwright.launch.diagnosis.state import JobState
from trainwright.launch.diagnosis.status import JobStatus, job_status
from trainwright.launch.failure import Failure
from trainwright.launch.job import Budget, completed
from trainwright.launch.job_directory import job_directory_of

_STALL_MARGIN_S = 30.0
"""The job's own agents detect hangs too and know more; they come first."""

_UNSETTLED = frozenset({"UNKNOWN", "DELETED"})
"""Classes that more evidence can replace."""

_PODS_TIMEOUT_S = 3.0
"""Seconds in which the watch of the pods has to show which of them failed, once the job has."""


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """Time limits of a job, in seconds.

    Attributes:
        timeout_s: From its creation to its end.
        earlier_s: The part of it that earlier attempts used.
        pending_s: Until all pods run, and until they run again after some were lost.
        broken_s: For a pod with an unusable image or configuration, since registries hiccup.
        stall_s: Without progress; None: no limit.
        grace_s: That a pod needs to save after SIGTERM.
    """

    timeout_s: float
    earlier_s: float = 0.0
    pending_s: float = 1800.0
    broken_s: float = 120.0
    stall_s: float | None = None
    grace_s: int = 0


@dataclass(frozen=True, kw_only=True)
class LimitExceeded:
    """A limit that a job has exceeded: the failure class, and a sentence with the limit."""

    kind: str
    what: str


class Watchdog:
    """Detects that a job exceeds a limit. It has no clock: each call passes the time.

    Args:
        limits: The limits.
        folder: The attempt's folder, in which the processes write their progress.
    """

    def __init__(self, limits: JobLimits, folder: Path) -> None:
        self._limits, self._folder = limits, folder
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
        limit_s, took_s = self._limits.timeout_s, active_s(observed.job, now_s) + self._limits.earlier_s
        if took_s <= limit_s:
            return None
        done = progress.read_progress(self._folder)
        state = progress.progress_line(done) if done else "training had not begun"
        attempts = ", over all attempts," if self._limits.earlier_s else ""
        what = f"job {observed.name} did not end within {limit_s:,.0f} s{attempts} and was ended: {state}"
        return LimitExceeded(kind="DEADLINE", what=what)

    def _broken(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        waiting = status.waiting
        # An elastic job continues without the pod that cannot start.
        if waiting is None or not waiting.broken or status.phase in {"running", "ending"}:
            self._broken_since = None
            return None
        self._broken_since = now_s if self._broken_since is None else self._broken_since
        if now_s - self._broken_since <= self._limits.broken_s:
            return None
        what = f"job {observed.name} cannot start and was deleted: {waiting}"
        return LimitExceeded(kind=waiting.kind, what=what)

    def _short(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        """Check that lost pods are replaced, and that a job ends after its pods, in ``pending_s``."""
        if status.phase != "restarting" and not (status.phase == "ending" and not status.running):
            self._short_since = None
            return None
        self._short_since = now_s if self._short_since is None else self._short_since
        if now_s - self._short_since <= self._limits.pending_s:
            return None
        waiting = status.waiting
        lost = [entry.finding for entry in find_incidents(observed) if not entry.recovered]
        kind = waiting.kind if waiting else next((finding.kind for finding in lost), "INFRASTRUCTURE")
        why = str(waiting) if waiting else "; ".join([str(status), *(finding.what for finding in lost[:1])])
        missed = "get its pods back" if status.phase == "restarting" else "end after its pods"
        within = f"within {self._limits.pending_s:,.0f} s"
        what = f"job {observed.name} did not {missed} {within} and was deleted: {why}"
        return LimitExceeded(kind=kind, what=what)

    def _pending(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        waiting, job = status.waiting, observed.job
        started = {"running", "ended", "restarting", "ending", "absent"}
        if status.phase in started or job is None or job.holds("Suspended"):
            return None
        waited_s = active_s(job, now_s)
        if job.suspensions:  # each time the job leaves the queue, its pods start anew
            waited_s = min(waited_s, now_s - (job.suspensions[-1][1] or now_s))
        if waited_s <= self._limits.pending_s:
            return None
        within = f"within {self._limits.pending_s:,.0f} s"
        what = f"job {observed.name} did not start {within} and was deleted: {waiting or status}"
        return LimitExceeded(kind=waiting.kind if waiting else "UNSCHEDULABLE", what=what)

    def _stalled(self, observed: ObservedJob, status: JobStatus, now_s: float) -> LimitExceeded | None:
        limit_s = self._limits.stall_s
        if limit_s is None or status.phase not in {"running", "ending"}:
            self._mark = ""
            return None
        mark = _progress_mark(self._folder)
        if mark != self._mark or not mark:
            self._mark, self._moved_s = mark, now_s
        if not mark or now_s - self._moved_s <= limit_s + _STALL_MARGIN_S:
            return None
        done = progress.read_progress(self._folder)
        state = progress.progress_line(done) if done else "it had begun"
        waited_s = limit_s + _STALL_MARGIN_S
        what = f"job {observed.name} made no progress for {waited_s:,.0f} s and was ended: {state}"
        return LimitExceeded(kind="STUCK", what=what)


def active_s(job: JobState | None, now_s: float) -> float:
    """Return the seconds since a job's creation, until its end if it has ended, without suspended time."""
    if job is None or job.created_s is None:
        return 0.0
    if job.said and job.ended_s is not None:
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
    heartbeats = sorted((folder / "pulse").glob("rank-*"))
    if not (folder / "progress.json").exists() and not heartbeats:
        return ""
    lines = _read_texts(heartbeats)
    if any(not text.startswith(STEPS) for text in lines):
        return ""
    texts = [*_read_texts([folder / "progress.json"]), *lines]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _read_texts(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:  # removed with the round of another machine
            texts.append("")
    return texts


@dataclass(frozen=True, kw_only=True)
class PollingIntervals:
    """Polling intervals of a launcher, in seconds.

    Attributes:
        tick_s: Between two looks at the clock and at the files of the attempt.
        settle_s: For the marker of a job that says Succeeded to appear, and for the pods' last states.
        renew_s: Between two renewals of the lease.
        now: Returns the time in seconds since 1970; None: the clock of the API server.
    """

    tick_s: float = 2.0
    settle_s: float = 60.0
    renew_s: float = 60.0
    now: Callable[[], float] | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptOutcome:
    """An attempt that has ended.

    Attributes:
        outcome: Success or failure.
        observed: All that was observed of it.
        took_s: Its duration, time in a queue excluded.
        lost: The pods, or runs of their containers, that it lost.
        logged: The pod whose log was shown while it was written; empty if none.
    """

    outcome: Outcome
    observed: ObservedJob
    took_s: float
    lost: tuple[Loss, ...]
    logged: str = ""


class JobMonitor:
    """Monitors one attempt.

    Args:
        api: Access to the cluster.
        leased: The job.
        holder: Name of this launcher.
        limits: The job's limits.
        budget: How often pods may be lost, over all attempts.
        history: The failed attempts before this one.
        pace: Polling intervals.
    """

    def __init__(
        self,
        api: Api,
        leased: LeasedJob,
        holder: str,
        limits: JobLimits,
        budget: Budget,
        history: AttemptHistory,
        pace: PollingIntervals,
    ) -> None:
        self._api, self._folder, self._pace = api, leased.folder, pace
        self._now = pace.now or api.clock.now
        self._budget, self._history = budget, history
        self._observer = Observer(api, leased, holder, every_s=pace.renew_s)
        self._watchdog, self._before = Watchdog(limits, leased.folder), AttemptLosses.of(leased.folder)
        self._losses = self._before
        self._logs, self._line, self._phase, self._exits = ExitStack(), "", "", 0
        self._log: LogFollower | None = None
        self._grace_s = limits.grace_s

    @property
    def version(self) -> str:
        """The last observed ``resourceVersion`` of the job."""
        return self._observer.version

    def follow(self) -> AttemptOutcome:
        """Follow the attempt to its end. The caller deletes one that exceeds a limit.

        Raises:
            LeaseLost: Another launcher has adopted the job.
            TrainwrightError: The API rejects a call, or is unreachable for too long.
        """
        with self._observer, self._logs:
            while True:
                self._observer.wait(self._pace.tick_s)
                observed = self._observer.observed
                self._read_new_exits(observed)
                status = job_status(observed)
                if status.phase == "ended":
                    return self._ended(self._settled())
                if exceeded := self._exceeded(observed, status):
                    return self._ended(self._given_up(exceeded))
                self._attend(observed, status)

    def _exceeded(self, observed: ObservedJob, status: JobStatus) -> LimitExceeded | None:
        """Return the limit or the budget that the attempt exceeds."""
        if not self._observer.listed:
            return None  # nothing is known yet of an adopted job, which may have run for days
        if exceeded := self._watchdog.check(observed, status, self._now()):
            return exceeded
        if observed.job is None or observed.job.needed == observed.job.pods:
            return None  # a lost pod ends a job of fixed size, and then the diagnosis decides
        self._save_losses(observed)
        counts = self._history.spent
        charged = charged_losses(self._losses.lost)
        for loss in charged:
            counts[loss.budget] = counts.get(loss.budget, 0) + 1
        if status.phase == "running" and (name := exceeded_budget(self._budget, counts)):
            last = ([loss for loss in charged if loss.budget == name] or list(self._losses.lost))[-1:]
            cause = f"; at last {last[0].what}" if last else " by the attempts before"
            what = f"job {observed.name} was ended: its {name} budget is used up{cause}"
            return LimitExceeded(kind=last[0].kind if last else "UNKNOWN", what=what)
        return None

    def _save_losses(self, observed: ObservedJob) -> None:
        """Save the losses so far for a launcher that adopts the job."""
        now = self._before.with_observed(observed)
        if now != self._losses:
            self._losses = now
            now.save(self._folder)

    def _given_up(self, exceeded: LimitExceeded) -> Outcome:
        """Return the outcome of a job at a limit: success if only its pods fail to end."""
        if marker := completed(self._folder, self._folder.name):
            return Success(completion=marker, doubts=(exceeded.what,))
        self._observer.read_details()
        saved_s = self._last_checkpoint_s()
        return limit_failure(self._observer.observed, exceeded.kind, exceeded.what, saved_s=saved_s)

    def _read_new_exits(self, observed: ObservedJob) -> None:
        """Read logs that exist only for a moment, before anything is judged by them."""
        # A restarted container counts too: the log of its last run is kept until the next restart.
        exits = sum(len(pod.endings) + len(pod.starts) for pod in observed.pods if pod.endings)
        if exits != self._exits:
            self._exits = exits
            self._observer.read_details()

    def _attend(self, observed: ObservedJob, status: JobStatus) -> None:
        """Read why a job waits, show the log, and print the status."""
        if status.phase != "running":
            self._observer.read_details(waiting=status.phase == self._phase)
        self._phase = status.phase
        self._follow_log(observed)
        self._compare_grace(observed)
        done = progress.read_progress(self._folder) if status.phase in {"running", "ending"} else None
        if done is None or not (self._log and self._log.flows):
            self._print(progress.progress_line(done) if done else str(status))

    def _compare_grace(self, observed: ObservedJob) -> None:
        """Warn once if pods are killed before they can have saved: a TrainJob's runtime sets the grace."""
        short = min((pod.grace_s for pod in observed.pods if pod.grace_s is not None), default=self._grace_s)
        if short >= self._grace_s:
            return
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
        self._log = LogFollower(self._api, self._folder, chief.name, chief.uid)
        self._logs.enter_context(self._log)

    def _settled(self) -> Outcome:
        """Return the outcome once waiting longer cannot improve it.

        A network file system may show a file of another machine late, and the pods' last states arrive after
        the job's.
        """
        start = time.monotonic()
        outcome = self._outcome()
        while not self._is_settled(outcome, time.monotonic() - start):
            self._observer.wait(min(self._pace.tick_s, 1.0))
            self._observer.read_details()
            outcome = self._outcome()
        if not isinstance(outcome, Success):
            self._observer.read_details()
            outcome = self._outcome()
        return outcome

    def _outcome(self) -> Outcome:
        observed, marker = self._observer.observed, completed(self._folder, self._folder.name)
        report = read_report(self._folder)
        outcome = diagnose(observed, marker, report, saved_s=self._last_checkpoint_s())
        if outcome is None:
            raise InternalError(f"job {observed.name} is diagnosed although it has not ended")
        return outcome

    def _is_settled(self, outcome: Outcome, waited_s: float) -> bool:
        if isinstance(outcome, Success) or waited_s > self._pace.settle_s:
            return True
        job = self._observer.observed.job
        says_success = job is not None and job.holds("Succeeded") and not job.holds("Failed")
        if says_success or (outcome.kind in _UNSETTLED and not outcome.pod):
            return False
        # The rest of a log, or an event, may yet explain an unexplained end.
        return (bool(outcome.pod) and outcome.kind not in _UNSETTLED) or waited_s > _PODS_TIMEOUT_S

    def _ended(self, outcome: Outcome) -> AttemptOutcome:
        observed = self._observer.observed
        shown = next((pod.name for pod in observed.pods if self._log and pod.uid == self._log.uid), "")
        flows = self._log is not None and self._log.flows
        with contextlib.suppress(OSError):
            self._logs.close()
        losses = self._before.with_observed(observed)
        if isinstance(outcome, Failure):
            unseen_s = losses.unobserved_gpu_s(observed, self._last_checkpoint_s())
            outcome = dataclasses.replace(outcome, lost_gpu_s=outcome.lost_gpu_s + unseen_s)
        return AttemptOutcome(
            outcome=outcome,
            observed=observed,
            took_s=active_s(observed.job, self._now()),
            lost=losses.lost,
            logged=shown if flows else "",
        )

    def _print(self, line: str) -> None:
        """Write a line into the step's log unless it repeats the last one."""
        if line != self._line:
            self._line = line
            sys.stderr.write(f"{line}\n")

    def _last_checkpoint_s(self) -> float:
        directory = job_directory_of(self._folder)
        return last_checkpoint_s(directory) if directory else 0.0


def should_retry(failure: Failure, budget: Budget, spent: dict[str, int]) -> bool:
    """Tell whether another attempt follows: the class is retryable and no budget is exceeded."""
    return failure.retryable and not exceeded_budget(budget, spent)
