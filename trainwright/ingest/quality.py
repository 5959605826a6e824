"""Quality limits of a snapshot, judged together, and the summary page with them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright import storage
from trainwright.artifacts import Listing, Snapshot, SnapshotFile, SnapshotTarget
from trainwright.documents import read_json
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.ingest.reports import Totals
from trainwright.ingest.splits import window_of, written
from trainwright.report.markdown import escape, table
from trainwright.storage import Access

_MICRO = 1_000_000


@dataclass(frozen=True, kw_only=True)
class LimitResult:
    """One limit, the figure beside it, and why it does not hold; None if it does."""

    name: str
    figure: str
    limit: str
    refusal: DataRefused | None = None


def _judged(name: str, figure: str, limit: str, *, holds: bool, refusal: DataRefused) -> LimitResult:
    return LimitResult(name=name, figure=figure, limit=limit, refusal=None if holds else refusal)


def judge_size(listing: Listing, data: Data) -> list[LimitResult]:
    """Judge the size of the listed files, before anything is read."""
    most, size = data.quality.max_bytes, sum(entry.size for entry in listing.files)
    if most is None:
        return []
    refusal = DataRefused(
        f"the source has {size:,} bytes in {len(listing.files):,} files; max_bytes is {most:,}",
        where="data.quality.max_bytes",
        hint="Name fewer files, or raise the limit.",
    )
    name, limit = "bytes of the source", f"at most {most:,}"
    return [_judged(name, f"{size:,}", limit, holds=size <= most, refusal=refusal)]


def judge(totals: Totals, data: Data, source: str, previous: Snapshot | None) -> list[LimitResult]:
    """Judge what was counted."""
    if not totals.all_rows:
        empty = DataRefused(f"0 rows in {source}", where="data.source")
        return [LimitResult(name="rows", figure="0", limit="at least 1", refusal=empty)]
    found = [*_judge_splits(totals, data, source), *_judge_missing(totals, data)]
    return found if previous is None else [*found, *_judge_volume(totals.all_rows, previous.rows, data)]


def _judge_splits(totals: Totals, data: Data, source: str) -> Iterator[LimitResult]:
    for name in data.splits:
        rows = totals.rows[name]
        window = f", the window is {window_of(data.windows[name])}" if data.windows else ""
        hint = "Make the share larger, or wait for more rows."
        if data.windows and totals.span:
            first, last = map(written, totals.span)
            hint = f"The rows go from {first} to {last}: move the windows, or wait for more rows."
        refusal = DataRefused(
            f"{rows:,} rows in split {name!r} of {source}; min_rows is {data.min_rows:,}{window}",
            where="data.splits",
            hint=hint,
        )
        limit, holds = f"at least {data.min_rows:,}", rows >= data.min_rows
        yield _judged(f"rows in split {name}", f"{rows:,}", limit, holds=holds, refusal=refusal)


def _judge_missing(totals: Totals, data: Data) -> Iterator[LimitResult]:
    for name, most in sorted(data.quality.max_missing.items()):
        figures = totals.columns[name]
        count = figures.nulls + figures.nans
        share = count / totals.all_rows
        refusal = DataRefused(
            f"column {name!r} has no value in {count:,} of {totals.all_rows:,} rows, {share:.2%}; "
            f"max_missing is {most:.2%}",
            where="data.quality.max_missing",
            hint="See what was lost upstream, or raise the limit.",
        )
        limit = f"at most {most:.2%}"
        yield _judged(f"missing in {name}", f"{share:.2%}", limit, holds=share <= most, refusal=refusal)


def _judge_volume(rows: int, before: int, data: Data) -> Iterator[LimitResult]:
    least, most = data.quality.min_volume, data.quality.max_volume
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
        yield _judged(name, f"{ratio:.3g}", limit, holds=holds, refusal=refusal)


def read_previous(data: Data, access: Access) -> Snapshot | None:
    """Read the manifest of the earlier snapshot, if one is named."""
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


def reject(judged: Sequence[LimitResult]) -> None:
    """Reject the snapshot if any limit does not hold; name all that do not."""
    refusals = [one.refusal for one in judged if one.refusal is not None]
    if refusals:
        raise DataRefused(
            "\n".join(refusal.what for refusal in refusals),
            where=", ".join(dict.fromkeys(refusal.where for refusal in refusals if refusal.where)),
            hint=" ".join(dict.fromkeys(refusal.hint for refusal in refusals if refusal.hint)),
        )


def figures_of(totals: Totals, files: Sequence[SnapshotFile], target: SnapshotTarget) -> dict[str, float]:
    """Return what the manifest says of the rows, by name.

    A binary label has ``positives.SPLIT``, and classes with names have ``labels.SPLIT.NAME``.
    """
    found: dict[str, float] = {"bytes": float(sum(entry.size for entry in files))}
    for split, rows in totals.rows.items():
        if rows:
            counts = totals.classes[split]
            by_split = {"rows": rows}
            by_split |= {} if target.kind == "text" else {"labels": totals.labels[split]}
            by_split |= {"positives": counts[1]} if target.kind == "binary" else {}
            found |= {f"{figure}.{split}": float(count) for figure, count in by_split.items()}
            found |= {f"labels.{split}.{name}": float(counts[k]) for k, name in enumerate(target.classes)}
    if totals.span is not None:
        oldest, newest = totals.span
        found |= {"time.oldest": oldest / _MICRO, "time.newest": newest / _MICRO}
    for name, figures in totals.columns.items():
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


_HEADER = ("column", "type", "missing", "least", "mean", "largest", "deviation")


def write_summary(
    path: Path,
    source: str,
    judged: Sequence[LimitResult],
    totals: Totals | None = None,
    snapshot: Snapshot | None = None,
) -> None:
    """Write the step's Markdown page; without ``totals`` and ``snapshot``, nothing was read."""
    refused = sum(one.refusal is not None for one in judged)
    lines = [f"**Not read**: {escape(source)}\n"]
    if totals is not None and snapshot is not None:
        columns = len(snapshot.columns)
        lines = [f"**{totals.all_rows:,} rows, {columns} columns** from {escape(source)}\n"]
        if not refused:
            lines.append(f"Data version `{snapshot.digest}`\n")
    if refused:
        lines.append(f"**Refused**: {refused} of {len(judged)} limits do not hold.\n")
    if totals is not None and totals.span is not None:
        oldest, newest = map(written, totals.span)
        lines.append(f"Times from {oldest} to {newest}\n")
    if totals is not None and snapshot is not None and totals.all_rows:
        lines += _splits_tables(totals, snapshot.target)
    if judged:
        limits = [(x.name, x.figure, x.limit, "yes" if x.refusal is None else "no") for x in judged]
        lines.append(table(("limit", "found", "allowed", "holds"), limits, (1, 2)))
    if totals is not None and snapshot is not None:
        lines.append(table(_HEADER, list(_column_rows(totals, snapshot)), (2, 3, 4, 5, 6)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def _splits_tables(totals: Totals, target: SnapshotTarget) -> Iterator[str]:
    """Yield the rows of each split with figures of their label, and those of each class, as Markdown."""
    header = ("split", "rows") + (() if target.kind == "text" else ("with label",))
    header += {
        "binary": (target.classes[1] if target.classes else "positive",),
        "regression": ("least", "mean", "largest"),
    }.get(target.kind, ())
    found = {split: rows for split, rows in totals.rows.items() if rows}
    lines = []
    for split, rows in found.items():
        labels, numbers = totals.labels[split], totals.numbers[split]
        figures: tuple[str, ...] = ()
        if target.kind == "binary":
            figures = (f"{totals.classes[split][1] / labels:.1%}" if labels else "-",)
        elif target.kind == "regression":
            ends = (numbers.least, numbers.mean, numbers.most)
            figures = tuple(f"{value:.4g}" if labels else "-" for value in ends)
        lines.append((split, f"{rows:,}", f"{labels:,}", *figures)[: len(header)])
    yield table(header, lines, tuple(range(1, len(header))))
    if target.kind == "multiclass":
        counts = [
            (name, *(f"{totals.classes[split][number]:,}" for split in found))
            for number, name in enumerate(target.classes)
        ]
        yield table(("class", *found), counts, tuple(range(1, len(found) + 1)))


def _column_rows(totals: Totals, snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    role_of = {name: role for role, name in snapshot.roles.items()}
    for column in snapshot.columns:
        name, figures = column.name, totals.columns.get(column.name)
        shown = f"{name} ({role_of[name]})" if name in role_of else name
        if figures is None:  # of a column that mode reference does not read
            yield shown, column.type, "not counted", "", "", "", ""
            continue
        count = figures.nulls + figures.nans
        missing = f"{count:,} ({count / totals.all_rows:.1%})" if count else "0"
        values = (figures.least, figures.mean, figures.most, figures.deviation)
        yield shown, column.type, missing, *(f"{x:.4g}" if figures.count else "" for x in values)
