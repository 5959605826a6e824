"""The few lines of Markdown that Kubeflow shows beside the step."""

from collections.abc import Iterator
from pathlib import Path

from trainwright.report import markdown
from trainwright.validate.judgement import Judgement

_SHOWN = 5

_NEXT = {
    "HOLD": "Next: look at the report. If a change is real, raise its limit, suppress it with a reason and "
    "an end, or accept the new baseline: `trainwright baseline accept RUN --to FILE`.",
    "FAIL": "Next: mend the data, or review the schema if the change is meant.",
}


def write_summary(judgement: Judgement, path: Path) -> Path:
    """Write the decision, the numbers closest to their limits, what is wrong, and what to do next."""
    asked, counts = judgement.validation, judgement.snapshot.splits
    headline = judgement.headline.removeprefix(f"{judgement.decision}: ")
    used = judgement.baseline
    beside = f", and the baseline: {used.rows:,} rows" if used else ""
    lines = [
        f"**{judgement.decision}** {markdown.escape(headline)}",
        "",
        f"{asked.current}: {counts.get(asked.current, 0):,} rows, against {asked.previous}: "
        f"{counts.get(asked.previous, 0):,} rows{beside}.",
        "",
    ]
    rows = [
        (entry.name, entry.against, entry.measure, *entry.written(4), "moved" * entry.moved)
        for entry in judgement.ranked[:_SHOWN]
    ]
    if rows:
        header = ["column", "against", "measure", "distance", "limit", ""]
        lines.append(markdown.table(header, rows, numeric=(3, 4)))
    lines += [*_wrong(judgement), "", _NEXT.get(judgement.decision, "Next: nothing; the run goes on.")]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def _wrong(judgement: Judgement) -> Iterator[str]:
    """Name what is wrong, what was not compared, and what does not count for now."""
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
