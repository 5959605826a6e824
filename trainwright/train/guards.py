"""Guards of a training's health: divergence, non-finite values, early stopping.

Decisions use numbers that every process has summed alike, and the facts of the training state. So every
process decides the same, and a resumed training decides like one that was never interrupted.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from trainwright.errors import Diverged, InputError
from trainwright.experiment import Training
from trainwright.experiment.training import EarlyStopping, Guards
from trainwright.train.architectures import Architecture
from trainwright.train.feeding.loader import Batch, SampleSource
from trainwright.train.process_group import Ranks
from trainwright.train.step import Stepper

_BLOCKS = 20
"""Blocks that the recent steps are divided into; the loss is smoothed over each."""

_LEAST_BLOCKS = 10
_MAD_TO_DEVIATION = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""

_LEAST_SHARE, _LEAST_OF_FIRST = 0.01, 0.001
"""Lower bounds of the deviation, as shares of the loss and of the first loss: where a loss hardly varies, any
rise would be a spike."""


class NotFinite(Diverged):
    """A loss or a gradient is not finite."""

    kind = "NAN_LOSS"


@dataclass(frozen=True)
class StepStats:
    """Statistics of a step before the weights are updated.

    Attributes:
        step: Number of the step, from 1.
        batch: Number of the batch since the beginning of the training, from 0.
        epoch: Number of the pass over the data, from 1.
        loss: Mean loss over the global batch.
        norm: Norm of the gradient.
        rate: Learning rate.
        overflowed: Whether the gradient exceeds float16; the norm is meaningless then.
    """

    step: int
    batch: int
    epoch: int
    loss: float
    norm: float
    rate: float
    overflowed: bool = False


@dataclass(frozen=True)
class GuardDecision:
    """Apply the gradients; or skip the batch; or roll back and then skip it. With a warning for the log."""

    action: Literal["apply", "skip", "roll_back"]
    warning: str = ""


class DivergenceGuard:
    """Judges each step.

    The loss diverges when its mean over a block of steps, without the highest and the lowest fifth, lies
    ``spike`` robust standard deviations above the median of the blocks before. One wild batch cannot move
    medians and median absolute deviations (Rousseeuw and Croux, 1993).
    """

    def __init__(self, settings: Guards) -> None:
        self._settings = settings
        self._block = max(1, settings.window // _BLOCKS)

    def judge(self, facts: dict[str, Any], stats: StepStats) -> GuardDecision:
        """Judge a step, and update ``facts["guards"]`` of the training state.

        Raises:
            NotFinite: The loss or the gradient is not finite, and no more batches may be skipped.
            Diverged: The loss has diverged.
        """
        notes = _notes(facts)
        if not (math.isfinite(stats.loss) and math.isfinite(stats.norm)):
            return self._skip(notes, stats)
        warning = "" if stats.overflowed else self._check_norm(notes, stats)
        notes["losses"].append(stats.loss)
        if len(notes["losses"]) == self._block:
            self._end_block(notes, stats)
        return GuardDecision("apply", warning)

    def _skip(self, notes: dict[str, Any], stats: StepStats) -> GuardDecision:
        action, skipped = self._settings.not_finite, notes["left_out"]
        what = "a gradient" if math.isfinite(stats.loss) else "the loss"
        what = (
            what if math.isfinite(stats.loss) or not math.isfinite(stats.norm) else "the loss or a gradient"
        )
        found = f"{what} is not finite at step {stats.step:,}, epoch {stats.epoch}"
        if action == "stop" or len(skipped) >= self._settings.forgiven:
            before = f", after {len(skipped)} other batches were skipped" if skipped else ""
            raise NotFinite(
                f"{found}, learning rate {stats.rate:.3g}{before}",
                where="training.learning_rate",
                hint="Lower the learning rate; if that does not help, look for extreme values in the inputs: "
                "the ids of the batch are in the folder batches.",
            )
        skipped.append(stats.batch)
        return GuardDecision(action, f"{found}: batch {stats.batch:,} is skipped")

    def _check_norm(self, notes: dict[str, Any], stats: StepStats) -> str:
        """Return a warning if the gradient is far above its recent median."""
        notes["norms"].append(stats.norm)
        usual, limit = notes["usual_norm"], self._settings.norm_spike
        if not usual or limit is None or stats.norm <= limit * usual:
            return ""
        return (
            f"step {stats.step:,}: the norm of the gradient is {stats.norm:.4g}, "
            f"{stats.norm / usual:,.0f} times its recent median {usual:.4g}"
        )

    def _end_block(self, notes: dict[str, Any], stats: StepStats) -> None:
        """Compare a block of steps with those before it, and add it to them."""
        cut, blocks = len(notes["losses"]) // 5, notes["blocks"]
        smooth = fmean(sorted(notes["losses"])[cut : len(notes["losses"]) - cut])
        if notes["first"] is None:
            notes["first"] = smooth
        if self._settings.spike is not None and len(blocks) >= _LEAST_BLOCKS:
            self._require_no_spike(blocks, notes["first"], smooth, stats)
        notes["losses"].clear()
        blocks.append(smooth)
        del blocks[:-_BLOCKS]
        if notes["norms"]:
            notes["typical_norms"] = [*notes["typical_norms"], median(notes["norms"])][-_BLOCKS:]
            notes["usual_norm"] = median(notes["typical_norms"])
            notes["norms"].clear()

    def _require_no_spike(
        self, blocks: Sequence[float], first: float, smooth: float, stats: StepStats
    ) -> None:
        usual = median(blocks)
        deviation = _MAD_TO_DEVIATION * median([abs(entry - usual) for entry in blocks])
        least = max(_LEAST_SHARE * abs(usual), _LEAST_OF_FIRST * abs(first))
        score = (smooth - usual) / max(deviation, least, 1e-300)
        if score > (self._settings.spike or math.inf):
            raise Diverged(
                f"the loss diverged by step {stats.step:,}, epoch {stats.epoch}: {smooth:.4g} over the last "
                f"{self._block} steps, {score:,.1f} robust deviations above the median {usual:.4g} of the "
                f"{len(blocks) * self._block} steps before (limit {self._settings.spike:g}), learning rate "
                f"{stats.rate:.3g}",
                where="training.guards.spike",
                hint="Lower the learning rate, warm it up longer, or clip the gradients. If such a rise is "
                "expected, raise the limit.",
            )


def skipped_batches(facts: dict[str, Any]) -> frozenset[int]:
    """Return the numbers of the skipped batches since the beginning of the training."""
    return frozenset(_notes(facts)["left_out"])


def add_skipped(facts: dict[str, Any], batches: frozenset[int]) -> None:
    """Skip batches that were skipped before a rollback."""
    notes = _notes(facts)
    notes["left_out"] = sorted(batches | frozenset(notes["left_out"]))


def _notes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the guard's notes: plain JSON, at most as long as two blocks of steps and their number."""
    notes: dict[str, Any] = facts.setdefault(
        "guards",
        {
            "left_out": [],
            "first": None,
            "losses": [],
            "blocks": [],
            "norms": [],
            "typical_norms": [],
            "usual_norm": None,
        },
    )
    return notes


