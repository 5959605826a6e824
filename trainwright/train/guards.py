"""Whether a training is still healthy: decisions about numbers that every process has summed alike.

All that a decision needs beside these numbers lies in the facts of the training's state. So every process
decides the same, and a training that is resumed decides like one that was never interrupted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from trainwright.errors import Diverged
from trainwright.experiment.guards import EarlyStopping, Guards

_BLOCKS = 20
"""Parts that the recent steps are cut into; the loss is smoothed over each."""

_LEAST_BLOCKS = 10
_TO_DEVIATION = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""

_LEAST_SHARE, _LEAST_OF_FIRST = 0.01, 0.001
"""Deviations below 1 % of the loss, or below a thousandth of what it was at first, count as that much: where
a loss hardly varies, any rise would be a spike."""

Action = Literal["apply", "skip", "roll_back"]


class NotFinite(Diverged):
    """A loss or a gradient is not finite."""

    kind = "NAN_LOSS"


@dataclass(frozen=True)
class Seen:
    """What a step found, before any weight is changed by it.

    Attributes:
        step: Number of the step, from 1.
        batch: Number of the batch, counted from the beginning of the training, from 0.
        epoch: Number of the pass over the data, from 1.
        loss: Mean loss over the global batch.
        norm: Norm of the gradient.
        rate: Learning rate.
        overflowed: Whether the gradient went beyond float16: then it says nothing of the training.
    """

    step: int
    batch: int
    epoch: int
    loss: float
    norm: float
    rate: float
    overflowed: bool = False


@dataclass(frozen=True)
class Verdict:
    """What is to be done.

    Attributes:
        action: Use the gradients; or leave the batch out; or go back, and then leave it out.
        warning: What is worth a line in the log; empty if nothing is.
    """

    action: Action
    warning: str = ""


class Guard:
    """Judges each step.

    The loss diverges when its mean over a block of steps, without the highest and the lowest fifth, lies
    ``spike`` robust standard deviations above the median of the blocks before. Medians and their absolute
    deviations are what one wild batch cannot move (Rousseeuw and Croux, 1993).

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Guards) -> None:
        self._settings = settings
        self._block = max(1, settings.window // _BLOCKS)

    def judge(self, facts: dict[str, Any], seen: Seen) -> Verdict:
        """Judge a step.

        Args:
            facts: The facts of the training's state; what is noted there under ``guards`` is changed.
            seen: What the step found.

        Raises:
            NotFinite: The loss or the gradient is not finite, and no more batches may be left out.
            Diverged: The loss has run away.
        """
        notes = _notes(facts)
        if not (math.isfinite(seen.loss) and math.isfinite(seen.norm)):
            return Verdict(
                self._forgive(notes, seen), f"{_not_finite(seen)}: batch {seen.batch:,} is left out"
            )
        warning = "" if seen.overflowed else self._look_at_norm(notes, seen)
        notes["losses"].append(seen.loss)
        if len(notes["losses"]) == self._block:
            self._end_block(notes, seen)
        return Verdict("apply", warning)

    def _forgive(self, notes: dict[str, Any], seen: Seen) -> Action:
        """Leave a batch out, if that is allowed."""
        action, left_out = self._settings.not_finite, notes["left_out"]
        if action == "stop" or len(left_out) >= self._settings.forgiven:
            before = f", after {len(left_out)} other batches were left out" if left_out else ""
            raise NotFinite(
                f"{_not_finite(seen)}, learning rate {seen.rate:.3g}{before}",
                where="training.learning_rate",
                hint="Lower the learning rate; if that does not help, look for extreme values in the inputs: "
                "the ids of the batch are in the folder batches.",
            )
        left_out.append(seen.batch)
        return action

    def _look_at_norm(self, notes: dict[str, Any], seen: Seen) -> str:
        """Warn of a gradient that is far above the usual."""
        notes["norms"].append(seen.norm)
        usual, limit = notes["usual_norm"], self._settings.norm_spike
        if not usual or limit is None or seen.norm <= limit * usual:
            return ""
        return (
            f"step {seen.step:,}: the norm of the gradient is {seen.norm:.4g}, "
            f"{seen.norm / usual:,.0f} times its recent median {usual:.4g}"
        )

    def _end_block(self, notes: dict[str, Any], seen: Seen) -> None:
        """Compare a block of steps with those before it, and remember it."""
        smooth, blocks = _trimmed_mean(notes["losses"]), notes["blocks"]
        if notes["first"] is None:
            notes["first"] = smooth
        if self._settings.spike is not None and len(blocks) >= _LEAST_BLOCKS:
            self._require_calm(blocks, notes["first"], smooth, seen)
        notes["losses"].clear()
        blocks.append(smooth)
        del blocks[:-_BLOCKS]
        if notes["norms"]:
            notes["typical_norms"] = [*notes["typical_norms"], median(notes["norms"])][-_BLOCKS:]
            notes["usual_norm"] = median(notes["typical_norms"])
            notes["norms"].clear()

    def _require_calm(self, blocks: Sequence[float], first: float, smooth: float, seen: Seen) -> None:
        usual = median(blocks)
        deviation = _TO_DEVIATION * median([abs(entry - usual) for entry in blocks])
        least = max(_LEAST_SHARE * abs(usual), _LEAST_OF_FIRST * abs(first))
        score = (smooth - usual) / max(deviation, least, 1e-300)
        if score > (self._settings.spike or math.inf):
            raise Diverged(
                f"the loss ran away by step {seen.step:,}, epoch {seen.epoch}: {smooth:.4g} over the last "
                f"{self._block} steps, {score:,.1f} robust deviations above the median {usual:.4g} of the "
                f"{len(blocks) * self._block} steps before (limit {self._settings.spike:g}), learning rate "
                f"{seen.rate:.3g}",
                where="training.guards.spike",
                hint="Lower the learning rate, warm it up longer, or clip the gradients. If such a rise is "
                "to be expected, raise the limit.",
            )


def left_out(facts: dict[str, Any]) -> frozenset[int]:
    """Return the numbers of the batches that are left out, counted from the beginning of the training."""
    return frozenset(_notes(facts)["left_out"])


def keep_left_out(facts: dict[str, Any], batches: frozenset[int]) -> None:
    """Leave out what was left out before a training went back to an earlier state."""
    notes = _notes(facts)
    notes["left_out"] = sorted(batches | frozenset(notes["left_out"]))


class EarlyStop:
    """Decides when enough is learned, by the loss of a split that is not learned from.

    Args:
        settings: How often to look, and how long to wait for a gain.
        epoch_steps: Steps of an epoch.
    """

    def __init__(self, settings: EarlyStopping, epoch_steps: int) -> None:
        self._settings, self._every = settings, settings.every_steps or epoch_steps

    def due(self, step: int, total: int) -> bool:
        """Tell whether to look after a step; the last one always counts."""
        return step % self._every == 0 or step == total

    def judge(self, facts: dict[str, Any], step: int, loss: float) -> bool:
        """Take note of the loss of the watched split, under ``watched``; tell whether to end.

        Raises:
            NotFinite: It is not finite.
        """
        if not math.isfinite(loss):
            raise NotFinite(
                f"the loss of the watched split is not finite after step {step:,}",
                where="training.guards.early_stopping.split",
                hint="Look for extreme values in its inputs.",
            )
        before = facts.get("watched") or {"best_loss": math.inf, "to_beat": math.inf}
        best = loss < before["best_loss"]
        gained = loss < before["to_beat"] - self._settings.min_gain
        facts["watched"] = {
            "step": step,
            "loss": loss,
            "best": best,
            "best_step": step if best else before["best_step"],
            "best_loss": loss if best else before["best_loss"],
            "to_beat": loss if gained else before["to_beat"],
            "without_gain": 0 if gained else before["without_gain"] + 1,
        }
        return self.enough(facts)

    def enough(self, facts: dict[str, Any]) -> bool:
        """Tell whether the split has not got better for as long as was allowed."""
        watched = facts.get("watched") or {"without_gain": 0}
        return bool(watched["without_gain"] >= self._settings.patience)


def _notes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is noted: plain JSON, at most as long as two blocks of steps and their number."""
    if "guards" not in facts:
        facts["guards"] = {
            "left_out": [],
            "first": None,
            "losses": [],
            "blocks": [],
            "norms": [],
            "typical_norms": [],
            "usual_norm": None,
        }
    notes: dict[str, Any] = facts["guards"]
    return notes


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = len(values) // 5
    return fmean(sorted(values)[cut : len(values) - cut])


def _not_finite(seen: Seen) -> str:
    which = "the loss or a gradient" if math.isfinite(seen.loss) or math.isfinite(seen.norm) else "the loss"
    which = "a gradient" if math.isfinite(seen.loss) else which
    return f"{which} is not finite at step {seen.step:,}, epoch {seen.epoch}"
