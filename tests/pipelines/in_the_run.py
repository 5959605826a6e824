"""Changes of what a run is asked to do, and with what, each of one thing."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from typing import Any

from tests.pipelines import at_the_source
from tests.pipelines.bench import MONTHS, Bench, edit, rows_of, write
from tests.pipelines.conftest import TABULAR


def a_date_it_does_not_ask_for(bench: Bench) -> None:
    bench.given["date"] = "2013-05-01"


def a_date_with_the_same_rows(bench: Bench) -> None:
    write(bench.folder / "elsewhere" / "2013-05-02")
    bench.data["source"] = "elsewhere/{date}"
    bench.given["date"] = "2013-05-02"


def a_date_with_other_rows(bench: Bench) -> None:
    write(bench.folder / "elsewhere" / "2013-05-03")
    edit(bench.folder / "elsewhere" / "2013-05-03" / "2013-02.csv", ",0,62\n", ",0,65\n")
    bench.data["source"] = "elsewhere/{date}"
    bench.given["date"] = "2013-05-03"


def data(**keys: Any) -> Callable[[Bench], None]:
    return lambda bench: bench.data.update(keys)


def engine(**keys: Any) -> Callable[[Bench], None]:
    return lambda bench: bench.experiment.update(engine=keys)


def keys_in_another_order(bench: Bench) -> None:
    bench.experiment["data"] = dict(reversed(bench.data.items()))


def shares(seed: int) -> Callable[[Bench], None]:
    shares = {"train": {"fraction": 0.5}, "evaluate": {"fraction": 0.5}}
    return data(splits=shares, split_seed=seed)


def another_seed(bench: Bench) -> None:
    shares(1)(bench)
    bench.run()
    shares(2)(bench)


def other_splits(bench: Bench) -> None:
    bench.data["splits"] = {
        "train": {"start": "2013-01-05", "end": "2013-03-01"},
        "evaluate": bench.data["splits"]["evaluate"],
    }


def store_moved(bench: Bench) -> None:
    bench.data["store"] = "first_store"
    bench.run()
    bench.data["store"] = "second_store"


def store_emptied(bench: Bench) -> None:
    bench.data["store"] = "emptied_store"
    bench.run()
    shutil.rmtree(bench.folder / "emptied_store")


def store_kept_and_source_copied(bench: Bench) -> None:
    store_kept(bench)
    at_the_source.copied(bench)
    shutil.rmtree(bench.source)


def store_kept_and_source_copied_and_read_again(bench: Bench) -> None:
    store_kept_and_source_copied(bench)
    bench.data["min_rows"] = 2


def store_kept(bench: Bench) -> None:
    bench.data["store"] = "kept_store"
    bench.run()


PARQUET = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.compute as pc, pyarrow.csv as csv, pyarrow.parquet as pq
for path in sorted(Path(sys.argv[1]).glob("*.csv")):
    rows = csv.read_csv(path)
    at = rows["at"].cast(pa.timestamp("us", "UTC")) if rows["at"].type.tz else pc.assume_timezone(
        rows["at"].cast(pa.timestamp("us")), "UTC")
    rows = rows.set_column(rows.column_names.index("at"), "at", at)
    pq.write_table(rows, Path(sys.argv[2]) / f"{path.stem}.parquet", write_page_checksum=True)
"""


def pinned(bench: Bench, folder: str) -> None:
    """Name a folder with the same rows as Parquet, to be pinned where they lie."""
    (bench.folder / folder).mkdir(parents=True)
    command = [TABULAR, "-c", PARQUET, bench.source, bench.folder / folder]
    subprocess.run(command, check=True)
    bench.data.update(source=folder, mode="reference")


def pinned_again(bench: Bench) -> None:
    pinned(bench, "pinned")
    bench.run()
    for path in (bench.folder / "pinned").iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))


def pinned_and_copied(bench: Bench) -> None:
    pinned(bench, "elsewhere/first")
    bench.run()
    shutil.copytree(bench.folder / "elsewhere/first", bench.folder / "elsewhere/second")
    shutil.rmtree(bench.folder / "elsewhere/first")
    bench.data["source"] = "elsewhere/second"


def pinned_and_changed(bench: Bench) -> None:
    pinned(bench, "elsewhere/third")
    bench.run()
    edit(bench.source / "2013-01.csv", ",0,", ",1,")
    pinned(bench, "elsewhere/third/next")
    for path in (bench.folder / "elsewhere/third/next").iterdir():
        path.replace(bench.folder / "elsewhere/third" / path.name)
    bench.data["source"] = "elsewhere/third"


def asked(change: str) -> Callable[[Bench], None]:
    """Read the rows of a database, then change it with a statement."""

    def make(bench: Bench) -> None:
        (bench.folder / "elsewhere").mkdir()
        path = bench.folder / "elsewhere" / "rows.db"
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("create table flights (id integer, at text, late integer, x integer)")
            database.execute("create table other (x integer)")
            rows = [tuple(row.values()) for month in MONTHS for row in rows_of(month)]
            database.executemany("insert into flights values (?, ?, ?, ?)", rows)
            database.commit()
            bench.data.update(
                source="sqlite:///elsewhere/rows.db",
                format="sql",
                sql={"select": "select id, at, late, x from flights", "tables": ["flights"]},
                types={"at": "timestamp[us]"},
            )
            bench.run()
            database.executescript(change)

    return make


def lock(toolchain: str) -> Callable[[Bench], None]:
    return lambda bench: bench.machine.other.update({toolchain: "another lock"})


def changed_and_changed_back(bench: Bench) -> None:
    edit(bench.source / "2013-01.csv", ",1,", ",0,")
    bench.run()
    shutil.rmtree(bench.source)
    write(bench.source)
