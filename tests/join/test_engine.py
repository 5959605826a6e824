"""What is asked of an engine that tells rows by their keys as one text. Spark itself is in tests/engines."""

import numpy as np
import pyarrow as pa

from trainwright.join.distinct import complete_rows, distinct_rows
from trainwright.join.engine import _unmistakable


def asked(*columns: list[object]) -> pa.Table:
    return pa.table([pa.array(column) for column in columns], names=[f"c{n}" for n in range(len(columns))])


def test_rows_whose_keys_are_the_same_as_one_text_are_asked_for_apart() -> None:
    rows = asked([1, 12, 7, 12, 1], [23, 3, 7, 3, 23], [5, 5, 5, 6, 6])
    parts = [part.tolist() for part in _unmistakable(rows, np.arange(5))]
    assert parts == [[0, 2, 3], [1, 4]]


def test_rows_of_one_key_are_asked_for_at_once() -> None:
    assert [part.tolist() for part in _unmistakable(asked([1, 12], [5, 5]), np.arange(2))] == [[0, 1]]


def test_a_row_with_a_null_in_its_key_is_not_asked_for_and_a_repeated_one_once() -> None:
    rows = asked([1, None, 1, 2], ["a", "a", "a", None])
    first, number = distinct_rows(rows.columns)
    assert [first[place] for place in number] == [0, 1, 0, 3]
    assert complete_rows(rows.take(pa.array(first))).size == 1
    assert _unmistakable(rows, np.empty(0, dtype=np.int64)) == []
