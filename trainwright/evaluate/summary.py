"""Summaries of an evaluation: Markdown for the run, `measured.json` and `card.md` for the model card."""

from collections.abc import Iterator
from pathlib import Path

from trainwright.evaluate import formatting
from trainwright.evaluate.findings import Findings, MeasuredMetrics, Slicing
from trainwright.evaluate.page_slices import shown_metrics, worst_first
from trainwright.evaluate.rules import metric_title
from trainwright.report import markdown
from trainwright.verdicts import DECISIONS, NotJudged, Verdict

_LISTED = 10

_STEPS = (
    "Next: the model can be registered.",
    "Next: a person looks at the report. Accept what it shows by another limit, in a reviewed change, or "
    "train again.",
    "Next: train a better model; this one is not registered.",
    "Next: evaluate on more rows, or ask for less. This is not a pass.",
)

_NEXT = dict(zip(DECISIONS, _STEPS, strict=True))


def next_steps(findings: Findings, verdict: Verdict) -> list[str]:
    """Say what to do next: what the decision asks for, and the rows that would decide what is open."""
    steps = [_NEXT[verdict.decision]]
    undecided = [ruling for ruling in findings.rulings if ruling.decision == "INCONCLUSIVE" and ruling.needed]
    whole = [ruling for ruling in undecided if ruling.scope == "overall"]
    if whole:
        needed, rules = max(ruling.needed for ruling in whole), ", ".join(ruling.name for ruling in whole)
        steps.append(
            f"About {needed:,} rows like these {findings.sample.rows:,} would decide {rules} with 80 % "
            "probability, if the truth is what was seen."
        )
    for ruling in undecided:
        if ruling.scope == "slice":
            steps.append(
                f"About {ruling.needed:,} rows of a slice would decide every slice of {ruling.name}."
            )
    if any(ruling.kind == "constant" and ruling.undecided for ruling in findings.rulings):
        steps.append(
            "For more rows in this split, raise its fraction in data.splits. To register without this "
            "comparison, set evaluation.constant_prediction: warn in a reviewed change."
        )
    if any(ruling.kind == "baseline" and ruling.decision != "PASS" for ruling in findings.rulings):
        steps.append(
            "No model in production was compared. For the first model of a name, set "
            "evaluation.missing_baseline: bootstrap in a reviewed change, and back afterwards."
        )
    return steps


def metric_rows(findings: Findings) -> list[list[object]]:
    """Return name and value of every metric of all classes; with a baseline also its value and the gain."""
    rows: list[list[object]] = []
    for name, found in findings.overall.items():
        if "/" in name:  # of one class: see class_rows
            continue
        row: list[object] = [metric_title(name), formatting.estimate(found.candidate)]
        if findings.baseline:
            row += [formatting.estimate(found.baseline), formatting.estimate(found.gain, signed=True)]
        rows.append(row)
    return rows


def class_rows(findings: Findings) -> tuple[list[str], list[list[object]]]:
    """Return a header, and one row per class of several: its rows and its metrics, with gains if compared."""
    metrics = list(dict.fromkeys(name.partition("/")[0] for name in findings.overall if "/" in name))
    header, rows = ["class", "rows"], list[list[object]]()
    for metric in metrics:
        header += [metric_title(metric), *(["gain"] if findings.baseline else [])]
    for of_class, count in zip(findings.sample.class_names, findings.sample.counts, strict=True):
        row: list[object] = [of_class, f"{count:,}"]
        for metric in metrics:
            found = findings.overall.get(f"{metric}/{of_class}")
            row.append(formatting.estimate(found.candidate if found else None))
            if findings.baseline:
                row.append(formatting.estimate(found.gain if found else None, signed=True))
        rows.append(row)
    return header, rows if metrics else []


