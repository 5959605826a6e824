"""Summaries of an evaluation: Markdown for the run, `measured.json` and `card.md` for the model card."""

from collections.abc import Iterator
from pathlib import Path

from trainwright.evaluate import formatting as words
from trainwright.evaluate.findings import (
    LOWER,
    ComparedMetric,
    Findings,
    MeasuredMetrics,
    MetricValue,
    Ruling,
    Slicing,
)
from trainwright.evaluate.page_figures import shown_metrics, worst_first
from trainwright.evaluate.rules import metric_title
from trainwright.report import markdown
from trainwright.significance import Estimate
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
    return "\n\n".join(_summary_parts(findings, verdict)) + "\n"


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


def _summary_parts(findings: Findings, verdict: Verdict) -> Iterator[str]:
    yield f"# Evaluate: {verdict.decision}"
    yield markdown.escape(findings.headline)
    yield _about(findings)
    yield _rule_table(findings)
    for warning in findings.warnings[:_SHOWN]:
        yield f"Look at this: {markdown.escape(warning)}"
    if verdict.not_judged:
        yield "\n".join(_summary_unjudged(verdict))
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


def _rule_table(findings: Findings) -> str:
    header = [
        "rule",
        "value",
        f"{words.level(findings.evaluation)} interval",
        "limit",
        "rows needed",
        "result",
    ]
    rows = [_rule_row(ruling) for ruling in findings.rulings_by_severity]
    return markdown.table(header, rows, (1, 2, 3, 4)).strip()


def _rule_row(ruling: Ruling) -> list[object]:
    needed = f"{ruling.needed:,}" if ruling.needed and ruling.decision != "PASS" else ""
    if (rule := ruling.worst) is None:
        return [ruling.name, words.NONE, words.NONE, words.NONE, needed, ruling.decision]
    signed = ruling.kind in words.AGAINST_BASELINE
    number, limit = words.of_rule(rule), words.limit(rule, ruling.kind)
    value, interval = words.value(number, signed=signed), words.interval(number, signed=signed)
    return [rule.name, value, interval, limit, needed, ruling.decision]


def _summary_unjudged(verdict: Verdict) -> Iterator[str]:
    yield "Not judged:\n"
    ordered = sorted(verdict.not_judged, key=lambda entry: not entry.decision)
    for entry in ordered[:_SHOWN]:
        yield f"- {markdown.escape(entry.name)}: {markdown.escape(entry.reason)}"
    if len(ordered) > _SHOWN:
        yield f"- and {len(ordered) - _SHOWN:,} more, in the report"


_WORST = 5
_METRICS = 2
_CARD_LISTED = 10


def write_model_card_inputs(folder: Path, findings: Findings, verdict: Verdict) -> None:
    """Write ``measured.json`` and ``card.md`` beside a verdict."""
    measured_metrics(findings, verdict).write(folder)
    (folder / markdown.CARD_FILE).write_text(draw_card(findings, verdict))


def measured_metrics(findings: Findings, verdict: Verdict) -> MeasuredMetrics:
    """Return every defined figure with its interval, the ones over all rows first."""
    sample = findings.sample
    return MeasuredMetrics(
        predictions=verdict.judged.get("predictions", ""),
        rows_digest=sample.digest,
        rows=sample.rows,
        split=sample.split,
        kind=findings.kind,
        label=sample.label_name,
        measures=tuple(_measures(findings)),
    )


def _measures(findings: Findings) -> Iterator[MetricValue]:
    for name, found in findings.overall.items():
        yield from _measure(name, found)
    for name, gap in findings.overfitting.items():
        yield _estimate(f"overfitting/{name}", gap, LOWER)
    for disparity in findings.fairness.disparities if findings.fairness else ():
        if disparity.value:
            ending = "" if disparity.against == "groups" else "_to_overall"
            place = f"fairness/{'*'.join(disparity.columns)}/{disparity.measure}{ending}"
            yield _estimate(place, disparity.value, "higher" if "ratio" in disparity.measure else LOWER)
    for cut in findings.cuts:
        for entry in cut.slices:
            place = f"slice/{'*'.join(cut.columns)}/{entry.name}"
            yield MetricValue(name=f"{place}/rows", value=float(entry.rows))
            for name, found in entry.figures.items():
                yield from _measure(f"{place}/{name}", found)


def _measure(name: str, found: ComparedMetric) -> Iterator[MetricValue]:
    if found.candidate:
        yield _estimate(name, found.candidate, found.better)


def _estimate(name: str, found: Estimate, better: str) -> MetricValue:
    return MetricValue(name=name, value=found.value, interval=(found.low, found.high), better=better)


