"""What single columns give away of the label."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray


def single_column_scores(rows: pa.Table, label: str, columns: list[str]) -> Mapping[str, float]:
    """Measure how well each column alone orders the labels: its AUC, whichever way round.

    A null counts as the lowest value. Categories are scored by the label's mean on every other row, and
    judged on the rest. Columns of other types, and labels of one kind only, give no score.

    Args:
        rows: Rows with the label, 0 or 1, and the columns.
        label: The label's column; rows without it are left out.
        columns: The columns to score.

    Returns:
        AUC in [0.5, 1] by column.
    """
    known = rows.filter(rows[label].is_valid())
    truth = known[label].cast(pa.int64()).to_numpy()
    scores = {}
    for name in columns:
        column = known[name]
        if pa.types.is_string(column.type):
            values, judged = _category_means(column, truth)
        elif _is_number(column.type):
            values, judged = np.nan_to_num(_numbers(column), nan=-np.inf), truth
        else:
            continue
        if 0 < judged.sum() < judged.size:
            auc = _auc(values, judged)
            scores[name] = max(auc, 1 - auc)
    return scores


def class_rows(rows: pa.Table, label: str) -> tuple[int, int]:
    """Count the rows of label 0 and of label 1."""
    known = rows[label].drop_null().cast(pa.int64()).to_numpy()
    positives = int((known == 1).sum())
    return known.size - positives, positives


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return numbers for ordering; integers beyond 2^53 may come to stand beside their neighbours."""
    numbers: NDArray[np.float64] = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy()
    return numbers


def _category_means(
    column: pa.ChunkedArray, truth: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    size = int(codes.max(initial=0)) + 1
    count = np.bincount(codes[::2], minlength=size)
    positives = np.bincount(codes[::2], weights=truth[::2], minlength=size)
    overall = positives.sum() / max(count.sum(), 1)
    means = (positives + overall) / (count + 1)
    return means[codes[1::2]], truth[1::2]


def _auc(score: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Area under the ROC curve from midranks (Mann-Whitney); ``truth`` holds both 0 and 1."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    midrank = np.cumsum(count) - (count - 1) / 2
    positives = int(truth.sum())
    wins = midrank[place][truth == 1].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * (truth.size - positives)))