def summarize(findings: Findings, verdict: Verdict) -> str:
    """Write the summary as Markdown."""
    ordered = sorted(verdict.not_judged, key=lambda entry: not entry.decision)
    unjudged = "\n".join(["Not judged:\n", *_unjudged(ordered, "report")]) if ordered else ""
    parts = [
        f"# Evaluate: {verdict.decision}",
        markdown.escape(findings.headline),
        f"{', '.join(_about(findings))}.",
        _rule_table(findings),
        *(f"Look at this: {markdown.escape(warning)}" for warning in findings.warnings[:_LISTED]),
        unjudged,
        *map(markdown.escape, next_steps(findings, verdict)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(findings: Findings) -> Iterator[str]:
    sample, baseline = findings.sample, findings.baseline
    yield f"{sample.rows:,} rows of split {markdown.escape(sample.split)}"
    if len(sample.classes) == 2:  # noqa: PLR2004
        yield f"{sample.counts[1]:,} with {markdown.escape(sample.classes[1])}"
    if findings.threshold is not None:
        yield f"threshold {findings.threshold:.4g} from the {findings.threshold_from}"
    if baseline is None:
        yield "compared with no other model"
    else:
        yield f"compared with version {markdown.escape(baseline.version or baseline.model[:12])}"


def _rule_table(findings: Findings) -> str:
    rows = []
    for ruling in findings.rulings_by_severity:
        cells: list[object] = [ruling.name, *[formatting.NONE] * 3]
        needed = ruling.needed
        if ruling.rules:
            # The line is about the worst slice; another one may need more rows.
            cells, needed = formatting.rule_cells(ruling.rules[0], ruling.kind), ruling.rules[0].needed
        rows.append([*cells, formatting.count(0 if ruling.decision == "PASS" else needed), ruling.decision])
    interval = f"{formatting.level(findings)} interval"
    header = ["rule", "value", interval, "limit", "rows needed", "result"]
    return markdown.table(header, rows, (1, 2, 3, 4)).strip()


def _unjudged(entries: list[NotJudged], where: str) -> list[str]:
    lines = [formatting.bullet(entry.name, entry.reason) for entry in entries[:_LISTED]]
    more = len(entries) - _LISTED
    return [*lines, f"- and {more:,} more, in the {where}"] if more > 0 else lines


_WORST = 5
_METRICS = 2
_CLASSES = 50
"""Classes on the card, the first ones."""


def write_model_card_inputs(folder: Path, findings: Findings, verdict: Verdict) -> None:
    """Write ``measured.json`` and ``card.md`` beside a verdict."""
    measured_metrics(findings, verdict).write(folder)
    (folder / markdown.CARD_FILE).write_text(draw_card(findings, verdict))


def measured_metrics(findings: Findings, verdict: Verdict) -> MeasuredMetrics:
    """Return every defined metric with its interval, the ones over all rows first."""
    sample = findings.sample
    return MeasuredMetrics(
        predictions=verdict.judged.get("predictions", ""),
        rows_digest=sample.digest,
        rows=sample.rows,
        split=sample.split,
        kind=findings.kind,
        label=sample.label_name,
        measures=tuple(findings.measures()),
    )


def draw_card(findings: Findings, verdict: Verdict) -> str:
    """Write the evaluation's part of the model's card."""
    metrics = shown_metrics(findings)[:_METRICS]
    texts = {
        "Evaluation": _card_decision(findings, verdict),
        "Evaluation data": _card_data(findings, verdict),
        "Figures": _card_metrics(findings),
        "Classes": _card_classes(findings),
        "Slices": "\n\n".join(_card_slices(cut, metrics) for cut in findings.cuts),
        "Fairness": _card_fairness(findings) if findings.groups else "",
        "Not judged": "\n".join(_unjudged(list(verdict.not_judged), "verdict")),
    }
    label = markdown.escape(findings.sample.label_name or "text")
    parts = [markdown.CardPart(heading, text) for heading, text in texts.items() if text]
    return markdown.write_card(f"Evaluation of the model of {label}", "", parts)


def _card_decision(findings: Findings, verdict: Verdict) -> str:
    lines = [f"**{verdict.decision}.** {markdown.escape(findings.headline)}."]
    lines += [f"Look at this: {markdown.escape(warning)}." for warning in findings.warnings[:_LISTED]]
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
    header = ["Figure", "Value", *(["Production", "Gain"] if findings.baseline else [])]
    table = markdown.table(header, metric_rows(findings), range(1, len(header))).strip()
    lead = markdown.escape(f"{formatting.level(findings)} intervals.{formatting.threshold_text(findings)}")
    return f"{lead}\n\n{table}"


def _card_classes(findings: Findings) -> str:
    header, rows = class_rows(findings)
    return markdown.table(header, rows[:_CLASSES], range(1, len(header))).strip() if rows else ""


def _card_slices(cut: Slicing, metrics: list[str]) -> str:
    rows = []
    for entry in [entry for entry in worst_first(cut, metrics) if not entry.reason][:_WORST]:
        found = [entry.figures.get(metric) for metric in metrics]
        values = [formatting.estimate(figure.candidate if figure else None) for figure in found]
        rows.append([entry.name, f"{entry.rows:,}", *values])
    header = [cut.name, "Rows", *(metric_title(metric) for metric in metrics)]
    small = len(cut.slices) - len(cut.judged)
    listed = f"; {small:,} more are too small to be judged." if small else "."
    text = (
        f"The {len(rows)} worst of {len(cut.judged):,} judged slices by {markdown.escape(cut.name)}{listed}"
    )
    table = markdown.table(header, rows, range(1, len(header))).strip() if rows else ""
    return f"{text}\n\n{table}".strip()


def _card_fairness(findings: Findings) -> str:
    rows = [
        [
            metric_title(entry.measure),
            " and ".join(entry.columns),
            formatting.estimate(entry.value) if entry.value else entry.reason or formatting.NONE,
            f"{entry.lowest} and {entry.highest}" if entry.lowest else formatting.NONE,
        ]
        for entry in findings.disparities
    ]
    return markdown.table(["Measure", "Groups by", "Value", "Between"], rows, (2,)).strip()
