"""The figures of one judgement as a document: what runs are compared by, and what a model's card shows."""

from dataclasses import dataclass
from typing import ClassVar

from trainwright.documents import Document

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure.

    Attributes:
        name: Its flat name, such as ``auc`` or ``slice/origin/EWR/recall``.
        value: The figure; finite.
        interval: Lower and upper end of its 95 % interval; empty where there is none.
        better: ``higher`` or ``lower``; empty where neither is better, as of a number of rows.
    """

    name: str
    value: float
    interval: tuple[float, ...] = ()
    better: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured(Document):
    """Every figure of one judgement. It lies beside the verdict.

    Attributes:
        predictions: Digest of the predictions that were judged.
        rows_digest: Digest of the keys and labels of the judged rows, whatever their order: two models with
            the same one were judged on the same examples.
        rows: How many rows those are.
        split: The split they are of.
        kind: What was predicted: ``binary``, ``multiclass``, ``regression`` or ``language_model``.
        label: What the label is called; empty for a language model.
        measures: The figures, the one that matters most first.
    """

    FILE: ClassVar[str] = "measured.json"
    predictions: str
    rows_digest: str
    rows: int
    split: str
    kind: str
    label: str = ""
    measures: tuple[Measure, ...] = ()
