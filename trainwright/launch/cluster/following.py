"""Following one attempt from where it is found to its end, within its limits."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import InternalError
from trainwright.launch import attempt, progress
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.joining import Held
from trainwright.launch.cluster.ledger import Ledger, exceeded
from trainwright.launch.cluster.limits import Limits, Reached, Watchdog, worked_s
from trainwright.launch.cluster.logs import LogFollower
from trainwright.launch.cluster.losses import Losses
from trainwright.launch.cluster.saved import saved_s
from trainwright.launch.cluster.sight import Sight
from trainwright.launch.diagnosis import (
    Loss,
    Observed,
    Outcome,
    Standing,
    Success,
    charged,
    diagnose,
    gave_up,
    left_in,
    standing,
)
from trainwright.launch.failure import Failure
from trainwright.launch.job import Budget, completed

_OPEN = frozenset({"UNKNOWN", "DELETED"})
"""Answers that more evidence can make better."""

_PODS_S = 3.0
"""Seconds in which the watch of the pods has to tell which of them failed, once the job has."""


@dataclass(frozen=True, kw_only=True)
class Pace:
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
class Followed:
    """An attempt that has ended.

    Attributes:
        outcome: How.
        observed: What was seen of it.
        took_s: How long it took, waiting in a queue apart.
        lost: What it lost of its pods.
        logged: The pod whose log was shown as it came; empty if none was.
    """

    outcome: Outcome
    observed: Observed
    took_s: float
    lost: tuple[Loss, ...]
    logged: str = ""


class Follower:
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
        self, api: Api, held: Held, holder: str, limits: Limits, budget: Budget, ledger: Ledger, pace: Pace
    ) -> None:
        self._api, self._held, self._pace = api, held, pace
        self._now = pace.now or api.clock.now
        self._budget, self._ledger = budget, ledger
        self._sight = Sight(api, held, holder, every_s=pace.renew_s)
        self._watchdog, self._before = Watchdog(limits, held.folder), Losses.of(held.folder)
        self._losses = self._before
        self._logs, self._said, self._phase, self._ended = ExitStack(), "", "", 0
        self._log: LogFollower | None = None
        self._grace_s = limits.grace_s

    @property
    def version(self) -> str:
        """The version in which the job was last seen."""
        return self._sight.version

    def follow(self) -> Followed:
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
                stands = standing(observed)
                if stands.phase == "ended":
                    return self._followed(self._settled())
                if reached := self._reached(observed, stands):
                    return self._followed(self._given_up(reached))
                self._attend(observed, stands)

    def _reached(self, observed: Observed, stands: Standing) -> Reached | None:
        """Return the limit that is reached, or the budget that the pods have used up within the attempt."""
        if not self._sight.listed:
            return None  # of a job that was found, nothing is known yet: it may have run for days
        if reached := self._watchdog.look(observed, stands, self._now()):
            return reached
        if observed.job is None or observed.job.needed == observed.job.pods:
            return None  # of fixed size: what happens to a pod ends the job, and then the diagnosis decides
        self._note_losses(observed)
        counts = self._ledger.spent
        paid = charged(self._losses.lost)
        for loss in paid:
            counts[loss.budget] = counts.get(loss.budget, 0) + 1
        if stands.phase == "running" and (name := exceeded(self._budget, counts)):
            last = ([loss for loss in paid if loss.budget == name] or list(self._losses.lost))[-1:]
            said = f"; at last {last[0].what}" if last else " by the attempts before"
            what = f"job {observed.name} was ended: its {name} budget is used up{said}"
            return Reached(kind=last[0].kind if last else "UNKNOWN", what=what)
        return None

    def _note_losses(self, observed: Observed) -> None:
        """Note what the attempt has lost so far, for whoever takes it over."""
        now = self._before.with_those_of(observed)
        if now != self._losses:
            self._losses = now
            now.note(self._held.folder)

    def _given_up(self, reached: Reached) -> Outcome:
        """Say how a job ends that reached a limit: with a success, if only its pods do not come to an end."""
        folder = self._held.folder
        if marker := completed(folder, folder.name):
            return Success(completion=marker, doubts=(reached.what,))
        self._sight.look_closer()
        return gave_up(self._sight.observed, reached.kind, reached.what, saved_s=_saved_s(folder))

    def _see_ends(self, observed: Observed) -> None:
        """Read what only is there for a moment, before anything is judged by it."""
        # A container that was started again is news too: the log of the one before is kept until the next.
        ended = sum(len(pod.endings) + len(pod.starts) for pod in observed.pods if pod.endings)
        if ended != self._ended:
            self._ended = ended
            self._sight.look_closer()

    def _attend(self, observed: Observed, stands: Standing) -> None:
        """Look at what a waiting job waits for, show the log, say where the job stands."""
        if stands.phase != "running":
            self._sight.look_closer(waiting=stands.phase == self._phase)
        self._phase = stands.phase
        self._follow_log(observed)
        self._compare_grace(observed)
        done = progress.read(self._held.folder) if stands.phase in {"running", "ending"} else None
        if done is None or not (self._log and self._log.flows):
            self._say(progress.line(done) if done else str(stands))

    def _compare_grace(self, observed: Observed) -> None:
        """Say so if pods are killed before they can have saved: a TrainJob's grace is that of its runtime."""
        short = min((pod.grace_s for pod in observed.pods if pod.grace_s is not None), default=self._grace_s)
        if short >= self._grace_s:
            return
        sys.stderr.write(
            f"the pods are killed {short} s after SIGTERM, and may need {self._grace_s} s to "
            "save: raise terminationGracePeriodSeconds in the runtime, or lower resources.grace_s\n"
        )
        self._grace_s = short  # said once

    def _follow_log(self, observed: Observed) -> None:
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
            self._sight.look_closer()
            outcome = self._outcome()
        if not isinstance(outcome, Success):
            self._sight.look_closer()
            outcome = self._outcome()
        return outcome

    def _outcome(self) -> Outcome:
        folder, observed = self._held.folder, self._sight.observed
        outcome = diagnose(
            observed, completed(folder, folder.name), left_in(folder), saved_s=_saved_s(folder)
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
        if says_success or (outcome.kind in _OPEN and not outcome.pod):
            return False
        # An end that nothing explains so far may yet be explained by the rest of a log, or by an event.
        return (bool(outcome.pod) and outcome.kind not in _OPEN) or waited_s > _PODS_S

    def _followed(self, outcome: Outcome) -> Followed:
        observed = self._sight.observed
        shown = next((pod.name for pod in observed.pods if self._log and pod.uid == self._log.uid), "")
        flows = self._log is not None and self._log.flows
        with contextlib.suppress(OSError):
            self._logs.close()
        losses = self._before.with_those_of(observed)
        if isinstance(outcome, Failure):
            unseen_s = losses.forgotten_gpu_s(observed, _saved_s(self._held.folder))
            outcome = dataclasses.replace(outcome, lost_gpu_s=outcome.lost_gpu_s + unseen_s)
        return Followed(
            outcome=outcome,
            observed=observed,
            took_s=worked_s(observed.job, self._now()),
            lost=losses.lost,
            logged=shown if flows else "",
        )

    def _say(self, line: str) -> None:
        """Write a line into the step's log if it is news."""
        if line != self._said:
            self._said = line
            sys.stderr.write(f"{line}\n")


def _saved_s(folder: Path) -> float:
    home = attempt.home_of(folder)
    return saved_s(home) if home else 0.0


def tries_again(failure: Failure, budget: Budget, spent_now: dict[str, int]) -> bool:
    """Tell whether another attempt follows: its class passes, and no budget is used up beyond its limit."""
    return failure.retryable and not exceeded(budget, spent_now)
