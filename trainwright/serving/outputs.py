"""Outputs of a model by the kind of its target: columns of the predictions, and the signature.

Needs nothing but the standard library.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

SCORE = "score"
"""Column of the probability of label 1, or of the predicted number; of class k it is ``score_k``."""

ESTIMATE = "estimate"
"""Role of the predicted number: not ``score``, so that nobody takes it for a probability."""


@dataclass(frozen=True)
class Threshold:
    """The decision threshold of a binary model.

    Attributes:
        value: A score of at least this does.
        rule: What it is best for: ``f1`` or ``youden``.
        split: The split that it was chosen on, and is optimistic about.
        gain: What it reaches there: F1, or the true less the false positive rate.
    """

    value: float
    rule: str
    split: str
    gain: float


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model for each row.

    Attributes:
        kind: ``binary``, ``multiclass`` or ``regression``.
        label: Name of the label.
        classes: Number of classes; 0 for ``regression``.
        threshold: Where a score counts as label 1; absent: 0.5.
    """

    kind: Literal["binary", "multiclass", "regression"]
    label: str
    classes: int = 2
    threshold: Threshold | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the scores, in the order in which the model gives them."""
        return tuple(f"{SCORE}_{number}" for number in range(self.classes)) if self._many else (SCORE,)

    @property
    def roles(self) -> dict[str, str]:
        """Roles of the columns in a snapshot of predictions."""
        if self._many:
            return {name: name for name in self.columns}
        return {ESTIMATE if self.kind == "regression" else SCORE: SCORE}

    @property
    def _many(self) -> bool:
        return self.kind == "multiclass"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what the model in a folder gives, from its signature."""
        target = json.loads((folder / "signature.json").read_text())["target"]
        return cls(target["kind"], target["name"], target["classes"])

    def target(self) -> dict[str, Any]:
        """Return what is predicted, as the signature names it."""
        return {"name": self.label, "kind": self.kind, "classes": self.classes}

    def describe(self) -> list[dict[str, Any]]:
        """Return the outputs as the signature names them."""
        if self.kind == "regression":
            return [{"name": SCORE, "type": "double", "meaning": f"predicted {self.label}"}]
        if self._many:
            return [
                {"name": name, "type": "double", "meaning": f"probability of {self.label} = {number}"}
                for number, name in enumerate(self.columns)
            ]
        output: dict[str, Any] = {
            "name": SCORE,
            "type": "double",
            "meaning": f"probability of {self.label} = 1",
        }
        return [output | ({"threshold": vars(self.threshold)} if self.threshold else {})]
