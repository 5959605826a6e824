"""Quality limits of a snapshot, judged together, and the summary page that shows them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwright import storage
from trainwright.artifacts import Listing, Snapshot, SnapshotFile
from trainwright.documents import read_json
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.ingest.reports import ColumnFigures, Totals
from trainwright.ingest.splits import window_of, written
from trainwright.report.markdown import escape, table
from trainwright.storage import Access

_MICRO = 1_000_000


@dataclass(frozen=True, kw_only=True)
class LimitResult:
    """One limit, the figure beside it, and whether it holds.

    Attributes:
        refusal: Why it does not hold; None if it does.
    """

    name: str
    figure: str
    limit: str
    refusal: DataRefused | None = None


def judge_size(listing: Listing, data: Data) -> list[LimitResult]:
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
        LimitResult(
            name="bytes of the source",
            figure=f"{size:,}",
            limit=f"at most {most:,}",
            refusal=refusal if size > most else None,
        )
    ]


def judge(totals: Totals, data: Data, source: str, previous: Snapshot | None) -> list[LimitResult]:
    """Judge what was counted."""
    if not totals.all_rows:
        empty = DataRefused(f"0 rows in {source}", where="data.source")
        return [LimitResult(name="rows", figure="0", limit="at least 1", refusal=empty)]
    found = [*_splits(totals, data, source), *_missing(totals, data)]
    return found if previous is None else [*found, *_volume(totals.all_rows, previous.rows, data)]


def _splits(totals: Totals, data: Data, source: str) -> Iterator[LimitResult]:
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
        yield LimitResult(name=f"rows in split {name}", figure=f"{rows:,}", limit=limit, refusal=refusal)


def _missing(totals: Totals, data: Data) -> Iterator[LimitResult]:
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
        yield LimitResult(
            name=f"missing in {name}", figure=f"{share:.2%}", limit=f"at most {most:.2%}", refusal=refusal
        )


def _volume(rows: int, before: int, data: Data) -> Iterator[LimitResult]:
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
        yield LimitResult(name=name, figure=f"{ratio:.3g}", limit=limit, refusal=None if holds else refusal)


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


def reject(judged: Sequence[LimitResult]) -> None:
    """Reject the snapshot if any limit does not hold; name all that do not.

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


_COMMON = 3
"""Frequent texts that are shown of a column."""

_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class SummaryPage:
    """The Markdown summary of the step.

    Attributes:
        totals: What was counted; None if nothing was read.
        types: Arrow types by column, in order.
        digest: The data version; empty if the snapshot was refused.
    """

    source: str
    judged: Sequence[LimitResult]
    totals: Totals | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""

    def write(self, path: Path) -> None:
        """Write the page as Markdown."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self._parts()))

    def _parts(self) -> Iterator[str]:
        if self.totals is None:
            yield f"**Not read**: {escape(self.source)}\n"
        else:
            yield f"**{self.totals.all_rows:,} rows, {len(self.types)} columns** from {escape(self.source)}\n"
        if self.digest:
            yield f"Data version `{self.digest}`\n"
        refused = sum(one.refusal is not None for one in self.judged)
        if refused:
            yield f"**Refused**: {refused} of {len(self.judged)} limits do not hold.\n"
        if self.totals is not None and self.totals.span is not None:
            oldest, newest = map(written, self.totals.span)
            yield f"Times from {oldest} to {newest}\n"
            yield table(
                ("split", "rows", "with label", "positive"), list(_split_rows(self.totals)), (1, 2, 3)
            )
        if self.judged:
            yield table(("limit", "found", "allowed", "holds"), [_limit(one) for one in self.judged], (1, 2))
        if self.totals is not None:
            yield table(_HEADER, list(self._columns(self.totals)), (2, 3, 4, 5, 6))

    def _columns(self, totals: Totals) -> Iterator[tuple[str, ...]]:
        role_of = {name: role for role, name in self.roles.items()}
        for name, kind in self.types.items():
            figures = totals.columns.get(name, ColumnFigures(nulls=-1))
            shown = f"{name} ({role_of[name]})" if name in role_of else name
            missing = _missing_share(figures, totals.all_rows)
            yield shown, kind, missing, *_numbers(figures), _frequent(figures)


_HEADER = ("column", "type", "missing", "least", "mean", "largest", "deviation", "most frequent")


def _limit(one: LimitResult) -> tuple[str, str, str, str]:
    return one.name, one.figure, one.limit, "yes" if one.refusal is None else "no"


def _split_rows(totals: Totals) -> Iterator[tuple[str, str, str, str]]:
    for split, rows in totals.rows.items():
        labels, positives = totals.labels[split], totals.positives[split]
        if rows:
            yield split, f"{rows:,}", f"{labels:,}", f"{positives / labels:.1%}" if labels else "-"


def _missing_share(figures: ColumnFigures, rows: int) -> str:
    if figures.nulls < 0:
        return "not counted"
    count = figures.nulls + figures.nans
    return f"{count:,} ({count / rows:.1%})" if count else "0"


def _numbers(figures: ColumnFigures) -> tuple[str, str, str, str]:
    if not figures.count:
        return "", "", "", ""
    values = (figures.least, figures.mean, figures.most, figures.deviation)
    least, mean, most, deviation = (f"{value:.{_DIGITS}g}" for value in values)
    return least, mean, most, deviation


def _frequent(figures: ColumnFigures) -> str:
    """Name the most frequent texts with their share; texts that are all different say so."""
    if not figures.top:
        return ""
    if max(figures.top.values()) == 1:
        return "all different" if figures.sampled > 1 else ""
    shown = list(figures.top.items())[:_COMMON]
    return ", ".join(f"{text!r} {count / figures.sampled:.1%}" for text, count in shown)
