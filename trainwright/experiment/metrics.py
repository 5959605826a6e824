"""The metrics that rules may name: for which kinds of label, and which way is better."""

from dataclasses import dataclass

HIGHER, LOWER = "higher", "lower"

BINARY, MULTICLASS, REGRESSION, LANGUAGE = "binary", "multiclass", "regression", "language_model"


@dataclass(frozen=True)
class Metric:
    """A figure of a model.

    Attributes:
        kinds: What it is defined for.
        better: ``higher``, ``lower``, or empty where neither is better and no rule may name it.
        fraction: Whether it lies in [0, 1].
    """

    kinds: tuple[str, ...]
    better: str
    fraction: bool = True


_CLASSES = (BINARY, MULTICLASS)

METRICS = {
    "auc": Metric((BINARY,), HIGHER),
    "average_precision": Metric((BINARY,), HIGHER),
    "accuracy": Metric(_CLASSES, HIGHER),
    "recall": Metric((BINARY,), HIGHER),
    "precision": Metric((BINARY,), HIGHER),
    "f1": Metric((BINARY,), HIGHER),
    "false_positive_rate": Metric((BINARY,), LOWER),
    "selection_rate": Metric((BINARY,), ""),
    "macro_auc": Metric((MULTICLASS,), HIGHER),
    "macro_recall": Metric((MULTICLASS,), HIGHER),
    "macro_precision": Metric((MULTICLASS,), HIGHER),
    "macro_f1": Metric((MULTICLASS,), HIGHER),
    "micro_f1": Metric((MULTICLASS,), HIGHER),
    "log_loss": Metric(_CLASSES, LOWER, fraction=False),
    "brier": Metric(_CLASSES, LOWER, fraction=False),
    "calibration_error": Metric(_CLASSES, LOWER),
    "mae": Metric((REGRESSION,), LOWER, fraction=False),
    "rmse": Metric((REGRESSION,), LOWER, fraction=False),
    "r2": Metric((REGRESSION,), HIGHER, fraction=False),
    "coverage": Metric((REGRESSION,), HIGHER),
    "loss": Metric((LANGUAGE,), LOWER, fraction=False),
    "perplexity": Metric((LANGUAGE,), LOWER, fraction=False),
}
"""By name. Of several classes, ``recall/2`` and its like name the figure of one class."""

OF_ONE_CLASS = ("recall", "precision", "f1", "auc")
"""Metrics that a class of several has of its own."""


def known(name: str) -> Metric | None:
    """Return the metric of this name; None if there is none."""
    base, _, number = name.partition("/")
    if number:
        return Metric((MULTICLASS,), HIGHER) if base in OF_ONE_CLASS and number.isdecimal() else None
    return METRICS.get(name)


def names_for(kind: str) -> list[str]:
    """Return the metrics that a rule may name for one kind of label."""
    return [name for name, metric in METRICS.items() if kind in metric.kinds and metric.better]