def draw_card(findings: Findings, verdict: Verdict) -> str:
    """Write the evaluation's part of the model's card."""
    label = markdown.escape(findings.sample.label_name or "text")
    return markdown.write_card(
        f"Evaluation of the model of {label}", "", list(_card_parts(findings, verdict))
    )


def _card_parts(findings: Findings, verdict: Verdict) -> Iterator[markdown.CardPart]:
    yield markdown.CardPart("Evaluation", _card_decision(findings, verdict))
    yield markdown.CardPart("Evaluation data", _card_data(findings, verdict))
    yield markdown.CardPart("Figures", _card_metrics(findings))
    if findings.cuts:
        metrics = shown_metrics(findings)[:_METRICS]
        yield markdown.CardPart("Slices", "\n\n".join(_card_slices(cut, metrics) for cut in findings.cuts))
    if findings.fairness:
        yield markdown.CardPart("Fairness", _card_fairness(findings))
    if verdict.not_judged:
        yield markdown.CardPart("Not judged", "\n".join(_card_unjudged(verdict)))


def _card_decision(findings: Findings, verdict: Verdict) -> str:
    lines = [f"**{verdict.decision}.** {markdown.escape(findings.headline)}."]
    lines += [f"Look at this: {markdown.escape(warning)}." for warning in findings.warnings[:_CARD_LISTED]]
    return "\n\n".join([*lines, f"Verdict `{verdict.digest}`."])


def _card_data(findings: Findings, verdict: Verdict) -> str:
    sample = findings.sample
    parts = [f"{sample.rows:,} rows of split `{sample.split}`"]
    if sample.rows and len(sample.classes) == 2:  # noqa: PLR2004
        parts.append(f"{sample.counts[1] / sample.rows:.1%} with {markdown.escape(sample.classes[1])}")
    if sample.unlabelled:
        parts.append(f"{sample.unlabelled:,} more without a label")
    digests = [f"{name} `{digest}`" for name, digest in verdict.judged.items()]
    return f"{', '.join(parts)}. Digests: {'; '.join(digests)}."


def _card_metrics(findings: Findings) -> str:
    both = findings.baseline is not None
    header = ["Figure", "Value", *(["Production", "Gain"] if both else [])]
    rows = []
    for name, found in findings.overall.items():
        pair = [words.estimate(found.baseline), words.estimate(found.gain, signed=True)] if both else []
        rows.append([metric_title(name), words.estimate(found.candidate), *pair])
    table = markdown.table(header, rows, range(1, len(header))).strip()
    at = "" if findings.threshold is None else f" A score of at least {findings.threshold:.4g} predicts 1."
    return f"{words.level(findings.evaluation)} intervals.{at}\n\n{table}"


def _card_slices(cut: Slicing, metrics: list[str]) -> str:
    slices = [entry for entry in worst_first(cut, metrics) if not entry.reason][:_WORST]
    small = len(cut.slices) - len(cut.judged)
    rows = []
    for entry in slices:
        found = [entry.figures.get(metric) for metric in metrics]
        figures = [words.estimate(figure.candidate if figure else None) for figure in found]
        rows.append([entry.name, f"{entry.rows:,}", *figures])
    header = [cut.name, "Rows", *(metric_title(metric) for metric in metrics)]
    said = f"The {len(rows)} worst of {len(cut.judged):,} judged slices by {markdown.escape(cut.name)}"
    listed = f"; {small:,} more are too small to be judged." if small else "."
    table = markdown.table(header, rows, range(1, len(header))).strip() if rows else ""
    return f"{said}{listed}\n\n{table}".strip()


def _card_fairness(findings: Findings) -> str:
    rows = [
        [
            metric_title(entry.measure),
            " and ".join(entry.columns),
            words.estimate(entry.value) if entry.value else entry.reason or words.NONE,
            f"{entry.lowest} and {entry.highest}" if entry.lowest else words.NONE,
        ]
        for entry in (findings.fairness.disparities if findings.fairness else ())
    ]
    return markdown.table(["Measure", "Groups by", "Value", "Between"], rows, (2,)).strip()


def _card_unjudged(verdict: Verdict) -> Iterator[str]:
    for entry in verdict.not_judged[:_CARD_LISTED]:
        yield f"- {markdown.escape(entry.name)}: {markdown.escape(entry.reason)}"
    if len(verdict.not_judged) > _CARD_LISTED:
        yield f"- and {len(verdict.not_judged) - _CARD_LISTED:,} more, in the verdict"
