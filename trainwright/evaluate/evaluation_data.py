"""Features that sum over rows, and the metrics as formulas of those sums."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.evaluate.findings import Floats, Integers, Kind
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.experiment import Evaluation
from trainwright.significance import Resampler

_CERTAIN = 1e-15
"""Scores are kept this far away from 0 and 1 where their logarithm is taken."""

SERVED_THRESHOLD = 0.5
"""Threshold of a model that carries none, as it is served."""

BASELINE = "baseline"

_HIGHEST = 700.0
"""The largest loss whose perplexity is a number."""


@dataclass(frozen=True)
class Sums:
    """Sums of features by name, shape (..., features), less those of a ``part`` if there is one."""

    names: tuple[str, ...]
    values: Floats
    part: Floats | None = None

    def __getitem__(self, name: str) -> Floats:
        """Return the sums of one feature, shape (...)."""
        index = self.names.index(name)
        whole: Floats = self.values[..., index]
        return whole if self.part is None else whole - self.part[..., index]


Formula = Callable[[Sums], Floats]


def ratio(over: Floats, under: Floats) -> Floats:
    """Divide; NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(under > 0, over / under, np.nan)
    return found


BINARY: dict[str, Formula] = {
    "accuracy": lambda s: ratio(s["rows"] - s["positives"] - s["selected"] + 2 * s["hits"], s["rows"]),
    "recall": lambda s: ratio(s["hits"], s["positives"]),
    "precision": lambda s: ratio(s["hits"], s["selected"]),
    "f1": lambda s: ratio(2 * s["hits"], s["positives"] + s["selected"]),
    "false_positive_rate": lambda s: ratio(s["selected"] - s["hits"], s["rows"] - s["positives"]),
    "selection_rate": lambda s: ratio(s["selected"], s["rows"]),
    "log_loss": lambda s: ratio(s["log_loss"], s["rows"]),
    "brier": lambda s: ratio(s["square"], s["rows"]),
}

COUNTS: dict[str, Callable[[Sums], tuple[Floats, Floats]]] = {
    "accuracy": lambda s: (s["rows"] - s["positives"] - s["selected"] + 2 * s["hits"], s["rows"]),
    "recall": lambda s: (s["hits"], s["positives"]),
    "precision": lambda s: (s["hits"], s["selected"]),
    "false_positive_rate": lambda s: (s["selected"] - s["hits"], s["rows"] - s["positives"]),
    "selection_rate": lambda s: (s["selected"], s["rows"]),
}
"""Metrics of two classes that are proportions: successes and trials."""


def trials(name: str, sums: Sums, classes: Sequence[str]) -> Floats:
    """Return what a share is a share of: the positives of the recall, all rows of the accuracy."""
    base, _, of_class = name.partition("/")
    if of_class:
        return sums[f"{'predicted' if base == 'precision' else 'true'}/{classes.index(of_class)}"]
    if base.startswith("macro_"):
        rarest: Floats = np.min([sums[part] for part in sums.names if part.startswith("true/")], axis=0)
        return rarest
    if base == "false_positive_rate":
        return sums["rows"] - sums["positives"]
    return sums[{"recall": "positives", "f1": "positives", "precision": "selected"}.get(base, "rows")]


REGRESSION: dict[str, Formula] = {
    "mae": lambda s: ratio(s["distance"], s["rows"]),
    "rmse": lambda s: np.sqrt(ratio(s["square"], s["rows"])),
    "r2": lambda s: 1 - ratio(s["square"], s["label_square"] - ratio(s["label"] ** 2, s["rows"])),
}

LANGUAGE: dict[str, Formula] = {
    "loss": lambda s: ratio(s["loss"], s["rows"]),
    "perplexity": lambda s: np.exp(np.minimum(ratio(s["loss"], s["rows"]), _HIGHEST)),
}


def multiclass(classes: Sequence[str]) -> dict[str, Formula]:
    """Return the formulas of several named classes; one that is never true or never predicted counts 0."""

    def rates(name: str, under: Callable[[Sums, int], Floats]) -> dict[str, Formula]:
        def one(k: int) -> Formula:
            times = 2.0 if name == "f1" else 1.0
            return lambda s: np.nan_to_num(ratio(times * s[f"hits/{k}"], under(s, k)))

        each = {f"{name}/{of_class}": one(k) for k, of_class in enumerate(classes)}
        parts = list(each.values())
        return {f"macro_{name}": lambda s: sum(part(s) for part in parts) / len(parts)} | each  # type: ignore[return-value]

    def right(s: Sums) -> Floats:
        return ratio(sum((s[f"hits/{k}"] for k in range(len(classes))), np.zeros(1)), s["rows"])

    return {
        "accuracy": right,
        **rates("recall", lambda s, k: s[f"true/{k}"]),
        **rates("precision", lambda s, k: s[f"predicted/{k}"]),
        **rates("f1", lambda s, k: s[f"true/{k}"] + s[f"predicted/{k}"]),
        "micro_f1": right,  # of one class a row, the same number
        "log_loss": lambda s: ratio(s["log_loss"], s["rows"]),
        "brier": lambda s: ratio(s["square"], s["rows"]),
    }


