"""The report of a validation: what was decided and why, what moved, and what could not be told."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trainwright.report.page import Block, Page, Section, Table, Text, write_page
from trainwright.validate.judgement import Judgement
from trainwright.validate.pictures import all_comparisons, distances, left, pictures, shares
from trainwright.validate.samples import split_names
from trainwright.validate.statistics import by_column
from trainwright.verdicts import Rule

_ROWS = 40


def write_report(judgement: Judgement, path: Path) -> Path:
    """Draw the page.

    Args:
        judgement: What was found.
        path: File to write.
    """
    asked = judgement.validation
    subtitle = judgement.headline.removeprefix(f"{judgement.decision}: ")
    page = Page(
        title=f"Validation of {asked.current} against {asked.previous}",
        subtitle=f"{subtitle[:1].upper()}{subtitle[1:]}.",
        decision=judgement.decision,
        facts=list(_facts(judgement)),
        sections=[section for section in _sections(judgement) if section.blocks],
    )
    return write_page(page, path)


def _facts(judgement: Judgement) -> Iterator[tuple[str, object]]:
    for split in split_names(judgement.validation):
        yield f"Rows of {split}", f"{judgement.snapshot.splits.get(split, 0):,}"
        if span := _span(judgement, split):
            yield f"Span of {split}", span
    yield "Baseline", _baseline(judgement)
    yield "Columns moved", f"{len(judgement.moved_columns)} of {len(judgement.limits)}"
    yield "Not judged", f"{len(judgement.not_judged)}"
    if judgement.quarantined.asked:
        yield "Rows in quarantine", f"{judgement.quarantined.total:,}"
    yield "Data and schema", f"{judgement.snapshot.digest[:8]}, {judgement.schema_digest[:8]}"


def _baseline(judgement: Judgement) -> str:
    used = judgement.baseline
    if used is None:
        how = judgement.validation.on_missing_baseline
        return "none; not asked for" if how == "skip" else "none yet"
    when = used.accepted.get("time", "")[:10]
    return f"{used.rows:,} rows of data {used.data_version[:8]}, accepted {when}"


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
    yield _findings(judgement)
    yield from distances(judgement)
    yield pictures(judgement)
    yield _not_judged(judgement)
    yield from shares(judgement)
    yield _quarantine(judgement)
    yield _suppressions(judgement)
    yield _rows(judgement)
    yield all_comparisons(judgement)


def _findings(judgement: Judgement) -> Section:
    """List what is wrong, the gravest first; what moved or could not be compared has sections of its own."""
    found = [finding for finding in judgement.anomalies if not finding.waived]
    if not found:
        splits = " and ".join(judgement.profiles)
        text = f"Every column of {splits} is what the reviewed schema says."
        return Section("Against the schema", [Text(text)] if splits else [])
    rows = [(x.severity, x.what, x.split or "all") for x in found[:_ROWS]]
    flagged = [place for place, row in enumerate(rows) if row[0] != "WARN"]
    return Section(
        "What is wrong",
        [Table(["Severity", "What", "Split"], rows, flagged=flagged)],
        intro="BLOCK refuses the data, HOLD asks a person, WARN is only told." + left(len(found), _ROWS),
    )


def _not_judged(judgement: Judgement) -> Section:
    rows = [(reason, ", ".join(names)) for reason, names in judgement.unjudged.items()]
    table: list[Block] = [Table(["Why", "What"], rows, flagged=range(len(rows)))] if rows else []
    intro = "Not compared is not passed: it holds the data, unless it is suppressed with a reason."
    return Section("What could not be compared", table, intro=intro)


def _quarantine(judgement: Judgement) -> Section:
    taken = judgement.quarantined
    if taken.asked is None:
        return Section("Quarantine", [])
    rows = [
        (split, column, what, f"{rows:,}", f"{rows / taken.splits[split]:.3%}")
        for (split, column, what), rows in taken.reasons.most_common(_ROWS)
    ]
    header = ["Split", "Column", "Is", "Rows", "Share"]
    blocks: list[Block] = [Table(header, rows, numeric=(3, 4))] if rows else [Text("No row was taken out.")]
    return Section(
        "Quarantine",
        blocks,
        intro=f"{taken.total:,} rows violate the schema and lie in a snapshot of their own; up to "
        f"{taken.asked.max_share:.2%} of a split may. They count in every comparison on this page."
        + left(len(taken.reasons), _ROWS),
    )


def _suppressions(judgement: Judgement) -> Section:
    """List what a person has set aside, and what it hides now."""
    waived = [finding for finding in judgement.findings if finding.waived]
    rows = [(x.severity, x.what, x.waived) for x in waived[:_ROWS]]
    unused = [
        (entry.kind, entry.column or "any", str(entry.until), entry.reason)
        for entry in judgement.in_force[:_ROWS]
    ]
    blocks: list[Block] = []
    if rows:
        blocks.append(Table(["Severity", "What", "Does not count because"], rows))
    if unused:
        blocks.append(Table(["Suppression", "Column", "Until", "Reason"], unused))
    return Section(
        "Set aside", blocks, intro="Seen, and left out of the decision." + left(len(waived), _ROWS)
    )


def _rows(judgement: Judgement) -> Section:
    """List the rules on numbers of rows: volume, freshness, label."""
    told = ("quarantine/", "baseline")  # each has a place of its own on this page
    rules = [rule for rule in judgement.counted if not rule.name.startswith(told)]
    rows = [(rule.name, _number(rule, rule.value), _number(rule, rule.limit), rule.detail) for rule in rules]
    flagged = [place for place, rule in enumerate(rules) if not rule.passed]
    table = Table(["What", "Is", "Limit", ""], rows, numeric=(1, 2), flagged=flagged)
    return Section("Rows, time and label", [table] if rows else [])


def _number(rule: Rule, value: float) -> str:
    if rule.name == "freshness":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")
    return f"{value:.4g}"
