"""Compare the predictions of two trainings on the same rows."""

import math
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.evaluate.predictions import roles_of
from trainwright.tables import read_split


def largest_difference(first: Path, second: Path) -> float:
    """Return the largest absolute difference of two predictions of one row; infinite if the rows differ.

    Raises:
        InputError: A folder holds no predictions, or a file of them was changed.
    """
    one, other = Snapshot.read(first), Snapshot.read(second)
    roles = roles_of(one)
    if roles != roles_of(other) or one.splits != other.splits:
        return math.inf
    largest = 0.0
    for split in one.splits:
        names = [name for name in (roles.key, *roles.scores) if name]
        tables = [read_split(first, one, split, names), read_split(second, other, split, names)]
        if roles.key and not tables[0][roles.key].equals(tables[1][roles.key]):
            return math.inf
        for name in roles.scores:
            apart = pc.abs(pc.subtract(*(table[name].cast(pa.float64()) for table in tables)))
            largest = max(largest, pc.max(apart).as_py() or 0.0)
    return largest
