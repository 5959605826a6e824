"""Draw the small tables of the examples from the flights: ``draw_tables.py FLIGHTS FOLDER [ROWS]``.

The committed tables are what this writes; run it again only to change them. It needs pyarrow and numpy.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

COLUMNS = {
    "quickstart": ["late", "carrier", "origin", "dest", "distance", "month", "hour", "dep_delay"],
    "regression": ["arr_delay", "carrier", "origin", "dest", "distance", "month", "hour", "dep_delay"],
    "multiclass": ["origin", "carrier", "dest", "month", "hour", "minute_of_day", "day_of_week"],
}
ROWS = 4_000


def draw(flights: pa.Table, columns: list[str], rows: int) -> pa.Table:
    """Return some flights that arrived, in the order of their departure, with the label first."""
    arrived = flights.filter(pc.is_valid(flights["late"]))
    chosen = np.sort(np.random.default_rng(0).choice(len(arrived), rows, replace=False))
    table = arrived.take(chosen).select(columns)
    if columns[0] == "late":
        words = pc.if_else(pc.equal(table["late"], 1), "yes", "no")
        table = table.set_column(0, "late", words)
        table = table.add_column(0, "id", pa.array(range(1, rows + 1)))
    return table


def main() -> None:
    """Write a CSV file for each example."""
    flights, folder = pq.read_table(sys.argv[1]), Path(sys.argv[2])
    rows = int(sys.argv[3]) if len(sys.argv) > 3 else ROWS  # noqa: PLR2004
    for name, columns in COLUMNS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        options = pacsv.WriteOptions(quoting_style="needed")
        pacsv.write_csv(draw(flights, columns, rows), folder / name / "rows.csv", options)


if __name__ == "__main__":
    main()