def _entropy(shares: Sequence[Floats]) -> Floats:
    """Return the entropy of shares that add up to 1, in nats; a share of 0 adds nothing."""
    parts = [-share * np.log(np.where(share > 0, share, 1.0)) for share in shares]
    total: Floats = np.sum(parts, axis=0)
    return total


def _class_entropy(s: Sums) -> Floats:
    counts = [s[name] for name in s.names if name.startswith("true/")]
    if not counts:
        counts = [s["positives"], s["rows"] - s["positives"]]
    return _entropy([np.clip(ratio(count, s["rows"]), 0, 1) for count in counts])


CONSTANT_LOSS: dict[Kind, Formula] = {
    "binary": _class_entropy,
    "multiclass": _class_entropy,
    "regression": lambda s: ratio(s["label_square"] - ratio(s["label"] ** 2, s["rows"]), s["rows"]),
    "language_model": lambda s: ratio(s["constant_loss"], s["rows"]),
}
"""Mean loss of the best constant prediction for the summed rows, by kind: the entropy of the classes, the
variance of a number, the loss of the tokens' frequencies."""

MODEL_LOSS: dict[Kind, Formula] = {
    "binary": BINARY["log_loss"],
    "multiclass": lambda s: ratio(s["log_loss"], s["rows"]),
    "regression": lambda s: ratio(s["square"], s["rows"]),
    "language_model": LANGUAGE["loss"],
}
"""Mean loss of the model in the same unit: log loss, squared error, loss a token."""


def formulas(kind: Kind, classes: Sequence[str], *, bounds: bool) -> dict[str, Formula]:
    """Return the metrics of a kind that are formulas of sums, by name."""
    covered: dict[str, Formula] = {"coverage": lambda s: ratio(s["covered"], s["rows"])} if bounds else {}
    return {
        "binary": BINARY,
        "multiclass": multiclass(classes) if kind == "multiclass" else {},
        "regression": REGRESSION | covered,
        "language_model": LANGUAGE,
    }[kind]


def features(
    kind: Kind, label: NDArray[np.int64] | Floats, scores: Floats, bounds: Floats | None, threshold: float
) -> dict[str, Floats]:
    """Return what is added up, row by row; each of shape (rows,), not yet weighted."""
    if kind == "binary":
        return _binary_features(label, scores[:, 0], threshold)
    if kind == "multiclass":
        return _multiclass_features(label.astype(np.int64), scores)
    if kind == "language_model":
        return {"rows": np.ones(len(scores)), "loss": scores[:, 0]}
    error = scores[:, 0] - label
    found = {
        "rows": np.ones(len(label)),
        "distance": np.abs(error),
        "square": error**2,
        "label": label - label.mean(),
        "label_square": (label - label.mean()) ** 2,
    }
    if bounds is None:
        return found
    return found | {"covered": ((bounds[:, 0] <= label) & (label <= bounds[:, 1])).astype(np.float64)}


def _binary_features(label: NDArray[np.int64] | Floats, score: Floats, threshold: float) -> dict[str, Floats]:
    selected = (score >= threshold).astype(np.float64)
    safe = np.clip(score, _CERTAIN, 1 - _CERTAIN)
    return {
        "rows": np.ones(len(label)),
        "positives": label.astype(np.float64),
        "selected": selected,
        "hits": selected * label,
        "log_loss": -np.where(label == 1, np.log(safe), np.log1p(-safe)),
        "square": (score - label) ** 2,
        "score": score,
    }


def _multiclass_features(label: NDArray[np.int64], scores: Floats) -> dict[str, Floats]:
    chosen, rows = scores.argmax(axis=1), np.arange(len(label))
    truth = np.zeros_like(scores)
    truth[rows, label] = 1
    found = {
        "rows": np.ones(len(label)),
        "log_loss": -np.log(np.clip(scores[rows, label], _CERTAIN, 1.0)),
        "square": np.sum((scores - truth) ** 2, axis=1),
    }
    for k in range(scores.shape[1]):
        found[f"true/{k}"] = (label == k).astype(np.float64)
        found[f"predicted/{k}"] = (chosen == k).astype(np.float64)
        found[f"hits/{k}"] = ((label == k) & (chosen == k)).astype(np.float64)
    return found


