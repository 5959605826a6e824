"""What an elastic attempt lost of its pods so far: kept in its folder, for a launcher that is started again.

Such an attempt goes on when a pod is lost, and the object of that pod is gone within seconds. Whoever takes
the job over finds other pods in their places, and must not count from nought.
"""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.launch.diagnosis import Incident, Observed, incidents, usage


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A pod, or a run of its container, that was lost.

    Attributes:
        key: The pod's identity, and when the run of the container had begun where only that was lost.
        budget: Whose restarts it counts against.
        kind: Its class.
        what: What happened.
    """

    key: str
    budget: str
    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The GPUs that a pod held which is gone.

    Attributes:
        uid: The pod.
        gpus: How many.
        since_s: From when on, in seconds since 1970.
        until_s: Until when.
    """

    uid: str
    gpus: int
    since_s: float
    until_s: float


@dataclass(frozen=True, kw_only=True)
class Losses(Document):
    """All that an attempt lost, the oldest first.

    Attributes:
        lost: What was lost.
        held: What the pods held that are gone.
    """

    FILE: ClassVar[str] = "losses.json"
    lost: tuple[Loss, ...] = ()
    held: tuple[Hold, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "Losses":
        """Read what was noted of an attempt; nothing if nothing was, or a newer library did."""
        with contextlib.suppress(InputError, OSError):
            return cls.read(folder)
        return cls()

    @property
    def spent(self) -> dict[str, int]:
        """Restarts that were used up, by budget."""
        counts: dict[str, int] = {}
        for loss in self.lost:
            counts[loss.budget] = counts.get(loss.budget, 0) + 1
        return counts

    def with_those_of(self, observed: Observed) -> "Losses":
        """Return what was lost before this launcher came, with what it has seen itself.

        What is seen again is judged anew: more may be known of it.
        """
        lost = {loss.key: loss for loss in self.lost}
        for entry in incidents(observed):
            key = _key(entry)
            if entry.finding.weak:
                lost.pop(key, None)
            else:
                finding = entry.finding
                lost[key] = Loss(key=key, budget=finding.budget, kind=finding.kind, what=finding.what)
        held = {hold.uid: hold for hold in self.held}
        latest_s = usage.latest_s(observed)
        for pod in observed.pods:
            if pod.gone is not None and pod.gpus and (span := usage.held_s(pod, latest_s)):
                held[pod.uid] = Hold(uid=pod.uid, gpus=pod.gpus, since_s=span[0], until_s=span[1])
        return Losses(lost=tuple(lost.values()), held=tuple(held.values()))

    def forgotten_gpu_s(self, observed: Observed, since_s: float) -> float:
        """Return the GPU seconds since a time that pods held which this launcher has not seen itself."""
        seen = {pod.uid for pod in observed.pods}
        spans = [
            (hold.gpus, hold.until_s - max(hold.since_s, since_s))
            for hold in self.held
            if hold.uid not in seen
        ]
        return float(sum(gpus * max(0.0, span) for gpus, span in spans))

    def note(self, folder: Path) -> None:
        """Write them into the folder of the attempt."""
        try:
            self.write(folder / self.FILE)
        except OSError as error:  # a full disk is no reason to stop
            sys.stderr.write(f"what attempt {folder.name} lost could not be noted: {error}\n")


def _key(entry: Incident) -> str:
    """Return what an incident is known by, whoever sees it, and however often."""
    return entry.pod.uid if entry.began_s is None else f"{entry.pod.uid}/{entry.began_s:.0f}"
