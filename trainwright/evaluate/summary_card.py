"""What an evaluation leaves for a model's card: the figures as a document, and as Markdown."""

from collections.abc import Iterator
from pathlib import Path

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Compared, Cut, Findings
from trainwright.evaluate.measured import LOWER, Measure, Measured
from trainwright.evaluate.outcomes import spoken
from trainwright.evaluate.page_slices import shown_metrics, worst_first
from trainwright.report import card, markdown
from trainwright.significance import Estimate
from trainwright.verdicts import Verdict

_WORST = 5
_METRICS = 2
_LISTED = 10


def write_measured_and_card(folder: Path, findings: Findings, verdict: Verdict) -> None:
    """Write ``measured.json`` and ``card.md`` beside a verdict.

    Args:
        folder: The verdict's folder; it exists.
        findings: What was found.
        verdict: What was decided.
    """
    measured_of(findings, verdict).write(folder)
    (folder / card.FILE).write_text(draw_card(findings, verdict))


def measured_of(findings: Findings, verdict: Verdict) -> Measured:
    """Return every defined figure with its interval, the ones over all rows first."""
    sample = findings.sample
    return Measured(
        predictions=verdict.judged.get("predictions", ""),
        rows_digest=sample.digest,
        rows=sample.rows,
        split=sample.split,
        kind=findings.kind,
        label=sample.label_name,
        measures=tuple(_measures(findings)),
    )


def _measures(findings: Findings) -> Iterator[Measure]:
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
            yield Measure(name=f"{place}/rows", value=float(entry.rows))
            for name, found in entry.figures.items():
                yield from _measure(f"{place}/{name}", found)


def _measure(name: str, found: Compared) -> Iterator[Measure]:
    if found.candidate:
        yield _estimate(name, found.candidate, found.better)


def _estimate(name: str, found: Estimate, better: str) -> Measure:
    return Measure(name=name, value=found.value, interval=(found.low, found.high), better=better)


def draw_card(findings: Findings, verdict: Verdict) -> str:
    """Write the evaluation's part of the model's card."""
    label = markdown.escape(findings.sample.label_name or "text")
    return card.write(f"Evaluation of the model of {label}", "", list(_parts(findings, verdict)))


def _parts(findings: Findings, verdict: Verdict) -> Iterator[card.Part]:
    yield card.Part("Evaluation", _decision(findings, verdict))
    yield card.Part("Evaluation data", _data(findings, verdict))
    yield card.Part("Figures", _figures(findings))
    if findings.cuts:
        metrics = shown_metrics(findings)[:_METRICS]
        yield card.Part("Slices", "\n\n".join(_slices(cut, metrics) for cut in findings.cuts))
    if findings.fairness:
        yield card.Part("Fairness", _fairness(findings))
    if verdict.not_judged:
        yield card.Part("Not judged", "\n".join(_not_judged(verdict)))


def _decision(findings: Findings, verdict: Verdict) -> str:
    lines = [f"**{verdict.decision}.** {markdown.escape(findings.headline)}."]
    lines += [f"Look at this: {markdown.escape(warning)}." for warning in findings.warnings[:_LISTED]]
    return "\n\n".join([*lines, f"Verdict `{verdict.digest}`."])


def _data(findings: Findings, verdict: Verdict) -> str:
    sample = findings.sample
    parts = [f"{sample.rows:,} rows of split `{sample.split}`"]
    if sample.rows and len(sample.classes) == 2:  # noqa: PLR2004
        parts.append(f"{sample.counts[1] / sample.rows:.1%} with {markdown.escape(sample.classes[1])}")
    if sample.unlabelled:
        parts.append(f"{sample.unlabelled:,} more without a label")
    digests = [f"{name} `{digest}`" for name, digest in verdict.judged.items()]
    return f"{', '.join(parts)}. Digests: {'; '.join(digests)}."


def _figures(findings: Findings) -> str:
    both = findings.baseline is not None
    header = ["Figure", "Value", *(["Production", "Gain"] if both else [])]
    rows = []
    for name, found in findings.overall.items():
        pair = [words.estimate(found.baseline), words.estimate(found.gain, signed=True)] if both else []
        rows.append([spoken(name), words.estimate(found.candidate), *pair])
    table = markdown.table(header, rows, range(1, len(header))).strip()
    at = "" if findings.threshold is None else f" A score of at least {findings.threshold:.4g} predicts 1."
    return f"{words.level(findings.evaluation)} intervals.{at}\n\n{table}"


def _slices(cut: Cut, metrics: list[str]) -> str:
    slices = [entry for entry in worst_first(cut, metrics) if not entry.reason][:_WORST]
    small = len(cut.slices) - len(cut.judged)
    rows = []
    for entry in slices:
        found = [entry.figures.get(metric) for metric in metrics]
        figures = [words.estimate(figure.candidate if figure else None) for figure in found]
        rows.append([entry.name, f"{entry.rows:,}", *figures])
    header = [cut.name, "Rows", *(spoken(metric) for metric in metrics)]
    said = f"The {len(rows)} worst of {len(cut.judged):,} judged slices by {markdown.escape(cut.name)}"
    listed = f"; {small:,} more are too small to be judged." if small else "."
    table = markdown.table(header, rows, range(1, len(header))).strip() if rows else ""
    return f"{said}{listed}\n\n{table}".strip()


def _fairness(findings: Findings) -> str:
    rows = [
        [
            spoken(entry.measure),
            " and ".join(entry.columns),
            words.estimate(entry.value) if entry.value else entry.reason or words.NONE,
            f"{entry.lowest} and {entry.highest}" if entry.lowest else words.NONE,
        ]
        for entry in (findings.fairness.disparities if findings.fairness else ())
    ]
    return markdown.table(["Measure", "Groups by", "Value", "Between"], rows, (2,)).strip()


def _not_judged(verdict: Verdict) -> Iterator[str]:
    for entry in verdict.not_judged[:_LISTED]:
        yield f"- {markdown.escape(entry.name)}: {markdown.escape(entry.reason)}"
    if len(verdict.not_judged) > _LISTED:
        yield f"- and {len(verdict.not_judged) - _LISTED:,} more, in the verdict"
