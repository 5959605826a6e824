"""The evaluation's page: the decision and its rules first, then the scores, then slice by slice."""

from trainwright.artifacts import Verdict
from trainwright.evaluate.figures import draw_scores, draw_slices, drawn_columns
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.rules import MIN_ROWS
from trainwright.report.page import Page, Section, Table, Text


def draw(findings: Findings, verdict: Verdict) -> Page:
    """Draw the page: the decision and its rules, the scores, every slice, and what was not judged."""
    asked, drawn = findings.evaluation, drawn_columns(findings.cuts)
    sections = [
        _rules(findings),
        Section("Scores", draw_scores(findings)),
        *(
            Section(f"By {cut.column}", draw_slices(cut, asked, drawn=cut.column in drawn), intro=cut.summary)
            for cut in findings.cuts
        ),
        _not_judged(verdict),
        Section("How it was judged", [Text(text) for text in _METHOD]),
    ]
    return Page(
        title=f"Does the model predict {findings.scores.label_name!r} well enough?",
        subtitle=_sentence(findings.headline.removeprefix(f"{verdict.decision}: ")),
        decision=verdict.decision,
        facts=_facts(findings, verdict),
        sections=[section for section in sections if section.blocks],
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _facts(findings: Findings, verdict: Verdict) -> list[tuple[str, object]]:
    scores, performance = findings.scores, findings.performance
    share = scores.positives / scores.rows
    return [
        ("AUC, 95 % interval", performance.auc),
        ("Rows judged", f"{scores.rows:,}"),
        (f"{scores.label_name} = 1", f"{scores.positives:,} ({share:.1%})"),
        ("Rows without a label", f"{scores.unlabelled:,}"),
        ("Split", findings.evaluation.split),
        ("Brier score", f"{performance.brier:.3f} (base rate {performance.brier_of_base_rate:.3f})"),
        ("Log loss", f"{performance.log_loss:.3f}"),
        ("Predictions", verdict.judged["predictions"][:12]),
    ]


def _rules(findings: Findings) -> Section:
    rows = [
        [
            ruling.name,
            f"{ruling.estimate.value:.3f}" if ruling.estimate else "-",
            ruling.estimate.interval if ruling.estimate else "-",
            f"{'>' if ruling.name == 'AUC' else '≤'} {ruling.limit:.3f}",
            ruling.decision,
            ruling.reason or ruling.detail,
        ]
        for ruling in findings.rulings
    ]
    flagged = [index for index, ruling in enumerate(findings.rulings) if ruling.decision != "PASS"]
    header = ["rule", "value", "95 % interval", "limit", "result", "detail"]
    return Section("Rules", [Table(header, rows, numeric=(1, 2, 3), flagged=flagged)])


def _not_judged(verdict: Verdict) -> Section:
    rows = [[entry.name, entry.reason] for entry in verdict.not_judged]
    blocks = [Table(["what", "why"], rows)] if rows else []
    return Section("Not judged", blocks, intro="Asked for, or part of the data, and left out of the rules.")


_METHOD = (
    "AUC: passes if the 95 % interval (DeLong, on the scale of log-odds) lies above the limit, fails if it "
    "lies below, and is inconclusive otherwise, and with fewer than "
    f"{MIN_ROWS} rows of either label.",
    "Recall gap: the largest difference of recall between slices with enough positives (equal opportunity, "
    "Hardt et al. 2016). It passes within its limit. Above it, the model is held if the interval, which "
    "allows for every pair of slices (Newcombe, Bonferroni), begins above the limit too; else it may be "
    "chance, and is inconclusive. The calibration error is judged in the same way.",
    "The decision is the worst of all rules: FAIL, then HOLD, then INCONCLUSIVE. Intervals of single rates "
    "are Wilson's.",
)
