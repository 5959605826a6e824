"""Guards of a training's health: divergence, non-finite values, early stopping.

Decisions use numbers that every process has summed alike, and the facts of the training state. So every
process decides the same, and a resumed training decides like one that was never interrupted.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import torch
from torch import distributed

from trainwright.errors import Diverged
from trainwright.experiment import ResolvedTraining
from trainwright.experiment.training import Guards, ResolvedEarlyStopping
from trainwright.train.architectures import Architecture
from trainwright.train.feeding.loader import Batch, SampleSource
from trainwright.train.process_group import Ranks
from trainwright.train.step import Gradients, Stepper

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

    def judge(
        self, facts: dict[str, Any], gradients: Gradients, *, step: int, batch: int, epoch: int, rate: float
    ) -> GuardDecision:
        """Judge a step before the weights are updated, and update ``facts["guards"]`` of the training state.

        ``step`` and ``epoch`` count from 1, ``batch`` from 0 since the beginning of the training.

        Raises:
            NotFinite: The loss or the gradient is not finite, and no more batches may be skipped.
            Diverged: The loss has diverged.
        """
        notes, at = _notes(facts), f"step {step:,}, epoch {epoch}"
        if not gradients.finite:
            what = "a gradient" if math.isfinite(gradients.loss) else "the loss"
            return self._skip(notes, f"{what} is not finite at {at}", batch, rate)
        warning = ""
        if not gradients.overflowed:  # else the norm means nothing
            notes["norms"].append(gradients.norm)
            usual, limit = notes["usual_norm"], self._settings.norm_spike
            if usual and limit is not None and gradients.norm > limit * usual:
                warning = (
                    f"step {step:,}: the norm of the gradient is {gradients.norm:.4g}, "
                    f"{gradients.norm / usual:,.0f} times its recent median {usual:.4g}"
                )
        notes["losses"].append(gradients.loss)
        if len(notes["losses"]) == self._block:
            self._end_block(notes, at, rate)
        return GuardDecision("apply", warning)

    def _skip(self, notes: dict[str, Any], found: str, batch: int, rate: float) -> GuardDecision:
        action, skipped = self._settings.not_finite, notes["left_out"]
        if action == "stop" or len(skipped) >= self._settings.forgiven:
            before = f", after {len(skipped)} other batches were skipped" if skipped else ""
            raise NotFinite(
                f"{found}, learning rate {rate:.3g}{before}",
                where="training.learning_rate",
                hint="Lower the learning rate; if that does not help, look for extreme values in the inputs: "
                "the ids of the batch are in the folder batches.",
            )
        skipped.append(batch)
        return GuardDecision(action, f"{found}: batch {batch:,} is skipped")

    def _end_block(self, notes: dict[str, Any], at: str, rate: float) -> None:
        """Compare a block of steps with those before it, and add it to them."""
        cut, blocks = len(notes["losses"]) // 5, notes["blocks"]
        smooth = fmean(sorted(notes["losses"])[cut : len(notes["losses"]) - cut])
        if notes["first"] is None:
            notes["first"] = smooth
        limit = self._settings.spike
        if limit is not None and len(blocks) >= _LEAST_BLOCKS:
            usual = median(blocks)
            deviation = _MAD_TO_DEVIATION * median([abs(entry - usual) for entry in blocks])
            least = max(_LEAST_SHARE * abs(usual), _LEAST_OF_FIRST * abs(notes["first"]))
            score = (smooth - usual) / max(deviation, least, 1e-300)
            if score > limit:
                raise Diverged(
                    f"the loss diverged by {at}: {smooth:.4g} over the last {self._block} steps, "
                    f"{score:,.1f} robust deviations above the median {usual:.4g} of the "
                    f"{len(blocks) * self._block} steps before (limit {limit:g}), learning rate {rate:.3g}",
                    where="training.guards.spike",
                    hint="Lower the learning rate, warm it up longer, or clip the gradients. If such a rise "
                    "is expected, raise the limit.",
                )
        notes["losses"].clear()
        blocks.append(smooth)
        del blocks[:-_BLOCKS]
        if notes["norms"]:
            notes["typical_norms"] = [*notes["typical_norms"], median(notes["norms"])][-_BLOCKS:]
            notes["usual_norm"] = median(notes["typical_norms"])
            notes["norms"].clear()


def skipped_batches(facts: dict[str, Any]) -> frozenset[int]:
    """Return the numbers of the skipped batches since the beginning of the training."""
    return frozenset(_notes(facts)["left_out"])


def add_skipped(facts: dict[str, Any], batches: frozenset[int]) -> None:
    """Skip batches that were skipped before a rollback."""
    notes = _notes(facts)
    notes["left_out"] = sorted(batches | frozenset(notes["left_out"]))


def _notes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the guard's notes: plain JSON, at most as long as two blocks of steps and their number."""
    names = ("left_out", "losses", "blocks", "norms", "typical_norms")
    empty: dict[str, Any] = {name: [] for name in names} | {"first": None, "usual_norm": None}
    notes: dict[str, Any] = facts.setdefault("guards", empty)
    return notes


