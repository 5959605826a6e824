"""The step's page: whether the rows reach their limits, rows by split, and what the columns hold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwright.ingest.figures import Figures
from trainwright.ingest.quality import Judged
from trainwright.ingest.reports import Totals
from trainwright.ingest.splits import written
from trainwright.report.markdown import escape, table

_COMMON = 3
"""Frequent texts that are shown of a column."""

_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page says.

    Attributes:
        source: What was read.
        judged: The limits.
        totals: What was counted; None if nothing was read.
        types: Arrow types by column, in order.
        roles: Columns by role.
        digest: The data version; empty if the snapshot was refused.
    """

    source: str
    judged: Sequence[Judged]
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
            yield table(("split", "rows", "with label", "positive"), list(_splits(self.totals)), (1, 2, 3))
        if self.judged:
            yield table(("limit", "found", "allowed", "holds"), [_limit(one) for one in self.judged], (1, 2))
        if self.totals is not None:
            yield table(_HEADER, list(self._columns(self.totals)), (2, 3, 4, 5, 6))

    def _columns(self, totals: Totals) -> Iterator[tuple[str, ...]]:
        role_of = {name: role for role, name in self.roles.items()}
        for name, kind in self.types.items():
            figures = totals.columns.get(name, Figures(nulls=-1))
            shown = f"{name} ({role_of[name]})" if name in role_of else name
            yield shown, kind, _missing(figures, totals.all_rows), *_numbers(figures), _frequent(figures)


_HEADER = ("column", "type", "missing", "least", "mean", "largest", "deviation", "most frequent")


def _limit(one: Judged) -> tuple[str, str, str, str]:
    return one.name, one.figure, one.limit, "yes" if one.refusal is None else "no"


def _splits(totals: Totals) -> Iterator[tuple[str, str, str, str]]:
    for split, rows in totals.rows.items():
        labels, positives = totals.labels[split], totals.positives[split]
        if rows:
            yield split, f"{rows:,}", f"{labels:,}", f"{positives / labels:.1%}" if labels else "-"


def _missing(figures: Figures, rows: int) -> str:
    if figures.nulls < 0:
        return "not counted"
    count = figures.nulls + figures.nans
    return f"{count:,} ({count / rows:.1%})" if count else "0"


def _numbers(figures: Figures) -> tuple[str, str, str, str]:
    if not figures.count:
        return "", "", "", ""
    values = (figures.least, figures.mean, figures.most, figures.deviation)
    least, mean, most, deviation = (f"{value:.{_DIGITS}g}" for value in values)
    return least, mean, most, deviation


def _frequent(figures: Figures) -> str:
    """Name the most frequent texts with their share; texts that are all different say so."""
    if not figures.top:
        return ""
    if max(figures.top.values()) == 1:
        return "all different" if figures.sampled > 1 else ""
    shown = list(figures.top.items())[:_COMMON]
    return ", ".join(f"{text!r} {count / figures.sampled:.1%}" for text, count in shown)
