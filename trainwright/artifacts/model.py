"""Documents about a model: its manifest, and the result of its smoke test."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.artifacts.record import Environment
from trainwright.documents import Document


def target_kind(signature: Mapping[str, Any]) -> str:
    """Return the kind of target in the content of ``signature.json``; empty for a language model."""
    target = signature.get("target")
    return str(target.get("kind", "")) if isinstance(target, Mapping) else ""


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model's folder; ``path`` is relative to the folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Model(Document):
    """The manifest of a trained model's folder; written last, so a folder without it is not a model.

    ``kind`` is the architecture, ``inputs`` the raw columns that it reads, ``label`` the one it predicts, and
    ``training_data`` the digest of the training set. ``parents`` has digests by name: the training set, its
    own parents, such as the feature service and every view, and the fitted transforms.
    """

    FILE: ClassVar[str] = "model.json"
    files: tuple[ModelFile, ...]
    kind: str
    inputs: tuple[str, ...]
    label: str
    training_data: str
    config: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)


_SHAPE, _RANGE = "rows or outputs beside the signature", "scores outside 0 to 1"

TRIAL_BOUNDS: dict[str, tuple[float, float]] = {
    "scores": (1.0, math.inf),
    "scores that are no numbers": (0.0, 0.0),
    "scores that differ at a second call": (0.0, 0.0),
    _SHAPE: (0.0, 0.0),
    _RANGE: (0.0, 0.0),
    "error of a sum of probabilities": (0.0, 1e-5),
}
"""Smallest and largest accepted number of a trial, by name: the library's, never those of a document."""

_NOT_MEASURED = {
    "": (_SHAPE, _RANGE, "error of a sum of probabilities"),
    "regression": (_RANGE, "error of a sum of probabilities"),
    "binary": ("error of a sum of probabilities",),
}
"""What does not apply, by kind of target; a language model has none."""


@dataclass(frozen=True, kw_only=True)
class Trial(Document):
    """The result of a smoke test: a fresh process loaded the model and scored the input example.

    ``model`` is the digest of its manifest; ``input_example`` and ``scores`` are the SHA-256 of the rows and
    of their scores, if any. ``measured`` has the numbers of :data:`TRIAL_BOUNDS` that apply to the model;
    none if it did not answer. ``said``: a summary, or the error. No field says that the model passed.
    """

    SCHEMA_VERSION: ClassVar[int] = 2
    """1 had ``passed``, which a reader could only believe: such a trial is not read any more."""

    FILE: ClassVar[str] = "trial.json"
    model: str
    input_example: str
    said: str
    scores: str
    measured: dict[str, float]
    environment: Environment

    def problems(self, target: str) -> tuple[str, ...]:
        """Return the problems of the answer, computed from its numbers; empty if the model passed.

        ``target`` is the kind of the target in the model's signature; empty for a language model.
        """
        if not self.scores or not self.measured:
            return (self.said or "it did not answer",)
        expected = TRIAL_BOUNDS.keys() - _NOT_MEASURED.get(target, ())
        beside = [
            f"{name} was measured or left out wrongly" for name in sorted(expected ^ self.measured.keys())
        ]
        beyond = [
            f"{name}: {self.measured[name]:g}, accepted is {low:g} to {high:g}"
            for name, (low, high) in TRIAL_BOUNDS.items()
            if name in self.measured and not low <= self.measured[name] <= high
        ]
        return (*beside, *beyond)
