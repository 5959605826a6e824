"""Numbers for the keys of a history, and for the same keys in other rows."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.join.asof import Ints

UNKNOWN = -1
"""Code of a key that the history never had, or that is null in any of its columns."""

_DENSE = 2**24
"""Whole numbers that span less than this are their own codes: no table has to be looked up."""


class Codes:
    """Numbers, at least 0 and below 2**31, for the combinations of key values that a history has.

    Args:
        keys: The history's key columns, without nulls.

    Attributes:
        own: Code of each row of the history; shape (rows,).
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray]) -> None:
        self._columns = [_Column(column) for column in keys]
        self._known: list[Ints] = []
        own = self._columns[0].codes(keys[0])
        for column, values in zip(self._columns[1:], keys[1:], strict=True):
            # Numbered anew after every column: the next product then fits into 64 bits.
            known, own = np.unique(own * column.size + column.codes(values), return_inverse=True)
            self._known.append(known)
        self.own: Ints = own.astype(np.int64, copy=False)

    def of(self, keys: Sequence[pa.ChunkedArray]) -> Ints:
        """Return the code of each row's key, given in the history's types; shape (rows,)."""
        total = self._columns[0].codes(keys[0])
        for known, column, values in zip(self._known, self._columns[1:], keys[1:], strict=True):
            code = column.codes(values)
            if not known.size:
                return np.full_like(total, UNKNOWN)
            pair = total * column.size + code
            place = np.minimum(np.searchsorted(known, pair), known.size - 1)
            there = (total >= 0) & (code >= 0) & (known[place] == pair)
            total = np.where(there, place, UNKNOWN)
        return total


class _Column:
    """Numbers for the values of one key column.

    Attributes:
        size: Above every number.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._low: int | None = None
        if pa.types.is_signed_integer(column.type) and len(column):
            numbers = column.to_numpy()
            low, high = int(numbers.min()), int(numbers.max())
            if high - low < _DENSE and low > np.iinfo(np.int64).min:
                self._low, self.size = low, high - low + 1
                return
        self._values = pc.unique(column)
        self.size = max(len(self._values), 1)

    def codes(self, column: pa.ChunkedArray) -> Ints:
        """Return the number of each value; -1 for a null, and for a value that is not among them."""
        if self._low is None:
            code = pc.fill_null(pc.index_in(column, value_set=self._values), UNKNOWN)
            return code.to_numpy().astype(np.int64)  # type: ignore[no-any-return]
        low = self._low
        numbers: Ints = pc.fill_null(column.cast(pa.int64()), low - 1).to_numpy()
        return np.where((numbers >= low) & (numbers < low + self.size), numbers - low, UNKNOWN)
