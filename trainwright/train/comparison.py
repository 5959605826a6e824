"""Compares the candidates of ``network.kind: auto`` on held-out rows, which none of them was trained on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from trainwright.experiment.training import Objective
from trainwright.train.architectures import Target
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.rows import EncodedRows
from trainwright.train.feeding.target import constant_losses

_BLOCK_ROWS = 65_536


class FittedCandidate(Protocol):
    """A fitted model of rows."""

    def losses(self, batch: Batch) -> NDArray[np.float64]:
        """Return the loss of each row of a batch, shape (rows,)."""


@dataclass(frozen=True)
class CandidateComparison:
    """The mean losses of two candidates on the same held-out rows.

    Attributes:
        kept: Kind of the candidate that is kept.
        other: Kind of the other one.
        rows: Held-out rows.
        losses: Weighted mean loss by kind: cross-entropy, or squared error in units of the variance.
        constant: Loss of a constant prediction on these rows.
        gain: Loss of the other candidate minus the loss of the one that is kept.
        error: Standard error of that difference, from the differences of the rows.
    """

    kept: str
    other: str
    rows: int
    losses: Mapping[str, float]
    constant: float
    gain: float
    error: float

    @classmethod
    def of(cls, preferred: str, other: str, losses: NDArray[np.float64], weight: NDArray[np.float64]) -> Self:
        """Compare two candidates, and keep the one with the smaller loss.

        Within one standard error the rows cannot tell, and the preferred candidate is kept.

        Args:
            preferred: Kind of the first candidate.
            other: Kind of the second candidate.
            losses: Shape (3, rows): of the preferred candidate, the other one, and a constant prediction.
            weight: Weight of each row, shape (rows,).
        """
        first, second, constant = (float(row) for row in losses @ weight / weight.sum())
        gain, rows = second - first, len(weight)
        spread = weight * (losses[1] - losses[0] - gain)
        error = math.inf
        if rows > 1:
            error = float(np.sqrt(np.square(spread).sum() * rows / (rows - 1)) / weight.sum())
        kept, rest = (other, preferred) if gain < -error else (preferred, other)
        gain = -gain if kept == other else gain
        return cls(kept, rest, rows, {preferred: first, other: second}, constant, gain, error)

    @property
    def within_error(self) -> bool:
        """True if the difference is at most one standard error."""
        return abs(self.gain) <= self.error

    @property
    def metrics(self) -> dict[str, float]:
        """Figures for the model's manifest."""
        return {
            "held_out_rows": float(self.rows),
            **{f"held_out_loss_{kind}": loss for kind, loss in self.losses.items()},
            "held_out_loss_constant": self.constant,
            "held_out_gain": self.gain,
            **({"held_out_gain_error": self.error} if math.isfinite(self.error) else {}),
        }

    def __str__(self) -> str:
        """Say which candidate is kept, and by how much it is better."""
        loss = f"{self.kept}: loss {self.losses[self.kept]:.4f} on {self.rows:,} held-out rows"
        if self.within_error:
            there = f"{self.other} {self.losses[self.other]:.4f}"
            return f"{loss}, {there}: no difference above one standard error, {self.error:.4f}"
        return f"{loss}, {self.gain:.4f} (standard error {self.error:.4f}) below {self.other}"


def compare(
    candidates: Mapping[str, FittedCandidate], held_out: EncodedRows, target: Target, objective: Objective
) -> CandidateComparison:
    """Compare two candidates, the preferred one first, on held-out rows."""
    blocks = []
    for start in range(0, len(held_out), _BLOCK_ROWS):
        batch = held_out.take(np.arange(start, min(start + _BLOCK_ROWS, len(held_out))))
        constant = constant_losses(batch.target.numpy(), target, objective)
        losses = [candidate.losses(batch) for candidate in candidates.values()]
        blocks.append(np.stack([*losses, constant, batch.weight.double().numpy()]))
    table = np.concatenate(blocks, axis=1)
    preferred, other = candidates
    return CandidateComparison.of(preferred, other, table[:-1], table[-1])
