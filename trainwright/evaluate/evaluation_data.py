"""Features that sum over rows, and the metrics as formulas of those sums."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.evaluate.findings import Floats, Integers, Kind
from trainwright.evaluate.groupings import ColumnSummary
from trainwright.evaluate.predictions import BASELINE, PredictionPair, Predictions
from trainwright.evaluate.rows import KeySample, Partial, Rows, require_unique
from trainwright.experiment import Evaluation
from trainwright.significance import Resampler, ValueDistribution
from trainwright.tables import fingerprints
from trainwright.tables.fingerprint import mixed

_LABELS = "Judge a split whose labels are known, and that has both outcomes."

_CERTAIN = 1e-15
"""Scores are kept this far away from 0 and 1 where their logarithm is taken."""

SERVED_THRESHOLD = 0.5
"""Threshold of a model that carries none, as it is served."""

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
    kind: Kind,
    label: NDArray[np.int64] | Floats,
    scores: Floats,
    bounds: Floats | None,
    threshold: float,
    center: float = 0.0,
) -> dict[str, Floats]:
    """Return what is added up, row by row; each of shape (rows,), not yet weighted.

    ``center`` is the mean of the label of a regression, so that sums of its squares keep their digits.
    """
    if kind == "binary":
        return _binary_features(label, scores[:, 0], threshold)
    if kind == "multiclass":
        return _multiclass_features(label.astype(np.int64), scores)
    if kind == "language_model":
        return {"rows": np.ones(len(scores)), "loss": scores[:, 0]}
    error = scores[:, 0] - label
    centered = np.asarray(label - center, np.float64)
    found = {
        "rows": np.ones(len(label)),
        "distance": np.abs(error),
        "square": error**2,
        "label": centered,
        "label_square": centered**2,
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
class EvaluatedModel:
    """One model: its predictions without any row, and its threshold, which is 0.5 for other kinds."""

    predictions: Predictions
    threshold: float


EXACT = 1 << 20
"""Of at most so many rows every distinct score is a step of its own."""

STEPS = 1 << 16
"""Steps of equally many rows that the scores of more rows are put into, if more are distinct."""

_CELLS = 1 << 18
"""Steps of all slices of a grouping together, of more rows."""


@dataclass(frozen=True)
class EvaluationData:
    """Both models on the same rows, as far as one pass over them tells.

    Attributes:
        source: The rows.
        survey: Merged results of :func:`take_survey`.
    """

    evaluation: Evaluation
    candidate: EvaluatedModel
    baseline: EvaluatedModel | None
    source: Rows
    survey: Partial

    @property
    def sides(self) -> tuple[EvaluatedModel, ...]:
        """The candidate, and the baseline where there is one."""
        return (self.candidate, self.baseline) if self.baseline else (self.candidate,)

    @property
    def kind(self) -> Kind:
        """Kind of prediction."""
        return self.candidate.predictions.kind

    @cached_property
    def _before(self) -> Integers:
        """Rows of each class before each piece, and at last in all, shape (pieces + 1, classes)."""
        counts = np.asarray(self.survey["counts"].values, np.int64)
        return np.concatenate([np.zeros_like(counts[:1]), np.cumsum(counts, axis=0)])

    @property
    def counts(self) -> Integers:
        """Rows by class, or all, shape (classes,)."""
        found: Integers = self._before[-1]
        return found

    @property
    def rows(self) -> int:
        """Rows that are judged."""
        return int(self.counts.sum())

    @property
    def classes(self) -> int:
        """Number of classes; 0 without any."""
        return len(self.candidate.predictions.class_names)

    @property
    def clustered(self) -> bool:
        """True if rows were drawn in clusters."""
        return self.evaluation.cluster is not None

    @property
    def units(self) -> int:
        """Rows, or clusters where rows were drawn in them."""
        return len(self.survey["clusters"].values) if self.clustered else self.rows

    @property
    def weighted(self) -> bool:
        """True if rows have weights."""
        return self.candidate.predictions.weight is not None

    @property
    def exact(self) -> bool:
        """True if rows have neither weights nor clusters, so that intervals of counts are valid."""
        return not self.clustered and not self.weighted

    @cached_property
    def sampler(self) -> Resampler:
        """Draws of rows or clusters."""
        return Resampler((self.units,), self.evaluation.resamples, self.evaluation.seed)

    @property
    def skewed(self) -> bool:
        """True if bootstrap intervals are BCa: each row or cluster is a unit of its own."""
        return self.sampler.units == self.units

    @property
    def same(self) -> bool:
        """True if both models have the same scores: their gain is exactly 0."""
        return self.baseline is not None and not self.survey["different"].any()

    @cached_property
    def formulas(self) -> dict[str, Formula]:
        """The metrics that are formulas of sums, by name."""
        predictions = self.candidate.predictions
        return formulas(predictions.kind, predictions.class_names, bounds=predictions.bounds is not None)

    def scores(self, side: int, column: int = 0, parts: int = 1) -> ValueDistribution:
        """Return the distribution of a score, whose values are the steps by which rows are ranked."""
        found: ValueDistribution = self.survey[f"scores/{side}/{column}"]
        return found if self.rows <= EXACT else found.thin(min(STEPS, _CELLS // parts))

    @property
    def center(self) -> float:
        """Mean of the label."""
        return float(self.survey["label"][0] / self.rows)

    def features(self, pair: PredictionPair) -> list[dict[str, Floats]]:
        """Return the features of each model by name, weighted; each of shape (rows,)."""
        found = []
        for model, rows in zip(self.sides, sides(pair), strict=True):
            plain = features(rows.kind, rows.label, rows.scores, rows.bounds, model.threshold, self.center)
            if rows.constant_loss is not None:
                plain["constant_loss"] = rows.constant_loss
            if rows.weight is not None:
                plain = {name: column * rows.weight for name, column in plain.items()}
            found.append(plain)
        return found

    @property
    def feature_names(self) -> list[tuple[str, ...]]:
        """Names of the features of each model."""
        none = PredictionPair(
            self.candidate.predictions, self.baseline.predictions if self.baseline else None
        )
        return [tuple(found) for found in self.features(none)]

    def index(self, rows: Predictions, piece: int, of_class: int | None = None) -> Integers:
        """Return the places of the rows of a piece among all rows; those of a class among its rows."""
        before = self._before[piece]
        if of_class is None:
            return int(before.sum()) + np.arange(rows.rows)
        return int(before[of_class]) + np.arange(int(np.sum(rows.label == of_class)))

    def clusters(self, rows: Predictions) -> Integers:
        """Return the cluster of each row, from 0 on in the order of all rows."""
        column = rows.columns[self.evaluation.cluster or ""]
        codes = pc.index_in(column, value_set=self.survey["clusters"].values).combine_chunks()
        found: Integers = codes.to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def unit(self, rows: Predictions, piece: int) -> Integers:
        """Return the unit of each row that is drawn, shape (rows,)."""
        return self.sampler.unit_of(self.clusters(rows) if self.clustered else self.index(rows, piece))


def sides(pair: PredictionPair) -> tuple[Predictions, ...]:
    """Return the rows of the candidate, and those of the baseline where there is one."""
    return (pair.candidate, pair.baseline) if pair.baseline else (pair.candidate,)


def build_evaluation_data(source: Rows, evaluation: Evaluation) -> EvaluationData:
    """Survey the rows, and check that they may be judged.

    Raises:
        InputError: No row has a label, all have the same class or the same scores, a key occurs twice, all
            weights are 0, or clusters are unknown or all one.
    """
    head = source.read(source.pieces[0])
    models = [
        EvaluatedModel(_without_rows(rows), _threshold(rows, evaluation, name))
        for rows, name in zip(sides(head), ("predictions", BASELINE), strict=False)
    ]
    most = EXACT if source.total <= EXACT else STEPS
    found = source.add_up(take_survey, (evaluation, most))
    data = EvaluationData(evaluation, models[0], models[1] if len(models) > 1 else None, source, found)
    _require_judgeable(data)
    return data


def _without_rows(rows: Predictions) -> Predictions:
    return replace(
        rows,
        label=rows.label[:0],
        scores=rows.scores[:0],
        weight=None if rows.weight is None else rows.weight[:0],
        bounds=None if rows.bounds is None else rows.bounds[:0],
        key=None,
        columns={},
        constant_loss=None if rows.constant_loss is None else rows.constant_loss[:0],
    )


def _threshold(predictions: Predictions, evaluation: Evaluation, where: str) -> float:
    if evaluation.threshold != "model":
        return evaluation.threshold
    if predictions.kind != "binary" or (predictions.threshold is None and where == BASELINE):
        return SERVED_THRESHOLD
    if predictions.threshold is None:
        raise InputError(
            "evaluation.threshold is model, and the model carries none",
            where=where,
            hint="Let training.objective.threshold choose one (f1 or youden), or give a number.",
        )
    return predictions.threshold


@dataclass(frozen=True)
class Values:
    """Values of Arrow, or of pieces, in their order."""

    values: Any

    @classmethod
    def merged(cls, parts: Sequence["Values"]) -> "Values":
        """Return the values of all parts, in their order."""
        if isinstance(parts[0].values, list):
            return cls([value for part in parts for value in part.values])
        return cls(pa.chunked_array([part.values for part in parts]).unique())


def take_survey(pair: PredictionPair, _: int, request: tuple[Evaluation, int]) -> Partial:
    """Return what the rest depends on: counts, distributions of scores, values of columns, keys."""
    evaluation, most = request
    rows, classes = pair.candidate, len(pair.candidate.class_names)
    counts = np.bincount(rows.label, minlength=classes) if classes else np.array([rows.rows])
    found: Partial = {
        "counts": Values([counts.tolist()]),
        "left out": np.array([rows.unlabelled, pair.unmatched]),
        "label": np.array([rows.label.sum()]),
        "weight": np.array([rows.weights.sum()]),
        "keys": KeySample.of(rows),
        "lines": _lines(rows),
    }
    if pair.baseline:
        found["different"] = np.array([np.sum(rows.scores != pair.baseline.scores)])
    for side, model in enumerate(sides(pair)):
        for column in range(model.scores.shape[1]):
            truth = is_class(rows, column).astype(np.int64) if classes else None
            distribution = ValueDistribution.of(model.scores[:, column], most, truth, 2 if classes else 1)
            found[f"scores/{side}/{column}"] = distribution
        if model.kind == "multiclass":
            found[f"claims/{side}"] = ValueDistribution.of(claims(model)[1], most)
        if model.kind == "regression":
            found[f"errors/{side}"] = ValueDistribution.of(model.scores[:, 0] - rows.label, most)
    for name in grouped_columns(evaluation):
        found[f"column/{name}"] = ColumnSummary.of(rows.columns[name], name, most)
    if evaluation.cluster:
        column = rows.columns[evaluation.cluster]
        found["clusters"] = Values(column.combine_chunks().unique().drop_null())
        found["no cluster"] = np.array([column.null_count])
    return found


def groupings_of(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Return the columns, and pairs of columns, whose groups are measured."""
    fair = evaluation.fairness.groupings if evaluation.fairness else ()
    return list(dict.fromkeys([*evaluation.groupings, *fair]))


