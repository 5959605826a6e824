"""The part of the report about distances: how far each column moved, and what it looked like before."""

from collections.abc import Iterator, Sequence

from trainwright.report import charts
from trainwright.report.page import Block, Figure, Section, Table, Text
from trainwright.validate.comparison import Comparison
from trainwright.validate.distribution import Pair, distribution
from trainwright.validate.findings import Against
from trainwright.validate.judgement import Judgement
from trainwright.validate.statistics import by_column

_BARS = 25
_DISTRIBUTIONS = 6
_CATEGORIES = 12
_NOISY = 8
_ROWS = 400

_LONG: dict[Against, str] = {
    "previous": "the previous span",
    "baseline": "what the model in production learned from",
    "serving": "rows as they were served",
}


def left(count: int, shown: int) -> str:
    """Say how much of a list is shown; empty if all of it is."""
    return f" The first {shown} of {count} are shown." if count > shown else ""


def distances(judgement: Judgement) -> Iterator[Section]:
    """Draw the distances, a section for each thing that was compared with."""
    for against, pair in judgement.pairs.items():
        ranked = [x for x in judgement.ranked if x.against == against and x.is_distance]
        blocks: list[Block] = [Text(line) for line in _in_words(ranked, pair)]
        if ranked:
            rows = [charts.LimitRow(entry.name, entry.value, entry.effective) for entry in ranked[:_BARS]]
            caption = "A bar is the distance in that column; the dashed line is the limit that was applied."
            blocks.append(Figure(charts.limits(rows, axis="distance, as a share of its limit"), caption))
        name = "How far each column moved" if against == "previous" else f"Against {_LONG[against]}"
        intro = f"{pair.current.split} against {pair.reference.split}, {_LONG[against]}."
        yield Section(name, blocks, intro=intro + left(len(ranked), _BARS))


def _in_words(entries: Sequence[Comparison], pair: Pair) -> Iterator[str]:
    for entry in [entry for entry in entries if entry.moved][:_DISTRIBUTIONS]:
        shares = distribution(entry.column, pair).shares()
        name, now, before = max(shares, key=lambda item: (round(abs(item[1] - item[2]), 9), -item[2]))
        name = f"value {name}" if name.lstrip("-").isdecimal() else name
        value, limit = entry.written(4)
        if entry.floor > entry.limit:
            limit = f"{entry.limit:g}, applied {limit}"
        yield (
            f"{entry.column} moved by {value} ({entry.measure}), limit {limit}. "
            f"The largest change is at {name}: {now:.1%} of rows, {before:.1%} before."
        )
    if noisy := [entry for entry in entries if entry.limit < entry.value <= entry.floor]:
        names = ", ".join(
            f"{x.name} ({x.value:.4f}, limit {x.limit:g}, chance {x.floor:.4f})" for x in noisy[:_NOISY]
        )
        rest = f", and {len(noisy) - _NOISY} more" if len(noisy) > _NOISY else ""
        yield f"Above the configured limit, but no further than chance alone at so few rows: {names}{rest}."


def pictures(judgement: Judgement) -> Section:
    """Draw both distributions of the columns closest to their limits over each other, each column once."""
    seen: dict[str, Comparison] = {}
    for entry in judgement.ranked:
        if entry.is_distance:
            seen.setdefault(entry.column, entry)
    drawn = list(seen.values())[:_DISTRIBUTIONS]
    return Section(
        "Closest to their limits",
        [_figure(entry, judgement.pairs[entry.against]) for entry in drawn],
        intro="What is judged is filled, what it is compared with is the outline. The bins of a number are "
        "the twentieths of the outline, so they differ in width.",
    )


def _figure(entry: Comparison, pair: Pair) -> Figure:
    names = (pair.current.split, pair.reference.split)
    rows = distribution(entry.column, pair).drawn(_CATEGORIES)
    value, limit = entry.written(4)
    against = "" if entry.against == "previous" else f" against {entry.against}"
    caption = f"{entry.column}{against}: {entry.measure} {value} {'>' if entry.moved else 'of'} {limit}."
    if not rows.bounds:
        return Figure(charts.paired_bars(rows.values, rows.current, rows.previous, names=names), caption)
    features = (by_column(profile.statistics)[entry.column] for profile in (pair.current, pair.reference))
    mean, before = (feature.num_stats.mean for feature in features)
    svg = charts.paired_histogram(rows.bounds, rows.current, rows.previous, names=names)
    return Figure(svg, f"{caption} Mean {mean:.3g}, before {before:.3g}.")


def shares(judgement: Judgement) -> Iterator[Section]:
    """Draw the columns in which the share of rows without a value, or with a new one, is not what it was."""
    for measure, heading, what in (
        ("missing share", "Rows without a value", "how much the share of rows without a value changed"),
        ("new values", "Values never seen before", "the share of rows whose value was never there before"),
    ):
        entries = [entry for entry in judgement.ranked if entry.measure == measure and entry.value]
        rows = [
            charts.LimitRow(f"{x.column}{_beside(x.against)}", x.value, x.effective) for x in entries[:_BARS]
        ]
        if rows:
            caption = f"A bar is {what}; the dashed line is the limit that was applied."
            figure = Figure(charts.limits(rows, axis="as a share of its limit"), caption)
            yield Section(heading, [figure], intro=left(len(entries), _BARS).strip())


def _beside(against: Against) -> str:
    return "" if against == "previous" else f" ({against})"


def all_comparisons(judgement: Judgement) -> Section:
    """List every comparison with both limits and both numbers of rows, and the columns that had none."""
    rows = [
        (
            entry.column, entry.measure, entry.against, f"{entry.value:.4f}", f"{entry.limit:g}",
            f"{entry.effective:.4f}", f"{entry.rows[0]:,}", f"{entry.rows[1]:,}",
        )
        for entry in judgement.ranked[:_ROWS]
    ]  # fmt: skip
    flagged = [place for place, entry in enumerate(judgement.ranked[:_ROWS]) if entry.moved]
    header = ["Column", "Measure", "Against", "Distance", "Limit", "Applied", "Rows", "Rows there"]
    table = Table(header, rows, numeric=(3, 4, 5, 6, 7), flagged=flagged)
    out = [(column.name, _left_out(column.name, judgement)) for column in judgement.snapshot.columns]
    out = [(name, why) for name, why in out if why]
    blocks: list[Block] = [table] if rows else []
    return Section(
        "All comparisons",
        [*blocks, *([Table(["Not compared", "Because"], out)] if out else [])],
        intro="Applied is the larger of the limit and of what chance alone stays below: at these numbers of "
        f"rows, and with {len(judgement.comparisons)} comparisons that together may raise a false alarm in "
        f"{judgement.validation.false_alarm_rate:.2%} of runs." + left(len(judgement.ranked), _ROWS),
    )


def _left_out(column: str, judgement: Judgement) -> str:
    if any(limit.column == column for limit in judgement.limits):
        return ""
    roles = {name: role for role, name in judgement.snapshot.roles.items() if role in ("key", "time")}
    if column in roles:
        return f"it is the {roles[column]}"
    return "it is ignored" if column in judgement.validation.ignore else "it is not in the schema"
