"""The limits that a launcher holds a job to. Time in a queue counts for none of them."""

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
from trainwright.launch import job_directory, progress
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

_STALL_MARGIN_S = 30.0
"""The job's own agents look for hangs too and know more; they come first."""


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """How long a job may take to do what.

    Attributes:
        timeout_s: Seconds from its creation to its end.
        earlier_s: Seconds of these that earlier attempts took.
        pending_s: Seconds until all of its pods run, and until they do so again where some were lost.
        broken_s: Seconds that a pod with an unusable image or configuration is given: registries hiccup.
        stall_s: Seconds without progress; absent: any.
        grace_s: Seconds that a pod needs to save once it is told to stop.
    """

    timeout_s: float
    earlier_s: float = 0.0
    pending_s: float = 1800.0
    broken_s: float = 120.0
    stall_s: float | None = None
    grace_s: int = 0


@dataclass(frozen=True, kw_only=True)
class LimitExceeded:
    """A limit that was reached.

    Attributes:
        kind: The class of failures that this is.
        what: The limit, and what was reached of it.
    """

    kind: str
    what: str


class Watchdog:
    """Tells when a job reaches a limit. It has no clock: the time is told with every look.

    Args:
        limits: The limits.
        folder: The attempt's folder, where the processes write down how far they are.
    """

    def __init__(self, limits: JobLimits, folder: Path) -> None:
        self._limits, self._folder = limits, folder
        self._broken_since: float | None = None
        self._short_since: float | None = None
        self._mark, self._moved_s = "", 0.0

    def look(self, observed: ObservedJob, stands: JobStatus, now_s: float) -> LimitExceeded | None:
        """Return the limit that is reached, if one is.

        Args:
            observed: What was seen of the job.
            stands: Where it stands.
            now_s: The time, in seconds since 1970.
        """
        return (
            self._late(observed, now_s)
            or self._broken(observed, stands, now_s)
            or self._short(observed, stands, now_s)
            or self._pending(observed, stands, now_s)
            or self._stalled(observed, stands, now_s)
        )

    def _late(self, observed: ObservedJob, now_s: float) -> LimitExceeded | None:
        limit_s, took_s = self._limits.timeout_s, active_s(observed.job, now_s) + self._limits.earlier_s
        if took_s <= limit_s:
            return None
        done = progress.read_progress(self._folder)
        state = progress.progress_line(done) if done else "training had not begun"
        attempts = ", over all attempts," if self._limits.earlier_s else ""
        return LimitExceeded(
            kind="DEADLINE",
            what=f"job {observed.name} did not end within {limit_s:,.0f} s{attempts} and was ended: {state}",
        )

    def _broken(self, observed: ObservedJob, stands: JobStatus, now_s: float) -> LimitExceeded | None:
        held = stands.waiting
        # An elastic job goes on without the pod that cannot start: what runs is not ended for it.
        if held is None or not held.broken or stands.phase in {"running", "ending"}:
            self._broken_since = None
            return None
        self._broken_since = now_s if self._broken_since is None else self._broken_since
        if now_s - self._broken_since <= self._limits.broken_s:
            return None
        return LimitExceeded(kind=held.kind, what=f"job {observed.name} cannot start and was deleted: {held}")

    def _short(self, observed: ObservedJob, stands: JobStatus, now_s: float) -> LimitExceeded | None:
        """A job that ran and has lost pods gets them back within the time that it had for them at first.

        One whose pods have all ended well is said to have succeeded within the same time.
        """
        if stands.phase != "restarting" and not (stands.phase == "ending" and not stands.running):
            self._short_since = None
            return None
        self._short_since = now_s if self._short_since is None else self._short_since
        if now_s - self._short_since <= self._limits.pending_s:
            return None
        held, lost = (
            stands.waiting,
            [entry.finding for entry in find_incidents(observed) if not entry.recovered],
        )
        kind = held.kind if held else next((finding.kind for finding in lost), "INFRASTRUCTURE")
        why = str(held) if held else "; ".join([str(stands), *(finding.what for finding in lost[:1])])
        within = f"within {self._limits.pending_s:,.0f} s"
        lacks = "get its pods back" if stands.phase == "restarting" else "end after its pods"
        what = f"job {observed.name} did not {lacks} {within} and was deleted: {why}"
        return LimitExceeded(kind=kind, what=what)

    def _pending(self, observed: ObservedJob, stands: JobStatus, now_s: float) -> LimitExceeded | None:
        held, job = stands.waiting, observed.job
        if (
            stands.phase in {"running", "ended", "restarting", "ending", "absent"}
            or job is None
            or job.holds("Suspended")
        ):
            return None
        waited_s = active_s(job, now_s)
        if job.suspensions:  # every time that it leaves the queue, its pods begin anew
            waited_s = min(waited_s, now_s - (job.suspensions[-1][1] or now_s))
        if waited_s <= self._limits.pending_s:
            return None
        why = f": {held}" if held else f": {stands}"
        kind = held.kind if held else "UNSCHEDULABLE"
        what = (
            f"job {observed.name} did not start within {self._limits.pending_s:,.0f} s and was deleted{why}"
        )
        return LimitExceeded(kind=kind, what=what)

    def _stalled(self, observed: ObservedJob, stands: JobStatus, now_s: float) -> LimitExceeded | None:
        limit_s = self._limits.stall_s
        if limit_s is None or stands.phase not in {"running", "ending"}:
            self._mark = ""
            return None
        mark = _progress_mark(self._folder)
        if mark != self._mark or not mark:
            self._mark, self._moved_s = mark, now_s
        if not mark or now_s - self._moved_s <= limit_s + _STALL_MARGIN_S:
            return None
        done = progress.read_progress(self._folder)
        state = progress.progress_line(done) if done else "it had begun"
        what = f"job {observed.name} made no progress for {limit_s + _STALL_MARGIN_S:,.0f} s and was ended: {state}"
        return LimitExceeded(kind="STUCK", what=what)


