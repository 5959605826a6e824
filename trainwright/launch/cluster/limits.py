"""The limits that a launcher holds a job to. Time in a queue counts for none of them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainwright.launch import progress
from trainwright.launch.diagnosis import Observed, Standing, incidents
from trainwright.launch.diagnosis.job_story import JobStory
from trainwright.launch.pulse import STEPS

_MARGIN_S = 30.0
"""The job's own agents look for hangs too and know more; they come first."""


@dataclass(frozen=True, kw_only=True)
class Limits:
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
class Reached:
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

    def __init__(self, limits: Limits, folder: Path) -> None:
        self._limits, self._folder = limits, folder
        self._broken_since: float | None = None
        self._short_since: float | None = None
        self._mark, self._moved_s = "", 0.0

    def look(self, observed: Observed, stands: Standing, now_s: float) -> Reached | None:
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

    def _late(self, observed: Observed, now_s: float) -> Reached | None:
        limit_s, took_s = self._limits.timeout_s, worked_s(observed.job, now_s) + self._limits.earlier_s
        if took_s <= limit_s:
            return None
        done = progress.read(self._folder)
        state = progress.line(done) if done else "training had not begun"
        attempts = ", over all attempts," if self._limits.earlier_s else ""
        return Reached(
            kind="DEADLINE",
            what=f"job {observed.name} did not end within {limit_s:,.0f} s{attempts} and was ended: {state}",
        )

    def _broken(self, observed: Observed, stands: Standing, now_s: float) -> Reached | None:
        held = stands.waiting
        # An elastic job goes on without the pod that cannot start: what runs is not ended for it.
        if held is None or not held.broken or stands.phase in {"running", "ending"}:
            self._broken_since = None
            return None
        self._broken_since = now_s if self._broken_since is None else self._broken_since
        if now_s - self._broken_since <= self._limits.broken_s:
            return None
        return Reached(kind=held.kind, what=f"job {observed.name} cannot start and was deleted: {held}")

    def _short(self, observed: Observed, stands: Standing, now_s: float) -> Reached | None:
        """A job that ran and has lost pods gets them back within the time that it had for them at first.

        One whose pods have all ended well is said to have succeeded within the same time.
        """
        if stands.phase != "restarting" and not (stands.phase == "ending" and not stands.running):
            self._short_since = None
            return None
        self._short_since = now_s if self._short_since is None else self._short_since
        if now_s - self._short_since <= self._limits.pending_s:
            return None
        held, lost = stands.waiting, [entry.finding for entry in incidents(observed) if not entry.recovered]
        kind = held.kind if held else next((finding.kind for finding in lost), "INFRASTRUCTURE")
        why = str(held) if held else "; ".join([str(stands), *(finding.what for finding in lost[:1])])
        within = f"within {self._limits.pending_s:,.0f} s"
        lacks = "get its pods back" if stands.phase == "restarting" else "end after its pods"
        what = f"job {observed.name} did not {lacks} {within} and was deleted: {why}"
        return Reached(kind=kind, what=what)

    def _pending(self, observed: Observed, stands: Standing, now_s: float) -> Reached | None:
        held, job = stands.waiting, observed.job
        if (
            stands.phase in {"running", "ended", "restarting", "ending", "absent"}
            or job is None
            or job.holds("Suspended")
        ):
            return None
        waited_s = worked_s(job, now_s)
        if job.suspensions:  # every time that it leaves the queue, its pods begin anew
            waited_s = min(waited_s, now_s - (job.suspensions[-1][1] or now_s))
        if waited_s <= self._limits.pending_s:
            return None
        why = f": {held}" if held else f": {stands}"
        kind = held.kind if held else "UNSCHEDULABLE"
        what = (
            f"job {observed.name} did not start within {self._limits.pending_s:,.0f} s and was deleted{why}"
        )
        return Reached(kind=kind, what=what)

    def _stalled(self, observed: Observed, stands: Standing, now_s: float) -> Reached | None:
        limit_s = self._limits.stall_s
        if limit_s is None or stands.phase not in {"running", "ending"}:
            self._mark = ""
            return None
        mark = _mark(self._folder)
        if mark != self._mark or not mark:
            self._mark, self._moved_s = mark, now_s
        if not mark or now_s - self._moved_s <= limit_s + _MARGIN_S:
            return None
        done = progress.read(self._folder)
        state = progress.line(done) if done else "it had begun"
        what = f"job {observed.name} made no progress for {limit_s + _MARGIN_S:,.0f} s and was ended: {state}"
        return Reached(kind="STUCK", what=what)


def worked_s(job: JobStory | None, now_s: float) -> float:
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


def _mark(folder: Path) -> str:
    """Return what changes whenever the job gets on; empty where silence means nothing.

    That is before its first step, and while any process is at something of unknown length, such as an
    evaluation or the commit of a checkpoint.
    """
    pulses = sorted((folder / "pulse").glob("rank-*"))
    if not (folder / "progress.json").exists() and not pulses:
        return ""
    said = [*_texts([folder / "progress.json"]), *_texts(pulses)]
    if any(not text.startswith(STEPS) for text in _texts(pulses)):
        return ""
    return hashlib.sha256("\0".join(said).encode()).hexdigest()


def _texts(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:  # gone with the round of another machine
            texts.append("")
    return texts
