"""The report of a validation: the HTML page with its charts, and the Markdown summary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.drift.comparison import ColumnComparison, ColumnCounts, SamplePair, column_counts
from trainwright.drift.findings import Against
from trainwright.report import charts, markdown
from trainwright.report.page import Block, Figure, Paragraph, ReportPage, ReportSection, Table, write_page
from trainwright.validate.checks import class_name
from trainwright.validate.judgement import SnapshotJudgement, split_names
from trainwright.validate.profile import Profile
from trainwright.validate.schema import parse_schema
from trainwright.validate.tfdv import schema_pb2
from trainwright.verdicts import Rule

_BARS = 25
_DISTRIBUTIONS = 6
_CATEGORIES = 12
_NOISY = 8
_CHART_ROWS = 400
_LONGEST = 60

_LONG: dict[Against, str] = {
    "previous": "the previous span",
    "baseline": "what the model in production learned from",
    "serving": "rows as they were served",
}


def truncation_note(count: int, shown: int) -> str:
    """Return a note on how much of a list is shown; empty if all of it is."""
    return f" The first {shown} of {count} are shown." if count > shown else ""


def distances(judgement: SnapshotJudgement) -> Iterator[ReportSection]:
    """Draw the distances, a section for each thing that was compared with."""
    for against, pair in judgement.pairs.items():
        ranked = [x for x in judgement.ranked if x.against == against and x.is_distance]
        blocks: list[Block] = [Paragraph(line) for line in _in_words(judgement, ranked, pair)]
        if ranked:
            rows = [charts.LimitRow(entry.name, entry.value, entry.effective) for entry in ranked[:_BARS]]
            caption = "A bar is the distance in that column; the dashed line is the limit that was applied."
            blocks.append(Figure(charts.limits(rows, axis="distance, as a share of its limit"), caption))
        name = "How far each column moved" if against == "previous" else f"Against {_LONG[against]}"
        intro = f"{pair.current.split} against {pair.reference.split}, {_LONG[against]}."
        yield ReportSection(name, blocks, intro=intro + truncation_note(len(ranked), _BARS))


def _in_words(
    judgement: SnapshotJudgement, entries: Sequence[ColumnComparison], pair: SamplePair[Profile]
) -> Iterator[str]:
    for entry in [entry for entry in entries if entry.moved][:_DISTRIBUTIONS]:
        shares = _counts(judgement, entry.column, pair).shares()
        name, now, before = max(shares, key=lambda item: (round(abs(item[1] - item[2]), 9), -item[2]))
        name = f"value {name}" if name.lstrip("-").isdecimal() else name
        value, limit = entry.written(4)
        if entry.floor > entry.limit:
            limit = f"{entry.limit:g}, applied {limit}"
        yield (
            f"{entry.column} moved by {value} ({entry.measure}), limit {limit}. "
            f"The largest change is at {name}: {now:.1%} of rows, {before:.1%} before."
        )
    if noisy := [entry for entry in entries if entry.is_undecided]:
        names = ", ".join(
            f"{x.name} ({x.value:.4f}, limit {x.limit:g}, chance {x.floor:.4f})" for x in noisy[:_NOISY]
        )
        rest = f", and {len(noisy) - _NOISY} more" if len(noisy) > _NOISY else ""
        yield (
            f"Too few rows to tell: above the configured limit, and no further than chance: {names}{rest}."
        )


def pictures(judgement: SnapshotJudgement) -> ReportSection:
    """Draw both distributions of the columns closest to their limits over each other, each column once."""
    closest: dict[str, ColumnComparison] = {}
    for entry in judgement.ranked:
        if entry.is_distance:
            closest.setdefault(entry.column, entry)
    return ReportSection(
        "Closest to their limits",
        [_figure(judgement, entry) for entry in list(closest.values())[:_DISTRIBUTIONS]],
        intro="What is judged is filled, what it is compared with is the outline. The bins of a number are "
        "the twentieths of the outline, so they differ in width.",
    )


def _counts(judgement: SnapshotJudgement, column: str, pair: SamplePair[Profile]) -> ColumnCounts:
    """Return the counts of a column, the classes of a label by name and long values cut off."""
    counts = column_counts(column, pair)
    is_label = column == judgement.snapshot.roles.get("label")
    classes = judgement.snapshot.target.classes if is_label else ()
    names = [class_name(value, classes) for value in counts.values]
    return replace(counts, values=[f"{name[:_LONGEST]}…" if len(name) > _LONGEST else name for name in names])


def _figure(judgement: SnapshotJudgement, entry: ColumnComparison) -> Figure:
    pair = judgement.pairs[entry.against]
    names = (pair.current.split, pair.reference.split)
    rows = _counts(judgement, entry.column, pair).plotted(_CATEGORIES)
    value, limit = entry.written(4)
    against = "" if entry.against == "previous" else f" against {entry.against}"
    caption = f"{entry.column}{against}: {entry.measure} {value} {'>' if entry.moved else 'of'} {limit}."
    if not rows.bounds:
        return Figure(charts.paired_bars(rows.values, rows.current, rows.previous, names=names), caption)
    features = (profile.features[entry.column] for profile in (pair.current, pair.reference))
    mean, before = (feature.num_stats.mean for feature in features)
    svg = charts.paired_histogram(rows.bounds, rows.current, rows.previous, names=names)
    return Figure(svg, f"{caption} Mean {mean:.3g}, before {before:.3g}.")


def shares(judgement: SnapshotJudgement) -> Iterator[ReportSection]:
    """Draw the columns in which the share of rows without a value, or with a new one, changed."""
    for measure, heading, what in (
        ("missing share", "Rows without a value", "how much the share of rows without a value changed"),
        ("new values", "Values never seen before", "the share of rows whose value was never there before"),
    ):
        entries = [entry for entry in judgement.ranked if entry.measure == measure and entry.value]
        rows = [
            charts.LimitRow(
                x.column + ("" if x.against == "previous" else f" ({x.against})"), x.value, x.effective
            )
            for x in entries[:_BARS]
        ]
        if rows:
            caption = f"A bar is {what}; the dashed line is the limit that was applied."
            figure = Figure(charts.limits(rows, axis="as a share of its limit"), caption)
            yield ReportSection(heading, [figure], intro=truncation_note(len(entries), _BARS).strip())


def all_comparisons(judgement: SnapshotJudgement) -> ReportSection:
    """List every comparison with both limits and both numbers of rows, and the columns that had none."""
    rows = [
        (
            entry.column, entry.measure, entry.against, f"{entry.value:.4f}", f"{entry.limit:g}",
            f"{entry.effective:.4f}", f"{entry.rows[0]:,}", f"{entry.rows[1]:,}",
            f"{entry.rows_needed:,}" if entry.rows_needed else "",
        )
        for entry in judgement.ranked[:_CHART_ROWS]
    ]  # fmt: skip
    flagged = [place for place, entry in enumerate(judgement.ranked[:_CHART_ROWS]) if entry.moved]
    header = [
        "Column",
        "Measure",
        "Against",
        "Distance",
        "Limit",
        "Applied",
        "Rows",
        "Rows there",
        "Rows needed",
    ]
    blocks: list[Block] = []
    if rows:
        blocks.append(Table(header, rows, numeric=(3, 4, 5, 6, 7, 8), flagged=flagged))
    limited = {limit.column for limit in judgement.limits}
    roles = {name: role for role, name in judgement.snapshot.roles.items() if role in ("key", "time")}
    left_out = []
    for name in (column.name for column in judgement.snapshot.columns if column.name not in limited):
        why = "it is ignored" if name in judgement.validation.ignore else "it is not in the schema"
        left_out.append((name, f"it is the {roles[name]}" if name in roles else why))
    if left_out:
        blocks.append(Table(["Not compared", "Because"], left_out))
    return ReportSection(
        "All comparisons",
        blocks,
        intro="Applied is the larger of the limit and of what chance alone stays below: at these numbers of "
        f"rows, and with {len(judgement.comparisons)} comparisons that together may raise a false alarm in "
        f"{judgement.validation.false_alarm_rate:.2%} of runs. Rows needed is about how many rows would tell "
        "a distance above its limit from chance." + truncation_note(len(judgement.ranked), _CHART_ROWS),
    )


_ROWS = 40


def write_report(judgement: SnapshotJudgement, path: Path) -> None:
    """Draw the page."""
    validation = judgement.validation
    subtitle = judgement.headline.removeprefix(f"{judgement.decision}: ")
    sections = [
        _findings(judgement),
        _inferred_schema(judgement),
        *distances(judgement),
        pictures(judgement),
        _not_judged(judgement),
        *shares(judgement),
        _quarantine(judgement),
        _suppressions(judgement),
        _rows(judgement),
        all_comparisons(judgement),
    ]
    page = ReportPage(
        title=f"Validation of {validation.current} against {validation.previous}",
        subtitle=f"{subtitle[:1].upper()}{subtitle[1:]}.",
        decision=judgement.decision,
        facts=list(_facts(judgement)),
        sections=[section for section in sections if section.blocks],
    )
    write_page(page, path)


def _facts(judgement: SnapshotJudgement) -> Iterator[tuple[str, object]]:
    for split in split_names(judgement.validation):
        yield f"Rows of {split}", f"{judgement.snapshot.splits.get(split, 0):,}"
        if span := _span(judgement, split):
            yield f"Span of {split}", span
    baseline = "none; not asked for" if judgement.validation.on_missing_baseline == "skip" else "none yet"
    if used := judgement.baseline:
        when = used.accepted.get("time", "")[:10]
        baseline = f"{used.rows:,} rows of data {used.data_version[:8]}, accepted {when}"
    yield "Baseline", baseline
    yield "Columns moved", f"{len(judgement.moved_columns)} of {len(judgement.limits)}"
    yield "Not judged", f"{len(judgement.not_judged)}"
    if judgement.quarantined.limit:
        yield "Rows in quarantine", f"{judgement.quarantined.total:,}"
    inferred = " (inferred)" if judgement.inferred else ""
    yield "Data and schema", f"{judgement.snapshot.digest[:8]}, {judgement.schema_digest[:8]}{inferred}"


def _span(judgement: SnapshotJudgement, split: str) -> str:
    """Return the first and the last day of a split, if its time column holds timestamps."""
    time = judgement.snapshot.roles.get("time", "")
    kinds = {column.name: column.type for column in judgement.snapshot.columns}
    profile = judgement.profiles.get(split)
    if profile is None or not kinds.get(time, "").startswith("timestamp"):
        return ""
    numbers = profile.features[time].num_stats
    first, last = (datetime.fromtimestamp(end, UTC) for end in (numbers.min, numbers.max))
    start = f"{first.day} {first:%b}" if first.year == last.year else f"{first.day} {first:%b %Y}"
    return f"{start} to {last.day} {last:%b %Y}"


def _findings(judgement: SnapshotJudgement) -> ReportSection:
    """List the findings, gravest first; drift and missing comparisons have sections of their own."""
    found = [finding for finding in judgement.anomalies if not finding.waived]
    if not found:
        splits = " and ".join(judgement.profiles)
        text = f"Every column of {splits} is what the schema says."
        return ReportSection("Against the schema", [Paragraph(text)] if splits else [])
    rows = [(x.severity, x.what, x.split or "all") for x in found[:_ROWS]]
    flagged = [place for place, row in enumerate(rows) if row[0] != "WARN"]
    return ReportSection(
        "Findings",
        [Table(["Severity", "What", "Split"], rows, flagged=flagged)],
        intro="BLOCK refuses the data, HOLD asks a person, WARN is only reported."
        + truncation_note(len(found), _ROWS),
    )


def _inferred_schema(judgement: SnapshotJudgement) -> ReportSection:
    """List what an inferred schema says of each column, for its review."""
    if not judgement.inferred:
        return ReportSection("Inferred schema", [])
    schema = parse_schema(judgement.inferred, "the inferred schema")
    domains = {domain.name: tuple(domain.value) for domain in schema.string_domain}
    rows = [
        (
            feature.name,
            schema_pb2.FeatureType.Name(feature.type),
            "every row" if feature.presence.min_fraction >= 1 else "may be missing",
            _values(feature, domains, judgement),
        )
        for feature in schema.feature[:_CHART_ROWS]
    ]
    return ReportSection(
        "Inferred schema",
        [Table(["Column", "Type", "Presence", "Values"], rows)],
        intro=f"{next_step(judgement)} What was seen is not what is allowed: look at the types, at the "
        f"values, and at what may be missing.{truncation_note(len(schema.feature), _CHART_ROWS)}",
    )


def _values(feature: Any, domains: Mapping[str, Sequence[str]], judgement: SnapshotJudgement) -> str:
    """Describe the values that a schema accepts in a column."""
    if feature.name == judgement.snapshot.roles.get("label") and judgement.snapshot.target.classes:
        classes = enumerate(judgement.snapshot.target.classes)
        names = [f"{number} {name}" for number, name in classes]
    elif feature.HasField("int_domain"):
        return f"{feature.int_domain.min} to {feature.int_domain.max}"
    elif feature.HasField("bool_domain"):
        domain = feature.bool_domain
        names = [domain.false_value or "0", domain.true_value or "1"]
    else:
        names = list(domains.get(feature.domain, ()))
    rest = f", and {len(names) - _CATEGORIES} more" if len(names) > _CATEGORIES else ""
    return ", ".join(names[:_CATEGORIES]) + rest


def _not_judged(judgement: SnapshotJudgement) -> ReportSection:
    rows = [(reason, ", ".join(names)) for reason, names in judgement.unjudged.items()]
    table: list[Block] = [Table(["Why", "What"], rows, flagged=range(len(rows)))] if rows else []
    intro = (
        "Not compared is not passed: it holds the data, unless it is suppressed with a reason. Text, and "
        "comparisons with too few rows, are only reported; a rule of severity makes them hold."
    )
    return ReportSection("What could not be compared", table, intro=intro)


def _quarantine(judgement: SnapshotJudgement) -> ReportSection:
    taken = judgement.quarantined
    if taken.limit is None:
        return ReportSection("Quarantine", [])
    rows = [
        (split, column, what, f"{rows:,}", f"{rows / taken.splits[split]:.3%}")
        for (split, column, what), rows in taken.reasons.most_common(_ROWS)
    ]
    block: Block = Paragraph("No row was taken out.")
    if rows:
        block = Table(["Split", "Column", "Is", "Rows", "Share"], rows, numeric=(3, 4))
    return ReportSection(
        "Quarantine",
        [block],
        intro=f"{taken.total:,} rows violate the schema and lie in a snapshot of their own; up to "
        f"{taken.limit.max_share:.2%} of a split may. They count in every comparison on this page."
        + truncation_note(len(taken.reasons), _ROWS),
    )


def _suppressions(judgement: SnapshotJudgement) -> ReportSection:
    """List the suppressions, and the findings that they hide."""
    waived = [finding for finding in judgement.findings if finding.waived]
    rows = [(x.severity, x.what, x.waived) for x in waived[:_ROWS]]
    in_force = [(x.kind, x.column or "any", str(x.until), x.reason) for x in judgement.in_force[:_ROWS]]
    blocks: list[Block] = []
    if rows:
        blocks.append(Table(["Severity", "What", "Does not count because"], rows))
    if in_force:
        blocks.append(Table(["Suppression", "Column", "Until", "Reason"], in_force))
    return ReportSection(
        "Set aside", blocks, intro="Seen, and left out of the decision." + truncation_note(len(waived), _ROWS)
    )


def _rows(judgement: SnapshotJudgement) -> ReportSection:
    """List the rules on numbers of rows: volume, freshness, label."""

    def written(rule: Rule, value: float) -> str:
        if rule.name == "freshness":
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")
        return f"{value:.4g}"

    elsewhere = ("quarantine/", "baseline")  # each has a place of its own on this page
    rules = [rule for rule in judgement.counted if not rule.name.startswith(elsewhere)]
    rows = [(rule.name, written(rule, rule.value), written(rule, rule.limit), rule.detail) for rule in rules]
    flagged = [place for place, rule in enumerate(rules) if not rule.passed]
    table = Table(["What", "Is", "Limit", ""], rows, numeric=(1, 2), flagged=flagged)
    return ReportSection("Rows, time and label", [table] if rows else [])


_SHOWN = 5

_REVIEW = (
    "Next: review schema.pbtxt beside this report's verdict, copy it beside the experiment file, and name it "
    "in schema_file. Until then, `register` rejects the model."
)
_BOOTSTRAPPED = "Next: review the schema that this run wrote to schema_file. Later runs are held to it."

_NEXT = {
    "HOLD": "Next: look at the report. If a change is real, raise its limit, suppress it with a reason and "
    "an end, or accept the new baseline: `trainwright baseline accept RUN --to FILE`.",
    "FAIL": "Next: mend the data, or review the schema if the change is meant.",
}


def next_step(judgement: SnapshotJudgement) -> str:
    """Return what a reader does next."""
    if judgement.inferred and judgement.decision != "FAIL":
        bootstrap = judgement.validation.on_missing_schema == "bootstrap"
        return _BOOTSTRAPPED if bootstrap else _REVIEW
    return _NEXT.get(judgement.decision, "Next: nothing; the run goes on.")


def write_summary(judgement: SnapshotJudgement, path: Path) -> None:
    """Write the decision, the numbers closest to their limits, the findings, and the next step."""
    validation, counts = judgement.validation, judgement.snapshot.splits
    headline = judgement.headline.removeprefix(f"{judgement.decision}: ")
    used = judgement.baseline
    beside = f", and the baseline: {used.rows:,} rows" if used else ""
    lines = [
        f"**{judgement.decision}** {markdown.escape(headline)}",
        "",
        f"{validation.current}: {counts.get(validation.current, 0):,} rows, against {validation.previous}: "
        f"{counts.get(validation.previous, 0):,} rows{beside}.",
        "",
    ]
    rows = [
        (entry.name, entry.against, entry.measure, *entry.written(4), "moved" * entry.moved)
        for entry in judgement.ranked[:_SHOWN]
    ]
    if rows:
        header = ["column", "against", "measure", "distance", "limit", ""]
        lines.append(markdown.table(header, rows, numeric=(3, 4)))
    lines += [*_wrong(judgement), "", next_step(judgement)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def _wrong(judgement: SnapshotJudgement) -> Iterator[str]:
    """List findings, missing comparisons, and suppressed findings."""
    for finding in [finding for finding in judgement.anomalies if not finding.waived][:_SHOWN]:
        yield f"- {finding.severity}: {markdown.escape(finding.what)}"
    for reason, columns in list(judgement.unjudged.items())[:_SHOWN]:
        rest = f", and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        shown = ", ".join(columns[:_SHOWN]) + rest
        yield f"- not compared: {markdown.escape(shown)}: {markdown.escape(reason)}"
    for finding in [finding for finding in judgement.findings if finding.waived][:_SHOWN]:
        yield f"- set aside: {markdown.escape(finding.what)} ({markdown.escape(finding.waived)})"
    if judgement.quarantined.total:
        yield f"- in quarantine: {judgement.quarantined.total:,} rows that violate the schema"
