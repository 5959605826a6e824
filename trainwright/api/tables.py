"""Rows in memory as a file: a pandas data frame, an Arrow table, or arrays and lists by column."""

import importlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import InputError


def is_table(rows: object) -> bool:
    """Tell whether rows lie in memory, and not in a file that a path or a URI names."""
    return not isinstance(rows, str | os.PathLike)


def write_rows(rows: Any, folder: Path, name: str) -> Path:
    """Write rows to a new file of a folder, and return it: Parquet, or JSON lines where pyarrow is missing.

    Args:
        rows: A pandas data frame, an Arrow table, or arrays or lists of one length by name.
        folder: The folder; it is created.
        name: Name of the file, without its suffix.

    Raises:
        InputError: These are no rows, or the columns have different lengths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, Mapping):
        return _write_columns(rows, folder / f"{name}.jsonl")
    if type(rows).__module__.startswith("pyarrow"):
        importlib.import_module("pyarrow.parquet").write_table(rows, folder / f"{name}.parquet")
        return folder / f"{name}.parquet"
    if not hasattr(rows, "to_parquet"):
        raise InputError(
            f"expected a path, a data frame, an Arrow table or columns by name, found {type(rows).__name__}",
            where="rows",
        )
    if importlib.util.find_spec("pyarrow"):
        rows.to_parquet(folder / f"{name}.parquet", index=False)
        return folder / f"{name}.parquet"
    rows.to_json(folder / f"{name}.jsonl", orient="records", lines=True, date_format="iso")
    return folder / f"{name}.jsonl"


def _write_columns(rows: Mapping[str, Any], path: Path) -> Path:
    columns = {
        name: values.tolist() if hasattr(values, "tolist") else list(values) for name, values in rows.items()
    }
    if len({len(values) for values in columns.values()}) > 1:
        sizes = {name: len(values) for name, values in columns.items()}
        raise InputError(f"the columns have different lengths: {sizes}", where="rows")
    lines = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
    return path
