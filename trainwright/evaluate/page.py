"""The evaluation's page: the decision and its rules, the numbers behind them, and what all of it is about."""

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.outcomes import spoken
from trainwright.evaluate.page_fairness import fairness_section
from trainwright.evaluate.page_rules import rules_section
from trainwright.evaluate.page_scores import (
    confusion_section,
    curves_section,
    figures_section,
    interval_methods,
    overfitting_section,
)
from trainwright.evaluate.page_slices import slice_sections
from trainwright.evaluate.summary import next_steps
from trainwright.report.page import Block, Dense, Page, Section, Table, Text
from trainwright.verdicts import Verdict

_LISTED = 500
"""Most lines of what was not judged."""

_QUESTIONS = {
    "binary": "Does the model predict {label!r} well enough?",
    "multiclass": "Does the model tell the classes of {label!r} apart well enough?",
    "regression": "Does the model estimate {label!r} well enough?",
    "language_model": "Does the model predict text well enough?",
}


def draw(findings: Findings, verdict: Verdict) -> Page:
    """Draw the page: the decision, its rules, the figures, every slice, and what it all stands on."""
    sections = [
        rules_section(findings, next_steps(findings, verdict)),
        figures_section(findings),
        *slice_sections(findings),
        curves_section(findings),
        confusion_section(findings),
        fairness_section(findings),
        overfitting_section(findings),
        _not_judged(verdict),
        _judged(verdict),
        Section("How it was judged", [Text(text) for text in _method(findings)]),
    ]
    return Page(
        title=_QUESTIONS[findings.kind].format(label=findings.sample.label_name),
        subtitle=_sentence(findings.headline.removeprefix(f"{verdict.decision}: ")),
        decision=verdict.decision,
        facts=_facts(findings),
        sections=[section for section in sections if section.blocks],
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _facts(findings: Findings) -> list[tuple[str, object]]:
    sample = findings.sample
    facts: list[tuple[str, object]] = []
    for name, found in list(findings.overall.items())[:1]:
        facts.append(
            (
                f"{spoken(name)}, {words.level(findings.evaluation)} interval",
                words.estimate(found.candidate),
            )
        )
        if found.gain:
            facts.append((f"Gain in {spoken(name)}", words.estimate(found.gain, signed=True)))
    facts.append(("Compared with", _baseline(findings)))
    facts.append(("Rows judged", f"{sample.rows:,} of {sample.split}"))
    if len(sample.classes) == 2 and sample.rows:  # noqa: PLR2004
        facts.append((sample.classes[1], f"{sample.counts[1]:,} ({sample.counts[1] / sample.rows:.1%})"))
    elif sample.classes:
        facts.append(("Classes", f"{len(sample.classes):,}"))
    if findings.threshold is not None:
        facts.append(("Threshold", f"{findings.threshold:.4g}, from the {findings.threshold_from}"))
    left = {
        "Rows without a label": sample.unlabelled,
        "Rows of one model only": sample.unmatched,
        "Groups drawn together": sample.clusters,
    }
    facts += [(name, f"{count:,}") for name, count in left.items() if count]
    if sample.weighted:
        facts.append(("Weights", "rows count by their weight"))
    return facts


def _baseline(findings: Findings) -> str:
    baseline = findings.baseline
    if baseline is None:
        return "nothing: no model in production"
    return f"production, version {baseline.version}" if baseline.version else f"model {baseline.model[:12]}"


def _not_judged(verdict: Verdict) -> Section:
    entries = sorted(verdict.not_judged, key=lambda entry: not entry.decision)
    rows = [[entry.name, entry.decision or "told only", entry.reason] for entry in entries[:_LISTED]]
    more = len(entries) - len(rows)
    blocks: list[Block] = []
    if rows:
        title = f"{len(entries):,} {'thing was' if len(entries) == 1 else 'things were'} not judged"
        blocks.append(Dense(title, ["what", "decides", "why"], rows, noted=True, opened=len(rows) <= 12))  # noqa: PLR2004
    if more > 0:
        blocks.append(Text(f"{more:,} more are in verdict.json."))
    intro = "Asked for, or part of the data, and left out of the rules. What could not be judged is no pass."
    return Section("Not judged", blocks, intro=intro)


def _judged(verdict: Verdict) -> Section:
    rows = [[name, digest] for name, digest in verdict.judged.items()]
    rows.append(["verdict", verdict.digest])
    if verdict.baseline_version:
        rows.append(["baseline, registered version", verdict.baseline_version])
    intro = "SHA-256 of everything that this verdict is about. Another content has another digest."
    return Section("What was judged", [Table(["what", "digest"], rows)], intro=intro)


def _method(findings: Findings) -> list[str]:
    asked = findings.evaluation
    alpha = f"{50 * (1 - asked.confidence):.3g} %"
    texts = [
        "A rule holds where its whole interval lies on the good side of the limit, is broken where the whole "
        "interval lies on the bad side, and is inconclusive between: then the rows cannot tell, and the rows "
        "that probably could (power 80 %) are named. Sizes that noise only enlarges, such as a gap between "
        "slices, hold up to their limit and are broken where their interval lies beyond it.",
        "Not worse than production: the paired gain lies above minus the margin. Better than production: it "
        "lies above the smallest gain that was asked for.",
        f"Rules on slices: the chance that any slice is called broken that is not is {alpha} (Holm 1979).",
        "The decision is the worst of all rules: FAIL, then HOLD, then INCONCLUSIVE. Only PASS is a pass.",
    ]
    texts += interval_methods(findings)
    if findings.sample.clusters:
        clusters = f"{findings.sample.clusters:,} groups"
        texts.append(
            f"Rows of one {asked.cluster} were drawn together: {clusters}, not rows, carry the intervals."
        )
    return texts
