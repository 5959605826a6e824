"""The evaluation's Markdown summary: what was decided, each rule, and what to do next."""

from collections.abc import Iterator

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Findings, Ruling
from trainwright.evaluate.page_rules import gravest_first
from trainwright.report import markdown
from trainwright.verdicts import DECISIONS, Verdict

_SHOWN = 10

_STEPS = (
    "Next: the model can be registered.",
    "Next: a person looks at the report. Accept what it shows by another limit, in a reviewed change, or "
    "train again.",
    "Next: train a better model; this one is not registered.",
    "Next: evaluate on more rows, or ask for less. This is not a pass.",
)

_NEXT = dict(zip(DECISIONS, _STEPS, strict=True))


def summarize(findings: Findings, verdict: Verdict) -> str:
    """Write the summary as Markdown."""
    return "\n\n".join(_parts(findings, verdict)) + "\n"


def next_steps(findings: Findings, verdict: Verdict) -> list[str]:
    """Say what to do next: what the decision asks for, and the rows that would decide what is open."""
    steps = [_NEXT[verdict.decision]]
    if needed := max((ruling.needed for ruling in _open(findings)), default=0):
        rules = ", ".join(ruling.name for ruling in _open(findings) if ruling.needed)
        steps.append(
            f"About {needed:,} rows like these {findings.sample.rows:,} would decide {rules} with 80 % "
            "probability, if the truth is what was seen."
        )
    if any(ruling.kind == "baseline" and ruling.decision != "PASS" for ruling in findings.rulings):
        steps.append(
            "No model in production was compared. For the first model of a name, set "
            "evaluation.missing_baseline: bootstrap in a reviewed change, and back afterwards."
        )
    return steps


def _open(findings: Findings) -> list[Ruling]:
    return [ruling for ruling in findings.rulings if ruling.decision == "INCONCLUSIVE"]


def _parts(findings: Findings, verdict: Verdict) -> Iterator[str]:
    yield f"# Evaluate: {verdict.decision}"
    yield markdown.escape(findings.headline)
    yield _about(findings)
    yield _rules(findings)
    for warning in findings.warnings[:_SHOWN]:
        yield f"Look at this: {markdown.escape(warning)}"
    if verdict.not_judged:
        yield "\n".join(_not_judged(verdict))
    yield "\n\n".join(markdown.escape(step) for step in next_steps(findings, verdict))


def _about(findings: Findings) -> str:
    sample = findings.sample
    parts = [f"{sample.rows:,} rows of split {markdown.escape(sample.split)}"]
    if len(sample.classes) == 2:  # noqa: PLR2004
        parts.append(f"{sample.counts[1]:,} with {markdown.escape(sample.classes[1])}")
    if findings.threshold is not None:
        parts.append(f"threshold {findings.threshold:.4g} from the {findings.threshold_from}")
    if (baseline := findings.baseline) is None:
        parts.append("compared with no other model")
    else:
        parts.append(f"compared with version {markdown.escape(baseline.version or baseline.model[:12])}")
    return f"{', '.join(parts)}."


def _rules(findings: Findings) -> str:
    header = [
        "rule",
        "value",
        f"{words.level(findings.evaluation)} interval",
        "limit",
        "rows needed",
        "result",
    ]
    rows = [_cells(ruling) for ruling in gravest_first(findings)]
    return markdown.table(header, rows, (1, 2, 3, 4)).strip()


def _cells(ruling: Ruling) -> list[object]:
    needed = f"{ruling.needed:,}" if ruling.needed and ruling.decision != "PASS" else ""
    if (rule := ruling.worst) is None:
        return [ruling.name, words.NONE, words.NONE, words.NONE, needed, ruling.decision]
    signed = ruling.kind in words.AGAINST_BASELINE
    number, limit = words.of_rule(rule), words.limit(rule, ruling.kind)
    value, interval = words.value(number, signed=signed), words.interval(number, signed=signed)
    return [rule.name, value, interval, limit, needed, ruling.decision]


def _not_judged(verdict: Verdict) -> Iterator[str]:
    yield "Not judged:\n"
    ordered = sorted(verdict.not_judged, key=lambda entry: not entry.decision)
    for entry in ordered[:_SHOWN]:
        yield f"- {markdown.escape(entry.name)}: {markdown.escape(entry.reason)}"
    if len(ordered) > _SHOWN:
        yield f"- and {len(ordered) - _SHOWN:,} more, in the report"