def active_s(job: JobState | None, now_s: float) -> float:
    """Return how long a job is there, in seconds, without the time in which it was suspended in a queue.

    One that has ended takes no longer, however late somebody comes to look at it.
    """
    if job is None or job.created_s is None:
        return 0.0
    if job.said and job.ended_s is not None:
        now_s = min(now_s, job.ended_s)
    waited_s = sum(
        max(0.0, (until if until is not None else now_s) - since) for since, until in job.suspensions
    )
    return max(0.0, now_s - job.created_s - waited_s)


def _progress_mark(folder: Path) -> str:
    """Return what changes whenever the job gets on; empty where silence means nothing.

    That is before its first step, and while any process is at something of unknown length, such as an
    evaluation or the commit of a checkpoint.
    """
    pulses = sorted((folder / "pulse").glob("rank-*"))
    if not (folder / "progress.json").exists() and not pulses:
        return ""
    said = [*_read_texts([folder / "progress.json"]), *_read_texts(pulses)]
    if any(not text.startswith(STEPS) for text in _read_texts(pulses)):
        return ""
    return hashlib.sha256("\0".join(said).encode()).hexdigest()


def _read_texts(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:  # gone with the round of another machine
            texts.append("")
    return texts


_UNSETTLED = frozenset({"UNKNOWN", "DELETED"})
"""Answers that more evidence can make better."""

_PODS_TIMEOUT_S = 3.0
"""Seconds in which the watch of the pods has to tell which of them failed, once the job has."""


@dataclass(frozen=True, kw_only=True)
class PollingIntervals:
    """How often a launcher looks, in seconds.

    Attributes:
        tick_s: Between two looks at the clock and at the files of the attempt.
        settle_s: That the marker of a job which says Succeeded is given to be seen, and the pods' last words.
        renew_s: Between two renewals of the lease.
        now: The time, in seconds since 1970; absent: that of the API's clock.
    """

    tick_s: float = 2.0
    settle_s: float = 60.0
    renew_s: float = 60.0
    now: Callable[[], float] | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptOutcome:
    """An attempt that has ended.

    Attributes:
        outcome: How.
        observed: What was seen of it.
        took_s: How long it took, waiting in a queue apart.
        lost: What it lost of its pods.
        logged: The pod whose log was shown as it came; empty if none was.
    """

    outcome: Outcome
    observed: ObservedJob
    took_s: float
    lost: tuple[Loss, ...]
    logged: str = ""


class JobMonitor:
    """Follows one attempt.

    Args:
        api: Access to the cluster.
        held: The job.
        holder: Name of this launcher.
        limits: What it may take.
        budget: How often pods may be lost, over all attempts.
        ledger: What became of the attempts before.
        pace: How often to look.
    """

    def __init__(
        self,
        api: Api,
        held: LeasedJob,
        holder: str,
        limits: JobLimits,
        budget: Budget,
        ledger: AttemptHistory,
        pace: PollingIntervals,
    ) -> None:
        self._api, self._held, self._pace = api, held, pace
        self._now = pace.now or api.clock.now
        self._budget, self._ledger = budget, ledger
        self._sight = Observer(api, held, holder, every_s=pace.renew_s)
        self._watchdog, self._before = Watchdog(limits, held.folder), AttemptLosses.of(held.folder)
        self._losses = self._before
        self._logs, self._said, self._phase, self._ended = ExitStack(), "", "", 0
        self._log: LogFollower | None = None
        self._grace_s = limits.grace_s

    @property
    def version(self) -> str:
        """The version in which the job was last seen."""
        return self._sight.version

    def follow(self) -> AttemptOutcome:
        """Follow it to its end; one that reaches a limit is left as it is, for the caller to delete.

        Raises:
            Outdone: Another launcher has taken it over.
            TrainwrightError: The API refuses, or is out of reach for too long.
        """
        with self._sight, self._logs:
            while True:
                self._sight.wait(self._pace.tick_s)
                observed = self._sight.observed
                self._see_ends(observed)
                stands = job_status(observed)
                if stands.phase == "ended":
                    return self._followed(self._settled())
                if reached := self._reached(observed, stands):
                    return self._followed(self._given_up(reached))
                self._attend(observed, stands)

    def _reached(self, observed: ObservedJob, stands: JobStatus) -> LimitExceeded | None:
        """Return the limit that is reached, or the budget that the pods have used up within the attempt."""
        if not self._sight.listed:
            return None  # of a job that was found, nothing is known yet: it may have run for days
        if reached := self._watchdog.look(observed, stands, self._now()):
            return reached
        if observed.job is None or observed.job.needed == observed.job.pods:
            return None  # of fixed size: what happens to a pod ends the job, and then the diagnosis decides
        self._note_losses(observed)
        counts = self._ledger.spent
        paid = charged_losses(self._losses.lost)
        for loss in paid:
            counts[loss.budget] = counts.get(loss.budget, 0) + 1
        if stands.phase == "running" and (name := exceeded_budget(self._budget, counts)):
            last = ([loss for loss in paid if loss.budget == name] or list(self._losses.lost))[-1:]
            said = f"; at last {last[0].what}" if last else " by the attempts before"
            what = f"job {observed.name} was ended: its {name} budget is used up{said}"
            return LimitExceeded(kind=last[0].kind if last else "UNKNOWN", what=what)
        return None

    def _note_losses(self, observed: ObservedJob) -> None:
        """Note what the attempt has lost so far, for whoever takes it over."""
        now = self._before.with_those_of(observed)
        if now != self._losses:
            self._losses = now
            now.note(self._held.folder)

    def _given_up(self, reached: LimitExceeded) -> Outcome:
        """Say how a job ends that reached a limit: with a success, if only its pods do not come to an end."""
        folder = self._held.folder
        if marker := completed(folder, folder.name):
            return Success(completion=marker, doubts=(reached.what,))
        self._sight.read_details()
        return limit_failure(
            self._sight.observed, reached.kind, reached.what, saved_s=_last_checkpoint_s(folder)
        )

    def _see_ends(self, observed: ObservedJob) -> None:
        """Read what only is there for a moment, before anything is judged by it."""
        # A container that was started again is news too: the log of the one before is kept until the next.
        ended = sum(len(pod.endings) + len(pod.starts) for pod in observed.pods if pod.endings)
        if ended != self._ended:
            self._ended = ended
            self._sight.read_details()

    def _attend(self, observed: ObservedJob, stands: JobStatus) -> None:
        """Look at what a waiting job waits for, show the log, say where the job stands."""
        if stands.phase != "running":
            self._sight.read_details(waiting=stands.phase == self._phase)
        self._phase = stands.phase
        self._follow_log(observed)
        self._compare_grace(observed)
        done = progress.read_progress(self._held.folder) if stands.phase in {"running", "ending"} else None
        if done is None or not (self._log and self._log.flows):
            self._say(progress.progress_line(done) if done else str(stands))

    def _compare_grace(self, observed: ObservedJob) -> None:
        """Say so if pods are killed before they can have saved: a TrainJob's grace is that of its runtime."""
        short = min((pod.grace_s for pod in observed.pods if pod.grace_s is not None), default=self._grace_s)
        if short >= self._grace_s:
            return
        sys.stderr.write(
            f"the pods are killed {short} s after SIGTERM, and may need {self._grace_s} s to "
            "save: raise terminationGracePeriodSeconds in the runtime, or lower resources.grace_s\n"
        )
        self._grace_s = short  # said once

    def _follow_log(self, observed: ObservedJob) -> None:
        """Follow the log of the pod of rank 0 that runs now."""
        chief = next((pod for pod in reversed(observed.pods) if pod.chief and pod.starts), None)
        if chief is None or (self._log and self._log.uid == chief.uid):
            return
        self._logs.close()
        self._log = LogFollower(self._api, self._held.folder, chief.name, chief.uid)
        self._logs.enter_context(self._log)

    def _settled(self) -> Outcome:
        """Say how the job ended, once nothing better can be expected from waiting.

        A file that another machine wrote can take a while to be seen on a network file system, and the pods'
        last words come after the job's.
        """
        start = time.monotonic()
        outcome = self._outcome()
        while not self._is_settled(outcome, time.monotonic() - start):
            self._sight.wait(min(self._pace.tick_s, 1.0))
            self._sight.read_details()
            outcome = self._outcome()
        if not isinstance(outcome, Success):
            self._sight.read_details()
            outcome = self._outcome()
        return outcome

    def _outcome(self) -> Outcome:
        folder, observed = self._held.folder, self._sight.observed
        outcome = diagnose(
            observed, completed(folder, folder.name), read_report(folder), saved_s=_last_checkpoint_s(folder)
        )
        if outcome is None:
            raise InternalError(f"job {observed.name} is judged although it goes on")
        return outcome

    def _is_settled(self, outcome: Outcome, waited_s: float) -> bool:
        """Tell whether nothing better can be expected from waiting longer."""
        if isinstance(outcome, Success) or waited_s > self._pace.settle_s:
            return True
        job = self._sight.observed.job
        says_success = job is not None and job.holds("Succeeded") and not job.holds("Failed")
        if says_success or (outcome.kind in _UNSETTLED and not outcome.pod):
            return False
        # An end that nothing explains so far may yet be explained by the rest of a log, or by an event.
        return (bool(outcome.pod) and outcome.kind not in _UNSETTLED) or waited_s > _PODS_TIMEOUT_S

    def _followed(self, outcome: Outcome) -> AttemptOutcome:
        observed = self._sight.observed
        shown = next((pod.name for pod in observed.pods if self._log and pod.uid == self._log.uid), "")
        flows = self._log is not None and self._log.flows
        with contextlib.suppress(OSError):
            self._logs.close()
        losses = self._before.with_those_of(observed)
        if isinstance(outcome, Failure):
            unseen_s = losses.forgotten_gpu_s(observed, _last_checkpoint_s(self._held.folder))
            outcome = dataclasses.replace(outcome, lost_gpu_s=outcome.lost_gpu_s + unseen_s)
        return AttemptOutcome(
            outcome=outcome,
            observed=observed,
            took_s=active_s(observed.job, self._now()),
            lost=losses.lost,
            logged=shown if flows else "",
        )

    def _say(self, line: str) -> None:
        """Write a line into the step's log if it is news."""
        if line != self._said:
            self._said = line
            sys.stderr.write(f"{line}\n")


def _last_checkpoint_s(folder: Path) -> float:
    home = job_directory.job_directory_of(folder)
    return last_checkpoint_s(home) if home else 0.0


def should_retry(failure: Failure, budget: Budget, spent_now: dict[str, int]) -> bool:
    """Tell whether another attempt follows: its class passes, and no budget is used up beyond its limit."""
    return failure.retryable and not exceeded_budget(budget, spent_now)
