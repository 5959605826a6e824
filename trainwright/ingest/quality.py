"""What the rows must reach, judged all at once, and what the manifest says of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainwright import storage
from trainwright.artifacts import Listing, Snapshot, SnapshotFile
from trainwright.documents import read_json
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.ingest.reports import Totals
from trainwright.ingest.splits import window_of, written
from trainwright.storage import Access

_MICRO = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One limit, the figure beside it, and whether it holds.

    Attributes:
        name: What is limited, such as ``rows in split train``.
        figure: What was found, written for people.
        limit: What is allowed.
        refusal: Why it does not hold; None if it does.
    """

    name: str
    figure: str
    limit: str
    refusal: DataRefused | None = None


def judge_size(listing: Listing, data: Data) -> list[Judged]:
    """Judge what the listing alone says: before anything is read."""
    most, size = data.quality.max_bytes, sum(entry.size for entry in listing.files)
    if most is None:
        return []
    refusal = DataRefused(
        f"the source has {size:,} bytes in {len(listing.files):,} files; max_bytes is {most:,}",
        where="data.quality.max_bytes",
        hint="Name fewer files, or raise the limit.",
    )
    return [
        Judged(
            name="bytes of the source",
            figure=f"{size:,}",
            limit=f"at most {most:,}",
            refusal=refusal if size > most else None,
        )
    ]


def judge(totals: Totals, data: Data, source: str, previous: Snapshot | None) -> list[Judged]:
    """Judge what was counted.

    Args:
        totals: Of all shards.
        data: The limits.
        source: What was read.
        previous: The earlier snapshot to compare with, if one is named.
    """
    if not totals.all_rows:
        empty = DataRefused(f"0 rows in {source}", where="data.source")
        return [Judged(name="rows", figure="0", limit="at least 1", refusal=empty)]
    found = [*_splits(totals, data, source), *_missing(totals, data)]
    return found if previous is None else [*found, *_volume(totals.all_rows, previous.rows, data)]


def _splits(totals: Totals, data: Data, source: str) -> Iterator[Judged]:
    assert totals.span is not None  # noqa: S101 - there are rows
    first, last = map(written, totals.span)
    for name in data.splits:
        rows, refusal = totals.rows[name], None
        if rows < data.min_rows:
            window = f", the window is {window_of(data.windows[name])}" if data.windows else ""
            refusal = DataRefused(
                f"{rows:,} rows in split {name!r} of {source}; min_rows is {data.min_rows:,}{window}",
                where="data.splits",
                hint=f"The rows go from {first} to {last}: move the windows, or wait for more rows."
                if data.windows
                else "Make the share larger, or wait for more rows.",
            )
        limit = f"at least {data.min_rows:,}"
        yield Judged(name=f"rows in split {name}", figure=f"{rows:,}", limit=limit, refusal=refusal)


def _missing(totals: Totals, data: Data) -> Iterator[Judged]:
    for name, most in sorted(data.quality.max_missing.items()):
        figures = totals.columns[name]
        count = figures.nulls + figures.nans
        share, refusal = count / totals.all_rows, None
        if share > most:
            refusal = DataRefused(
                f"column {name!r} has no value in {count:,} of {totals.all_rows:,} rows, {share:.2%}; "
                f"max_missing is {most:.2%}",
                where="data.quality.max_missing",
                hint="See what was lost upstream, or raise the limit.",
            )
        yield Judged(
            name=f"missing in {name}", figure=f"{share:.2%}", limit=f"at most {most:.2%}", refusal=refusal
        )


def _volume(rows: int, before: int, data: Data) -> Iterator[Judged]:
    least, most = data.quality.min_volume, data.quality.max_volume
    if least is None and most is None:
        return
    ratio = rows / before if before else math.inf
    limits = [
        *([] if least is None else [(f"at least {least:g}", ratio >= least)]),
        *([] if most is None else [(f"at most {most:g}", ratio <= most)]),
    ]
    for limit, holds in limits:
        refusal = DataRefused(
            f"{rows:,} rows against {before:,} in the previous snapshot, {ratio:.3g} times as many; "
            f"allowed is {limit}",
            where="data.quality.previous",
            hint="See whether files are missing or doubled, or move the limit.",
        )
        name = "rows, as a multiple of the previous"
        yield Judged(name=name, figure=f"{ratio:.3g}", limit=limit, refusal=None if holds else refusal)


def read_previous(data: Data, access: Access) -> Snapshot | None:
    """Read the manifest of the earlier snapshot, if one is named.

    Raises:
        InputError: It is not there, or is no manifest.
    """
    named = data.quality.previous
    if named is None:
        return None
    uri = named if named.endswith(".json") else storage.join(named, Snapshot.FILE)
    try:
        content = read_json(storage.read_bytes(uri, access=access))
    except InputError as error:
        raise InputError(
            f"the previous snapshot cannot be read: {error.what}",
            where=uri,
            hint="Name its folder, its URI or its manifest in data.quality.previous, or leave it out.",
        ) from None
    return Snapshot.from_json(content, uri)


def refuse(judged: Sequence[Judged]) -> None:
    """Refuse the snapshot if any limit does not hold; all that do not are named at once.

    Raises:
        DataRefused: One does not.
    """
    refusals = [one.refusal for one in judged if one.refusal is not None]
    if refusals:
        raise DataRefused(
            "\n".join(refusal.what for refusal in refusals),
            where=", ".join(dict.fromkeys(refusal.where for refusal in refusals if refusal.where)),
            hint=" ".join(dict.fromkeys(refusal.hint for refusal in refusals if refusal.hint)),
        )


def figures_of(totals: Totals, files: Sequence[SnapshotFile]) -> dict[str, float]:
    """Return what the manifest says of the rows, by name."""
    found: dict[str, float] = {"bytes": float(sum(entry.size for entry in files))}
    by_split: Mapping[str, Mapping[str, int]] = {
        "rows": totals.rows,
        "labels": totals.labels,
        "positives": totals.positives,
    }
    for figure, counts in by_split.items():
        found |= {f"{figure}.{split}": float(count) for split, count in counts.items() if totals.rows[split]}
    if totals.span is not None:
        oldest, newest = totals.span
        found |= {"time.oldest": oldest / _MICRO, "time.newest": newest / _MICRO}
    for name, figures in totals.columns.items():
        if figures.nulls >= 0:
            found[f"nulls.{name}"] = float(figures.nulls)
        if figures.nans:
            found[f"nans.{name}"] = float(figures.nans)
        if figures.count:
            found |= {
                f"min.{name}": figures.least,
                f"max.{name}": figures.most,
                f"mean.{name}": figures.mean,
                f"std.{name}": figures.deviation,
            }
    return found