class EarlyStop:
    """Ends a training by the loss of a split that is not trained on."""

    def __init__(self, settings: ResolvedEarlyStopping, epoch_steps: int) -> None:
        self._settings, self._every = settings, settings.every_steps or epoch_steps

    def due(self, step: int, total: int) -> bool:
        """Return whether to evaluate after a step; the last one always counts."""
        return step % self._every == 0 or step == total

    def judge(self, facts: dict[str, Any], step: int, loss: float) -> bool:
        """Record the loss of the watched split in ``facts["watched"]``; return whether to stop."""
        if not math.isfinite(loss):
            raise NotFinite(
                f"the loss of the watched split is not finite after step {step:,}",
                where="training.guards.early_stopping",
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

    The module is not split into pipeline stages, which can only run to train: the experiment file rejects it.
    """

    def __init__(
        self,
        stepper: Stepper,
        architecture: Architecture,
        samples: SampleSource,
        training: ResolvedTraining,
        ranks: Ranks,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stepper, self._architecture, self._samples = stepper, architecture, samples
        self._ranks, self._stop_requested = ranks, stop_requested
        share = math.ceil(training.batch_size / stepper.layout.parts)
        self._size = min(training.micro_batch or share, share)

    def __call__(self) -> float | None:
        """Return the weighted mean loss of the split, without gradients or dropout.

        When a process received a stop signal, all of them learn of it at the same batch, and return None.
        """
        module, device, layout = self._stepper.module, self._ranks.device, self._stepper.layout
        sums, several = torch.zeros(2, dtype=torch.float64, device=device), self._ranks.size > 1
        # Equally many batches on every process, for the collectives in each.
        samples = len(self._samples)
        share = math.ceil(samples / layout.parts)
        first, last = min(layout.part * share, samples), min((layout.part + 1) * share, samples)
        module.eval()
        try:
            with torch.no_grad():
                for start in range(first, first + share, self._size):
                    stop = torch.tensor(float(self._stop_requested()), device=device)
                    if several:
                        distributed.all_reduce(stop)
                    if stop:
                        return None
                    index = np.arange(start, max(start, min(start + self._size, last)))
                    batch = self._samples.take(index).to(device)
                    loss = self._architecture.loss(module(*batch.inputs), batch.target)
                    sums += torch.stack([(loss.double() * batch.weight).sum(), batch.weight.double().sum()])
        finally:
            module.train()
        if several:
            # Processes that share matrices saw the same samples: they count as often above and below.
            distributed.all_reduce(sums)
        total, weight = sums.tolist()
        return float(total / weight)


def write_bad_batch(folder: Path, rank: int, step: int, batch: Batch) -> None:
    """Write the samples of a bad batch to ``batches/step-N-rank-N.json``, by their number in the split.

    Of this process's share: all of them, and those with an input, target or weight that is not finite.
    """
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
