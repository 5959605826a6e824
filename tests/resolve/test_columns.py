"""Columns that an experiment names and its source does not have end the run before anything is read."""

import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwright.errors import InputError
from trainwright.resolve.resolve import resolve

SPLITS = {"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.2}}
TABLE = pa.table({"id": [1, 2], "late": [0, 1], "carrier": ["UA", "AA"]})
WRONG = {"data.key": ["id"], "evaluation.slices": ["carier", "dayy"], "features.exclude": ["nothing", "late"]}
SAID = [
    "the source does not have these columns",
    "  evaluation.slices: no column 'carier'; did you mean carrier?",
    "  evaluation.slices: no column 'dayy'; did you mean day?",
    "  features.exclude: no column 'nothing'",
]


def section(**changes: object) -> dict[str, object]:
    return {"source": "x", "key": "id", "label": "late", "splits": SPLITS} | changes


def source_of(kind: str, folder: Path) -> tuple[str, dict[str, object]]:
    """Write the table as a source of a kind; a column `day` comes from a folder or stands in it."""
    place = folder / "in" / "day=3"
    place.mkdir(parents=True)
    if kind == "parquet":
        pq.write_table(TABLE, place / "a.parquet")
    elif kind == "csv":
        (place / "a.csv").write_text("id,late,carrier\n1,0,UA\n2,1,AA\n")
    elif kind == "jsonl":
        (place / "a.jsonl").write_text('{"id": 1, "late": 0}\n{"id": 2, "late": 1, "carrier": "AA"}\n')
    else:
        with sqlite3.connect(folder / "rows.db") as database:
            database.execute("CREATE TABLE flights (id INTEGER, late INTEGER, carrier TEXT, day INTEGER)")
        query = {"select": "SELECT * FROM flights", "tables": ["flights"]}
        return f"sqlite:///{folder}/rows.db", section(format="sql", sql=query)
    return str(folder / "in"), section()


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "sql"])
def test_missing_columns_of_all_sections_are_reported_together(tmp_path: Path, kind: str) -> None:
    source, data = source_of(kind, tmp_path)
    with pytest.raises(InputError) as caught:
        resolve(source, tmp_path / "out", data, columns=WRONG)
    assert caught.value.what.splitlines() == SAID
    assert "The columns: id, late, carrier, day." in caught.value.hint
    right = {"data.key": ["id"], "evaluation.slices": ["carrier", "day"]}
    assert resolve(source, tmp_path / "out", data, columns=right).version


def test_row_number_is_a_column_where_no_key_is_named(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    columns = {"features.exclude": ["row"]}
    source = str(tmp_path / "in.parquet")
    assert resolve(source, tmp_path / "out", section(key=None), columns=columns).version
    with pytest.raises(InputError, match=r"features\.exclude: no column 'row'"):
        resolve(source, tmp_path / "out", section(), columns=columns)


def test_columns_with_the_names_of_scores_are_rejected_where_all_columns_are_features(tmp_path: Path) -> None:
    pq.write_table(TABLE.append_column("score_1", TABLE["id"]), tmp_path / "in.parquet")
    source, every = str(tmp_path / "in.parquet"), {"features": ["*"]}
    with pytest.raises(InputError, match="names of columns of the predictions: score_1"):
        resolve(source, tmp_path / "out", section(), columns=every)
    assert resolve(
        source, tmp_path / "out", section(), columns=every | {"features.exclude": ["score_1"]}
    ).version
    assert resolve(source, tmp_path / "out", section(), columns={"features.request": ["carrier"]}).version


def test_columns_of_the_serving_log_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    for name in ("in", "log"):
        pq.write_table(TABLE, tmp_path / f"{name}.parquet")
    columns = {"validation.serving_log.columns": ["carier"]}
    beside = {"serving": str(tmp_path / "log.parquet")}
    with pytest.raises(InputError, match=r"serving_log\.columns: no column 'carier'; did you mean carrier"):
        resolve(str(tmp_path / "in.parquet"), tmp_path / "out", section(), columns=columns, beside=beside)
