"""Columns that give the label away: alone they rank it nearly without error."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.evaluate.findings import Floats
from trainwright.evaluate.subject import Integers
from trainwright.significance import delong
from trainwright.tables import read_split

SUSPICIOUS = 0.99
"""Area under the ROC curve of a single column from which on a person should look."""

MOST_ROWS = 50_000
"""Rows that are looked at: of so many an area is known to 0.005 and better."""

_FEWEST = 30
_MOST_NAMES = 50


def suspicious_columns(folder: Path, snapshot: Snapshot, split: str, taken: Sequence[str]) -> tuple[str, ...]:
    """Say which columns beside the scores tell a label of 0 and 1 alone.

    A number ranks as it is, upwards or downwards; a name by how often the label is 1 with it, in the half of
    the rows that it is not measured on. It warns, and decides nothing: such a column may be right.

    Args:
        folder: Folder of the predictions.
        snapshot: Its manifest; predictions of two classes.
        split: Split that is judged.
        taken: Columns that are no inputs: scores, label, key, weight.
    """
    label_name = snapshot.roles.get("label", "label")
    left = [column.name for column in snapshot.columns if column.name not in taken]
    table = read_split(folder, snapshot, split, list(dict.fromkeys([label_name, *left])))
    table = table.filter(pc.is_valid(table[label_name]))
    if table.num_rows > MOST_ROWS:
        rows = np.random.default_rng(0).choice(table.num_rows, MOST_ROWS, replace=False)
        table = table.take(pa.array(np.sort(rows)))
    label = table[label_name].cast(pa.float64()).to_numpy().astype(np.int64)
    return tuple(_warnings(table, left, label, label_name))


def _warnings(table: Any, names: Sequence[str], label: Integers, label_name: str) -> Iterator[str]:
    for name in names:
        found = _area(table[name], label)
        if found > SUSPICIOUS:
            yield (
                f"column {name!r} alone tells {label_name} with an AUC of {found:.4f}: "
                "is it known when the model is asked?"
            )


def _area(column: Any, label: Integers) -> float:
    """Return the area of a column, at least 0.5; 0 where it has none."""
    known = pc.is_valid(column).to_numpy()
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        values: Floats = column.filter(pa.array(known)).cast(pa.float64(), safe=False).to_numpy()
        truth = label[known]
        finite = np.isfinite(values)
        values, truth = values[finite], truth[finite]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values, truth = _rated(column.filter(pa.array(known)), label[known])
    else:
        return 0.0
    if min(int(truth.sum()), int(len(truth) - truth.sum())) < _FEWEST:
        return 0.0
    area = delong(truth, values).value
    return max(area, 1 - area)


def _rated(column: Any, label: Integers) -> tuple[Floats, Integers]:
    """Rate every name by the label of the even rows, and return the odd rows' rates and labels."""
    coded = column.combine_chunks().dictionary_encode()
    names = len(coded.dictionary)
    if names > _MOST_NAMES or not len(label):
        return np.zeros(0), label[:0]
    code = coded.indices.to_numpy(zero_copy_only=False)
    rows = np.bincount(code[::2], minlength=names)
    rate = (np.bincount(code[::2], weights=label[::2], minlength=names) + 0.5) / (rows + 1)
    return rate[code[1::2]], label[1::2]
