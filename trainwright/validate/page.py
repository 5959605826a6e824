"""The report of a validation: what moved, how far, against what limit, and what could not be told."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from trainwright.report import charts
from trainwright.report.page import Block, Figure, Page, Section, Table, Text, write_page
from trainwright.validate.distribution import distribution
from trainwright.validate.drift import MISSING, Comparison
from trainwright.validate.judgement import Judgement
from trainwright.validate.limits import MEASURES
from trainwright.validate.profile import Profile
from trainwright.validate.statistics import by_column

_BARS = 25
_DISTRIBUTIONS = 6
_CATEGORIES = 12
_ROWS = 40


def write_report(judgement: Judgement, path: Path, *, schema_digest: str) -> Path:
    """Draw the page.

    Args:
        judgement: What was found.
        path: File to write.
        schema_digest: SHA-256 of the schema's text.
    """
    asked = judgement.validation
    subtitle = judgement.headline.removeprefix(f"{judgement.decision}: ")
    page = Page(
        title=f"Validation of {asked.current} against {asked.previous}",
        subtitle=f"{subtitle[:1].upper()}{subtitle[1:]}.",
        decision=judgement.decision,
        facts=list(_facts(judgement, schema_digest)),
        sections=[section for section in _sections(judgement) if section.blocks],
    )
    return write_page(page, path)


def _facts(judgement: Judgement, schema_digest: str) -> Iterator[tuple[str, object]]:
    for split in (judgement.validation.current, judgement.validation.previous):
        yield f"Rows of {split}", f"{judgement.snapshot.splits.get(split, 0):,}"
        if span := _span(judgement, split):
            yield f"Span of {split}", span
    yield "Columns moved", f"{len(judgement.moved_columns)} of {len(judgement.limits)}"
    yield "Not judged", f"{len(judgement.not_judged)}"
    yield "Schema anomalies", f"{len(judgement.anomalies)}"
    yield "Data and schema", f"{judgement.snapshot.digest[:8]}, {schema_digest[:8]}"


def _span(judgement: Judgement, split: str) -> str:
    """Return the first and the last day of a split, if its time column holds timestamps."""
    time = judgement.snapshot.roles.get("time", "")
    kinds = {column.name: column.type for column in judgement.snapshot.columns}
    profile = judgement.profiles.get(split)
    if profile is None or not kinds.get(time, "").startswith("timestamp"):
        return ""
    numbers = by_column(profile.statistics)[time].num_stats
    first, last = (datetime.fromtimestamp(end, UTC) for end in (numbers.min, numbers.max))
    start = f"{first.day} {first:%b}" if first.year == last.year else f"{first.day} {first:%b %Y}"
    return f"{start} to {last.day} {last:%b %Y}"


def _sections(judgement: Judgement) -> Iterator[Section]:
    if judgement.anomalies:
        yield _against_schema(judgement)
    yield _distances(judgement)
    yield _distributions(judgement)
    yield _not_judged(judgement)
    yield _missing(judgement)
    if not judgement.anomalies:
        yield _against_schema(judgement)
    yield _all_columns(judgement)


def _against_schema(judgement: Judgement) -> Section:
    if not judgement.anomalies:
        splits = " and ".join(judgement.profiles)
        text = f"Every column of {splits} is what the reviewed schema says."
        return Section("Against the schema", [Text(text)] if splits else [])
    rows = [(x.severity, x.what, x.split or "all") for x in judgement.anomalies[:_ROWS]]
    flagged = [place for place, row in enumerate(rows) if row[0] != "WARN"]
    return Section(
        "Against the schema",
        [Table(["Severity", "What", "Split"], rows, flagged=flagged)],
        intro="BLOCK refuses the snapshot, HOLD asks a person, WARN is only told."
        + _left(len(judgement.anomalies), _ROWS),
    )


def _left(count: int, shown: int) -> str:
    return f" The first {shown} of {count} are shown." if count > shown else ""


def _distances(judgement: Judgement) -> Section:
    ranked = [entry for entry in judgement.ranked if entry.measure != MISSING]
    blocks: list[Block] = [Text(line) for line in _in_words(judgement, ranked)]
    if ranked:
        rows = [charts.LimitRow(entry.name, entry.value, entry.effective) for entry in ranked[:_BARS]]
        caption = "A bar is the distance between the two splits in that column; the dashed line is its limit."
        blocks.append(Figure(charts.limits(rows, axis="distance, as a share of its limit"), caption))
    return Section("How far each column moved", blocks, intro=_left(len(ranked), _BARS).strip())


def _in_words(judgement: Judgement, entries: Sequence[Comparison]) -> Iterator[str]:
    current, previous = judgement.current, judgement.previous
    if current is None or previous is None:
        return
    for entry in [entry for entry in entries if entry.moved][:_DISTRIBUTIONS]:
        shares = distribution(entry.column, current, previous).shares()
        name, now, before = max(shares, key=lambda item: (round(abs(item[1] - item[2]), 9), -item[2]))
        name = f"value {name}" if name.lstrip("-").isdecimal() else name
        value, limit = entry.written(4)
        yield (
            f"{entry.column} moved by {value} ({entry.measure}), limit {limit}. "
            f"The largest change is at {name}: {now:.1%} of rows, {before:.1%} before."
        )
    if noisy := [entry for entry in entries if entry.limit < entry.value <= entry.floor]:
        names = ", ".join(
            f"{x.name} ({x.value:.4f}, limit {x.limit:g}, chance {x.floor:.4f})" for x in noisy[:_ROWS]
        )
        yield f"Above the configured limit, but no further than chance alone at so few rows: {names}."


def _distributions(judgement: Judgement) -> Section:
    current, previous = judgement.current, judgement.previous
    ranked = [entry for entry in judgement.ranked if entry.measure != MISSING]
    if current is None or previous is None:
        return Section("Closest to their limits", [])
    return Section(
        "Closest to their limits",
        [_figure(entry, current, previous) for entry in ranked[:_DISTRIBUTIONS]],
        intro=f"{current.split} is filled, {previous.split} is the outline. The bins of a number are the "
        f"twentieths of {previous.split}, so they differ in width.",
    )


def _figure(entry: Comparison, current: Profile, previous: Profile) -> Figure:
    names = (current.split, previous.split)
    rows = distribution(entry.column, current, previous).drawn(_CATEGORIES)
    value, limit = entry.written(4)
    caption = f"{entry.column}: {entry.measure} {value} {'>' if entry.moved else 'of'} {limit}."
    if not rows.bounds:
        return Figure(charts.paired_bars(rows.values, rows.current, rows.previous, names=names), caption)
    mean, before = (by_column(x.statistics)[entry.column].num_stats.mean for x in (current, previous))
    svg = charts.paired_histogram(rows.bounds, rows.current, rows.previous, names=names)
    return Figure(svg, f"{caption} Mean {mean:.3g}, before {before:.3g}.")


def _not_judged(judgement: Judgement) -> Section:
    rows = [(reason, ", ".join(names)) for reason, names in judgement.unjudged.items()]
    table: list[Block] = [Table(["Why", "Columns"], rows, flagged=range(len(rows)))] if rows else []
    intro = "Not compared is not passed: it holds the snapshot."
    return Section("What could not be compared", table, intro=intro)


def _missing(judgement: Judgement) -> Section:
    """Draw the columns whose share of rows without a value changed."""
    entries = [entry for entry in judgement.ranked if entry.measure == MISSING and entry.value]
    if not entries:
        return Section("Rows without a value", [])
    rows = [charts.LimitRow(entry.column, entry.value, entry.effective) for entry in entries[:_BARS]]
    caption = "A bar is how much the share of rows without a value changed; the dashed line is the limit."
    return Section(
        "Rows without a value",
        [Figure(charts.limits(rows, axis="change, as a share of its limit"), caption)],
        intro="No distance counts rows without a value, so their share is compared on its own."
        + _left(len(entries), _BARS),
    )


def _all_columns(judgement: Judgement) -> Section:
    order = {entry.column: place for place, entry in reversed(list(enumerate(judgement.ranked)))}
    columns = sorted(
        (column.name for column in judgement.snapshot.columns),
        key=lambda name: order.get(name, len(order) * 2),
    )
    rows = [_row(name, judgement) for name in columns]
    flagged = [place for place, name in enumerate(columns) if name in judgement.moved_columns]
    header = ["Column", "Measure", "Distance", "Limit", "Chance", "Missing", "Before"]
    return Section(
        "All columns",
        [Table(header, rows, numeric=(2, 3, 4, 5, 6), flagged=flagged)],
        intro="Chance is what a distance stays below when nothing has moved, at these numbers of rows: the "
        "larger of it and the limit is applied. Missing is the share of rows without a value.",
    )


def _row(column: str, judgement: Judgement) -> tuple[str, ...]:
    limit = next((limit for limit in judgement.limits if limit.column == column), None)
    entries = (x for x in judgement.comparisons if x.column == column and x.measure != MISSING)
    entry = next(entries, None)
    return (
        column,
        MEASURES[limit.comparator] if limit else _left_out(column, judgement),
        f"{entry.value:.4f}" if entry else "",
        f"{entry.limit:g}" if entry else "",
        f"{entry.floor:.4f}" if entry else "",
        _missing_share(column, judgement.current),
        _missing_share(column, judgement.previous),
    )


def _missing_share(column: str, profile: Profile | None) -> str:
    if profile is None:
        return ""
    missing = profile.missing(column)
    return f"{missing / profile.rows:.2%}" if missing else "0"


def _left_out(column: str, judgement: Judgement) -> str:
    roles = {name: role for role, name in judgement.snapshot.roles.items() if role in ("key", "time")}
    if column in roles:
        return f"the {roles[column]}"
    return "ignored" if column in judgement.validation.ignore else "not in the schema"