@dataclass(frozen=True)
class ModelFeatures:
    """One model's features by name, weighted, each of shape (rows,); the threshold is 0.5 for other kinds."""

    predictions: Predictions
    threshold: float
    columns: dict[str, Floats]


@dataclass(frozen=True)
class EvaluationData:
    """Both models on the same rows.

    ``clusters`` has the cluster of each row, from 0 on, shape (rows,); None where each counts alone.
    """

    evaluation: Evaluation
    candidate: ModelFeatures
    baseline: ModelFeatures | None
    clusters: Integers | None
    sampler: Resampler

    @property
    def sides(self) -> tuple[ModelFeatures, ...]:
        """The candidate, and the baseline where there is one."""
        return (self.candidate, self.baseline) if self.baseline else (self.candidate,)

    @property
    def rows(self) -> int:
        """Rows that are judged."""
        return self.candidate.predictions.rows

    @property
    def classes(self) -> int:
        """Number of classes; 0 without any."""
        return len(self.candidate.predictions.class_names)

    @property
    def units(self) -> int:
        """Rows, or clusters where rows were drawn in them."""
        return self.rows if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def exact(self) -> bool:
        """True if rows have neither weights nor clusters, so that intervals of counts are valid."""
        return self.clusters is None and self.candidate.predictions.weight is None

    @property
    def skewed(self) -> bool:
        """True if bootstrap intervals are BCa: each row or cluster is a unit of its own."""
        return self.sampler.units == self.units

    @cached_property
    def same(self) -> bool:
        """True if both models have the same scores: their gain is exactly 0."""
        if self.baseline is None:
            return False
        return bool(np.array_equal(self.candidate.predictions.scores, self.baseline.predictions.scores))

    @cached_property
    def formulas(self) -> dict[str, Formula]:
        """The metrics that are formulas of sums, by name."""
        predictions = self.candidate.predictions
        return formulas(predictions.kind, predictions.class_names, bounds=predictions.bounds is not None)


def build_evaluation_data(pairs: PredictionPair, evaluation: Evaluation) -> EvaluationData:
    """Turn predictions into features, and draw their rows or clusters."""
    predictions = pairs.candidate
    clusters = _clusters(predictions, evaluation.cluster) if evaluation.cluster else None
    sampler = Resampler.over(
        predictions.rows, clusters=clusters, resamples=evaluation.resamples, seed=evaluation.seed
    )
    return EvaluationData(
        evaluation=evaluation,
        candidate=model_features(predictions, evaluation, "predictions"),
        baseline=model_features(pairs.baseline, evaluation, BASELINE) if pairs.baseline else None,
        clusters=clusters,
        sampler=sampler,
    )


def model_features(predictions: Predictions, evaluation: Evaluation, where: str) -> ModelFeatures:
    """Return a model's features at its threshold."""
    threshold = _threshold(predictions, evaluation, where)
    plain = features(predictions.kind, predictions.label, predictions.scores, predictions.bounds, threshold)
    if predictions.constant_loss is not None:
        plain["constant_loss"] = predictions.constant_loss
    if predictions.weight is not None:
        plain = {name: column * predictions.weight for name, column in plain.items()}
    return ModelFeatures(predictions, threshold, plain)


def _threshold(predictions: Predictions, evaluation: Evaluation, where: str) -> float:
    if evaluation.threshold != "model":
        return evaluation.threshold
    if predictions.kind != "binary":
        return 0.5
    if predictions.threshold is None and where == BASELINE:
        return SERVED_THRESHOLD
    if predictions.threshold is None:
        raise InputError(
            "evaluation.threshold is model, and the model carries none",
            where=where,
            hint="Let training.objective.threshold choose one (f1 or youden), or give a number.",
        )
    return predictions.threshold


def _clusters(predictions: Predictions, name: str) -> Integers:
    column = predictions.columns[name]
    if column.null_count:
        raise InputError(
            f"{column.null_count:,} of {predictions.rows:,} rows have no value in {name!r}",
            where="evaluation.cluster",
            hint="Rows that were drawn together need a name for it.",
        )
    codes: Integers = (
        pc.dictionary_encode(column.combine_chunks()).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    )
    if int(codes.max()) < 1:
        raise InputError(f"all rows have the same value in {name!r}", where="evaluation.cluster")
    return codes
