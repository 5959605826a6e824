"""Rows of the training split that are held out for early stopping: a share, by a hash of their key."""

import hashlib
from dataclasses import dataclass
from typing import Self

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.experiment import ResolvedTraining


@dataclass(frozen=True)
class HoldOut:
    """The held-out rows of a split, or, unless ``inside``, all its other rows.

    Whether a row is held out depends on its key and the seed alone: every process, attempt and kind of model
    holds out the same rows.
    """

    share: float
    seed: int
    inside: bool

    @classmethod
    def of(cls, training: ResolvedTraining, *, inside: bool) -> Self | None:
        """Return the rows of a training; None if it holds none out."""
        early = training.guards.early_stopping
        return cls(early.share, training.seed, inside) if early and early.share else None

    def mask(self, keys: pa.Array) -> pa.Array:
        """Return whether each row belongs here, from the column with the keys."""
        # A seed of its own: the splits of `data` may be hashes of the same key, by data.split_seed.
        digest = hashlib.sha256(f"held out {self.seed}".encode()).digest()
        hashes = tables.fingerprints(keys, int.from_bytes(digest[:8], "big"))
        held_out = hashes < int(self.share * 2**64)
        return pa.array(held_out == self.inside)
