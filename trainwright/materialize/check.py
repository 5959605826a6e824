"""The check afterwards: what the online store gives, by Feast's own reader, is what the files say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.rows import microseconds
from trainwright.materialize.values import NULL_TIME, feast_values
from trainwright.materialize.window import Window

ASKED = 200
"""Keys asked for at a time."""

_US = 1_000_000


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        keys: Keys that were compared.
        newer: Keys of them for which the store has a row from after the window, which is right to stay.
        wrong: Keys whose row is missing, older, or of other values.
        example: One of those, and what is wrong with it.
    """

    keys: int
    newer: int
    wrong: int
    example: str


def check(online: Online, view: OnlineView, rows: pa.Table, window: Window) -> Checked:
    """Compare the newest rows of some keys with what ``get_online_features`` gives for them.

    Args:
        online: The repository.
        view: The view.
        rows: The newest row of each key in the window.
        window: The window. A row from after it in the store may stay.

    Raises:
        DependencyError: Feast could not read from its store.
    """
    newer = wrong = 0
    example = ""
    for first in range(0, rows.num_rows, ASKED):
        piece = rows.slice(first, ASKED).combine_chunks()
        expected = _expected(view, piece)
        times = microseconds(piece[view.time].combine_chunks()).to_pylist()
        found = stored(online, view, piece, list(view.features))
        for place, (values, seconds) in enumerate(found):
            if seconds is not None and seconds * _US >= window.end_us:
                newer += 1
                continue
            wanted = {name: column[place] for name, column in expected.items()}
            problem = _difference(wanted, times[place] // _US, values, seconds)
            if problem:
                wrong += 1
                example = example or f"{_key(view, piece, place)}: {problem}"
    return Checked(rows.num_rows, newer, wrong, example)


def require_equal(checked: Checked, view: OnlineView, store: str) -> None:
    """Refuse a store that does not hold what it was given.

    Raises:
        DependencyError: A key was wrong.
    """
    if not checked.wrong:
        return
    raise DependencyError(
        f"{checked.wrong:,} of {checked.keys:,} compared keys of view {view.name!r} are not in the online "
        f"store as in the files, such as {checked.example}",
        where=f"the online store ({store})",
        hint="The watermark stays where it was: run again, and look at who else writes to the store.",
    )


def _difference(
    wanted: Mapping[str, bytes], wanted_at: int, values: Mapping[str, bytes], at: int | None
) -> str:
    if at is None:
        return "it is not there"
    if at != wanted_at:
        return f"the store's row is of {_time(at)}, the files' of {_time(wanted_at)}"
    unlike = [name for name, value in wanted.items() if values.get(name) != value]
    return f"{', '.join(unlike)} differ" if unlike else ""


def _expected(view: OnlineView, rows: pa.Table) -> dict[str, list[bytes]]:
    """Convert the files' values by Feast's own converter: another road than the one they were written by."""
    return {
        name: [_plain(value) for value in feast_values(kind, _one(rows[name]))]
        for name, kind in view.features.items()
    }


def stored(
    online: Online, view: OnlineView, rows: pa.Table, names: Sequence[str]
) -> list[tuple[dict[str, bytes], int | None]]:
    """Ask Feast for some keys.

    Args:
        online: The repository.
        view: The view.
        rows: Have the keys, by their names in the view.
        names: The features that are asked for, at least one.

    Returns:
        Each key's values, and its row's time in seconds, None where there is no row.

    Raises:
        DependencyError: Feast could not read from its store.
    """
    asked = rows.select(list(view.keys)).to_pylist()
    try:
        response = online.feast.get_online_features(
            features=[f"{view.name}:{name}" for name in names], entity_rows=asked
        ).proto
    except Exception as error:
        what = f"Feast could not read view {view.name!r}: {type(error).__name__}: {error}"
        raise DependencyError(what, where=f"the online store ({online.store})") from error
    columns = dict(zip(response.metadata.feature_names.val, response.results, strict=True))
    return [_row({name: columns[name] for name in names}, place) for place in range(len(asked))]


def _row(columns: Mapping[str, Any], place: int) -> tuple[dict[str, bytes], int | None]:
    values = {name: _plain(column.values[place]) for name, column in columns.items()}
    times = [column.event_timestamps[place] for column in columns.values()]
    known = [time.seconds for time in times if time.seconds or time.nanos]
    return values, max(known) if known else None


def _plain(value: Any) -> bytes:
    """Write a value so that equal ones are equal bytes; Feast knows two nulls for a time."""
    if value.WhichOneof("val") == "unix_timestamp_val" and value.unix_timestamp_val == NULL_TIME:
        return b""
    return bytes(value.SerializeToString(deterministic=True))


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def _key(view: OnlineView, rows: pa.Table, place: int) -> str:
    return ", ".join(f"{name}={rows[name][place].as_py()!r}" for name in view.keys)


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
