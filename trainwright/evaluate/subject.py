"""What is measured: the rows of both models as features that add up, and how they are drawn again."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.evaluate.findings import Floats
from trainwright.evaluate.formulas import Formula, features, formulas
from trainwright.evaluate.pairing import Pairs
from trainwright.evaluate.predictions import Predictions
from trainwright.experiment import Evaluation
from trainwright.significance import Resampler

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """One model's features.

    Attributes:
        predictions: What it said.
        threshold: A score of at least this counts as label 1; 0.5 for other kinds.
        columns: Features by name, weighted, each of shape (rows,).
    """

    predictions: Predictions
    threshold: float
    columns: dict[str, Floats]


@dataclass(frozen=True)
class Subject:
    """Both models on the same rows.

    Attributes:
        evaluation: What was asked.
        candidate: The model that is judged.
        baseline: The model in production; None without one.
        clusters: Which rows were drawn together, from 0 on, shape (rows,); None where each counts alone.
        sampler: Draws of rows, or of clusters.
    """

    evaluation: Evaluation
    candidate: Side
    baseline: Side | None
    clusters: Integers | None
    sampler: Resampler

    @property
    def sides(self) -> tuple[Side, ...]:
        """The candidate, and the baseline where there is one."""
        return (self.candidate, self.baseline) if self.baseline else (self.candidate,)

    @property
    def rows(self) -> int:
        """Rows that are judged."""
        return self.candidate.predictions.rows

    @property
    def classes(self) -> int:
        """Number of classes; 0 without any."""
        predictions = self.candidate.predictions
        return {"binary": 2, "multiclass": int(predictions.scores.shape[1])}.get(predictions.kind, 0)

    @property
    def units(self) -> int:
        """Rows, or clusters where rows were drawn in them."""
        return self.rows if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def exact(self) -> bool:
        """Whether rows count alike and alone, so that intervals by counts hold."""
        return self.clusters is None and self.candidate.predictions.weight is None

    @property
    def skewed(self) -> bool:
        """Whether intervals are corrected for bias and skew: where every row, or cluster, is drawn itself."""
        return self.sampler.units == self.units

    @cached_property
    def same(self) -> bool:
        """Whether both models say the same of every row: their gain is 0 then, and that is certain."""
        if self.baseline is None:
            return False
        return bool(np.array_equal(self.candidate.predictions.scores, self.baseline.predictions.scores))

    @cached_property
    def formulas(self) -> dict[str, Formula]:
        """The metrics that are formulas of sums, by name."""
        predictions = self.candidate.predictions
        return formulas(predictions.kind, self.classes, bounds=predictions.bounds is not None)


def prepare(pairs: Pairs, evaluation: Evaluation) -> Subject:
    """Turn predictions into features.

    Raises:
        InputError: The model carries no threshold that was asked for, or a row has no cluster.
    """
    predictions = pairs.candidate
    clusters = _clusters(predictions, evaluation.cluster) if evaluation.cluster else None
    sampler = Resampler.over(
        predictions.rows, clusters=clusters, resamples=evaluation.resamples, seed=evaluation.seed
    )
    return Subject(
        evaluation=evaluation,
        candidate=side(predictions, evaluation, "predictions"),
        baseline=side(pairs.baseline, evaluation, "baseline") if pairs.baseline else None,
        clusters=clusters,
        sampler=sampler,
    )


def side(predictions: Predictions, evaluation: Evaluation, where: str) -> Side:
    """Return a model's features at its threshold."""
    threshold = _threshold(predictions, evaluation, where)
    plain = features(predictions.kind, predictions.label, predictions.scores, predictions.bounds, threshold)
    if predictions.weight is not None:
        plain = {name: column * predictions.weight for name, column in plain.items()}
    return Side(predictions, threshold, plain)


def _threshold(predictions: Predictions, evaluation: Evaluation, where: str) -> float:
    if evaluation.threshold != "model":
        return evaluation.threshold
    if predictions.kind != "binary":
        return 0.5
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
