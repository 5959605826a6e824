"""Asking once for what is asked many times."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.join.asof import Ints


def distinct_rows(columns: Sequence[pa.ChunkedArray]) -> tuple[Ints, Ints]:
    """Number the distinct combinations of values.

    Returns:
        The first row of each combination, and the combination's number for each row.
    """
    number = np.zeros(len(columns[0]), dtype=np.int64)
    first = number[:1]
    for column in columns:
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
        pair = number * (len(column) + 1) + codes.to_numpy().astype(np.int64)
        _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    return first.astype(np.int64), number.astype(np.int64)


def complete_rows(rows: pa.Table) -> Ints:
    """Return the places of the rows without a null."""
    places: Ints = np.flatnonzero(np.all([column.is_valid().to_numpy() for column in rows.columns], axis=0))
    return places