def grouped_columns(evaluation: Evaluation) -> list[str]:
    """Return the columns of all groupings."""
    return list(dict.fromkeys(name for names in groupings_of(evaluation) for name in names))


def is_class(rows: Predictions, column: int) -> NDArray[np.bool_]:
    """Return True for the rows of the class whose probability is in a column of the scores."""
    found: NDArray[np.bool_] = rows.label == (1 if rows.kind == "binary" else column)
    return found


def claims(rows: Predictions) -> tuple[Floats, Floats]:
    """Return whether what is claimed is so, and how sure the model is of it; both of shape (rows,)."""
    if rows.scores.shape[1] == 1:
        return rows.label.astype(np.float64), rows.scores[:, 0]
    chosen = rows.scores.argmax(axis=1)
    return (chosen == rows.label).astype(np.float64), rows.scores[np.arange(rows.rows), chosen]


_SEEDS = 4


def _lines(rows: Predictions) -> NDArray[np.uint64]:
    """Return sums of the fingerprints of keys and labels, whatever the order of the rows.

    Bellare and Micciancio, EUROCRYPT 1997: sums of hashes are a hash of what is added up in any order.
    """
    label, sums = pa.array(rows.label), []
    for seed in range(_SEEDS):
        line = fingerprints(label, seed)
        if rows.key is not None:
            line = mixed(line + fingerprints(rows.key, seed + _SEEDS))
        sums.append(line.sum(dtype=np.uint64))
    return np.array(sums, np.uint64)