class EarlyStop:
    """Ends a training by the loss of a split that is not trained on.

    Args:
        settings: Interval and patience.
        epoch_steps: Steps of an epoch.
    """

    def __init__(self, settings: EarlyStopping, epoch_steps: int) -> None:
        self._settings, self._every = settings, settings.every_steps or epoch_steps

    def due(self, step: int, total: int) -> bool:
        """Return whether to evaluate after a step; the last one always counts."""
        return step % self._every == 0 or step == total

    def judge(self, facts: dict[str, Any], step: int, loss: float) -> bool:
        """Record the loss of the watched split in ``facts["watched"]``; return whether to stop.

        Raises:
            NotFinite: The loss is not finite.
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
        return self.reached(facts)

    def reached(self, facts: dict[str, Any]) -> bool:
        """Return whether the patience is used up."""
        watched = facts.get("watched") or {"without_gain": 0}
        return bool(watched["without_gain"] >= self._settings.patience)


class SplitEvaluator:
    """Measures the loss of a split; all processes call it together, and get the same result.

    Args:
        stepper: Holds the module.
        architecture: Its loss.
        samples: The split.
        training: Size of a batch.
        ranks: The processes.
        stop_requested: Returns whether this process received a stop signal.

    Raises:
        InputError: The module is split into pipeline stages, which can only run to train.
    """

    def __init__(
        self,
        stepper: Stepper,
        architecture: Architecture,
        samples: SampleSource,
        training: Training,
        ranks: Ranks,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        if (stages := stepper.layout.degrees.pipeline) > 1:
            raise InputError(
                f"a split cannot be watched while the model is split into {stages} stages",
                where="training.guards.early_stopping",
                hint="Set parallel.pipeline: 1, or leave early_stopping out.",
            )
        self._stepper, self._architecture, self._samples = stepper, architecture, samples
        self._ranks, self._stop_requested = ranks, stop_requested
        share = math.ceil(training.batch_size / stepper.layout.parts)
        self._size = min(training.micro_batch or share, share)

    def __call__(self) -> float | None:
        """Return the weighted mean loss of the split, without gradients or dropout.

        When a process received a stop signal, all of them learn of it at the same batch, and return None.
        """
        module, sums = self._stepper.module, torch.zeros(2, dtype=torch.float64, device=self._ranks.device)
        module.eval()
        try:
            with torch.no_grad():
                for index in self._batches():
                    if self._any_stop_requested():
                        return None
                    batch = self._samples.take(index).to(self._ranks.device)
                    loss = self._architecture.loss(module(*batch.inputs), batch.target)
                    sums += torch.stack([(loss.double() * batch.weight).sum(), batch.weight.double().sum()])
        finally:
            module.train()
        if self._ranks.size > 1:
            # Processes that share matrices saw the same samples: they count as often above and below.
            distributed.all_reduce(sums)
        total, weight = sums.tolist()
        return float(total / weight)

    def _any_stop_requested(self) -> bool:
        stop = torch.tensor(float(self._stop_requested()), device=self._ranks.device)
        if self._ranks.size > 1:
            distributed.all_reduce(stop)
        return bool(stop)

    def _batches(self) -> list[NDArray[np.int64]]:
        """Split this process's share into batches, as many on every process, for the collectives in each."""
        layout, samples = self._stepper.layout, len(self._samples)
        share = math.ceil(samples / layout.parts)
        first, last = min(layout.part * share, samples), min((layout.part + 1) * share, samples)
        starts = range(first, first + share, self._size)
        return [np.arange(start, max(start, min(start + self._size, last))) for start in starts]


def bad_batch_writer(folder: Path, rank: int) -> Callable[[int, Batch], None]:
    """Return a function that writes the samples of a bad batch to ``batches/step-N-rank-N.json``.

    The file lists all samples of this process's share by their number in the split, and those with an input,
    target or weight that is not finite.

    Args:
        folder: The attempt's folder.
        rank: Rank of this process.
    """

    def write(step: int, batch: Batch) -> None:
        bad = torch.zeros(len(batch), dtype=torch.bool)
        for entry in (*batch.inputs, batch.target, batch.weight):
            if entry.is_floating_point() and len(batch):
                bad |= ~torch.isfinite(entry).reshape(len(batch), -1).all(dim=1).cpu()
        ids = {"ids": batch.ids.tolist(), "not_finite": batch.ids[bad].tolist()}
        path = folder / "batches" / f"step-{step}-rank-{rank}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"step": step, "rank": rank, **ids}) + "\n")
        except OSError as error:  # a full disk must not hide the error of the training
            sys.stderr.write(f"rank {rank}: {path} could not be written: {error}\n")

    return write
