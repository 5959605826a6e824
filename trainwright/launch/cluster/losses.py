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
from trainwright.launch.diagnosis import Loss, Observed, incidents, usage


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

    def with_those_of(self, observed: Observed) -> "Losses":
        """Return what was lost before this launcher came, with what it has seen itself.

        What is seen again is judged anew: more may be known of it.
        """
        lost = {loss.key: loss for loss in self.lost}
        for entry in incidents(observed):
            loss = Loss.of(entry)
            lost.pop(loss.key, None)
            if not entry.finding.weak:
                lost[loss.key] = loss
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