def _require_judgeable(data: EvaluationData) -> None:
    found, rows, where = data.survey, data.candidate.predictions, data.source.where
    name = rows.label_name or "the predictions"
    if not data.rows:
        raise InputError(
            f"none of the {data.source.total:,} rows has a label in {name!r}", where=where, hint=_LABELS
        )
    if len(single := np.flatnonzero(data.counts)) == 1 and data.classes:
        raise InputError(
            f"all {data.rows:,} rows have label {single[0]} in {name!r}: nothing can be ranked",
            where=where,
            hint=_LABELS,
        )
    require_unique(found.pop("keys"), data.rows, rows.snapshot.roles.get("key", ""), where)
    if not found["weight"][0] > 0:
        raise InputError(f"all weights in {rows.snapshot.roles.get('weight')!r} are 0", where=where)
    columns = [found[f"scores/0/{column}"].values for column in range(rows.scores.shape[1])]
    if data.rows > 1 and all(len(values) == 1 for values in columns):
        raise InputError(
            f"all {data.rows:,} rows have the same scores {[float(values[0]) for values in columns]}: "
            "nothing can be ranked",
            where="predictions",
            hint="The training did not learn, or every input was the same: look at the train step's report.",
        )
    if data.clustered:
        cluster = data.evaluation.cluster
        if missing := int(found["no cluster"][0]):
            raise InputError(
                f"{missing:,} of {data.rows:,} rows have no value in {cluster!r}",
                where="evaluation.cluster",
                hint="Rows that were drawn together need a name for it.",
            )
        if data.units < 2:  # noqa: PLR2004
            raise InputError(f"all rows have the same value in {cluster!r}", where="evaluation.cluster")
