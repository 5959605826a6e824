"""The few lines of Markdown that Kubeflow shows beside the step."""

from pathlib import Path

from trainwright.report import markdown
from trainwright.validate.judgement import Judgement

_SHOWN = 5

_NEXT = {
    "HOLD": "Next: look at the report. If a change is real, raise its limit in the experiment file.",
    "FAIL": "Next: mend the data, or review the schema if the change is meant.",
}


def write_summary(judgement: Judgement, path: Path) -> Path:
    """Write the decision, the numbers closest to their limits, what is wrong, and what to do next."""
    asked, counts = judgement.validation, judgement.snapshot.splits
    headline = judgement.headline.removeprefix(f"{judgement.decision}: ")
    lines = [
        f"**{judgement.decision}** {markdown.escape(headline)}",
        "",
        f"{asked.current}: {counts.get(asked.current, 0):,} rows, against {asked.previous}: "
        f"{counts.get(asked.previous, 0):,} rows.",
        "",
    ]
    rows = [
        (entry.name, entry.measure, *entry.written(4), "moved" * entry.moved)
        for entry in judgement.ranked[:_SHOWN]
    ]
    if rows:
        lines.append(markdown.table(["column", "measure", "distance", "limit", ""], rows, numeric=(2, 3)))
    lines += [f"- {x.severity}: {markdown.escape(x.what)}" for x in judgement.anomalies[:_SHOWN]]
    for reason, columns in list(judgement.unjudged.items())[:_SHOWN]:
        rest = f", and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        shown = ", ".join(columns[:_SHOWN]) + rest
        lines.append(f"- not compared: {markdown.escape(shown)}: {markdown.escape(reason)}")
    lines += ["", _NEXT.get(judgement.decision, "Next: nothing; the run goes on.")]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
