"""Outputs of a model by the kind of its target. Needs no other package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from trainwright.documents import read_json

SCORE = "score"
"""Column of the probability of label 1, or of the predicted number; of class k it is ``score_k``."""

ESTIMATE = "estimate"
"""Role of the predicted number: not ``score``, so that nobody takes it for a probability."""


@dataclass(frozen=True)
class Threshold:
    """The decision threshold of a binary model: a score of at least ``value`` counts as label 1.

    It is the best by ``rule`` on ``split``, and so optimistic about it: ``gain`` is F1 there, or, by
    ``youden``, the true minus the false positive rate.
    """

    value: float
    rule: str
    split: str
    gain: float


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model for each row; ``classes`` is 0 for ``regression``, the default threshold 0.5.

    ``names`` are the names of the classes by number; empty where the source itself has the numbers.
    """

    kind: Literal["binary", "multiclass", "regression"]
    label: str
    classes: int = 2
    threshold: Threshold | None = None
    names: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or their numbers as text; empty for ``regression``."""
        return self.names or tuple(map(str, range(self.classes)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the scores, in the order of the model's output."""
        many = self.kind == "multiclass"
        return tuple(f"{SCORE}_{number}" for number in range(self.classes)) if many else (SCORE,)

    @property
    def roles(self) -> dict[str, str]:
        """Roles of the columns in a snapshot of predictions."""
        if self.kind == "multiclass":
            return {name: name for name in self.columns}
        return {ESTIMATE if self.kind == "regression" else SCORE: SCORE}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the outputs of the model in a folder from its signature, without the threshold."""
        target = read_json(folder / "signature.json")["target"]
        names = tuple(target.get("names", ()))
        return cls(target["kind"], target["name"], target["classes"], names=names)

    def target(self) -> dict[str, Any]:
        """Return the target as the signature has it."""
        target: dict[str, Any] = {"name": self.label, "kind": self.kind, "classes": self.classes}
        return target | ({"names": list(self.names)} if self.names else {})

    def describe(self) -> list[dict[str, Any]]:
        """Return the outputs as the signature has them."""
        match self.kind:
            case "regression":
                meanings = [f"predicted {self.label}"]
            case "multiclass":
                meanings = [f"probability of {self.label} = {name}" for name in self.class_names]
            case "binary":
                meanings = [f"probability of {self.label} = {self.class_names[1]}"]
        more = {"threshold": vars(self.threshold)} if self.threshold else {}
        return [
            {"name": name, "type": "double", "meaning": meaning} | more
            for name, meaning in zip(self.columns, meanings, strict=True)
        ]
