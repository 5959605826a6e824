"""The evaluation's Markdown summary: what was judged, each rule, and what to do next."""

from collections.abc import Iterator

from trainwright.artifacts import DECISIONS, Verdict
from trainwright.evaluate.findings import Findings
from trainwright.report import markdown

_SHOWN = 10

_STEPS = (
    "Next: the model can be registered.",
    "Next: look at the report. Accept what it shows by a higher limit, or train again.",
    "Next: train a better model; this one is not registered.",
    "Next: evaluate on more rows, or change what is asked. This is not a pass.",
)

_NEXT = dict(zip(DECISIONS, _STEPS, strict=True))


def summarize(findings: Findings, verdict: Verdict) -> str:
    """Write the summary as Markdown."""
    return "\n\n".join(_parts(findings, verdict)) + "\n"


def _parts(findings: Findings, verdict: Verdict) -> Iterator[str]:
    scores, whole, asked = findings.scores, findings.performance, findings.evaluation
    yield f"# Evaluate: {verdict.decision}"
    yield markdown.escape(findings.headline)
    precision = f"{whole.precision.value:.3f}" if whole.precision else "not defined"
    yield (
        f"{scores.rows:,} rows of split {markdown.escape(asked.split)}, {scores.positives:,} with "
        f"{markdown.escape(scores.label_name)} = 1. At a threshold of {asked.threshold:g}: "
        f"precision {precision}, recall {whole.recall.value:.3f}."
    )
    yield _rules(findings)
    if verdict.not_judged:
        yield "\n".join(_not_judged(verdict))
    yield _NEXT[verdict.decision]


def _rules(findings: Findings) -> str:
    rows = [
        [
            ruling.name,
            f"{ruling.estimate.value:.3f}" if ruling.estimate else "-",
            ruling.estimate.interval if ruling.estimate else "-",
            f"{ruling.limit:.3f}",
            ruling.decision,
        ]
        for ruling in findings.rulings
    ]
    return markdown.table(["rule", "value", "95 % interval", "limit", "result"], rows, (1, 2, 3)).strip()


def _not_judged(verdict: Verdict) -> Iterator[str]:
    yield "Not judged:\n"
    for entry in verdict.not_judged[:_SHOWN]:
        yield f"- {markdown.escape(entry.name)}: {markdown.escape(entry.reason)}"
    if len(verdict.not_judged) > _SHOWN:
        yield f"- and {len(verdict.not_judged) - _SHOWN} more, in the report"
