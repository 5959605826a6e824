"""What an evaluation leaves for comparing and for the card: every figure, and the words about them."""

from collections.abc import Callable
from pathlib import Path

from tests.evaluate.conftest import Group, Step, rows_of
from tests.evaluate.made_findings import DIGEST, made, made_fairness, verdict_on
from trainwright.evaluate.comparison import MeasuredMetrics as Compared
from trainwright.evaluate.findings import MeasuredMetrics
from trainwright.evaluate.summary import draw_card, measured_metrics, write_model_card_inputs
from trainwright.report.markdown import merge_cards, read_card

CARRIERS = (("carrier",), [f"C{index:02}" for index in range(14)])
TRAINED = "# Probability of late\n\nA multilayer perceptron.\n\n## Data\n\nRows.\n\n## Use\n\nLoad it.\n"


def test_every_figure_is_in_the_document_with_its_interval_and_its_better_side(tmp_path: Path) -> None:
    findings = made(slices=[CARRIERS], fairness=made_fairness([("sex",)], 3, baseline=True))
    write_model_card_inputs(tmp_path, findings, verdict_on(findings))
    measured = MeasuredMetrics.read(tmp_path)
    assert (measured.rows_digest, measured.rows, measured.kind) == (DIGEST, 28_618, "binary")
    found = {entry.name: entry for entry in measured.measures}
    assert next(iter(found)) == "auc"
    assert (found["auc"].interval, found["auc"].better) == ((0.701, 0.721), "higher")
    assert found["log_loss"].better == "lower"
    assert found["slice/carrier/C03/rows"].value == 1_003
    assert found["fairness/sex/equal_opportunity"].better == "lower"
    overall, detailed = findings.metrics, findings.details
    assert {"auc", "log_loss"} <= overall.keys() - detailed.keys()
    assert {"auc_low", "auc_high", "slice/carrier/C03/rows", "fairness/sex/equal_opportunity"} <= (
        detailed.keys() - overall.keys()
    )
    flat = overall | detailed
    assert {name: entry.value for name, entry in found.items()} == {
        name: value
        for name, value in flat.items()
        if not name.endswith(("_low", "_high")) and not name.startswith(("baseline/", "gain/"))
    }


def test_compare_reads_what_evaluate_writes() -> None:
    assert Compared is MeasuredMetrics
    assert measured_metrics(made(), verdict_on(made())).predictions == DIGEST


def test_the_card_says_the_decision_the_figures_the_worst_slices_and_what_was_left_out() -> None:
    findings = made(
        decision="HOLD", slices=[CARRIERS], small=2, fairness=made_fairness([("sex",)], 3, baseline=True)
    )
    verdict = verdict_on(findings)
    parts = {part.heading: part.text for part in read_card(draw_card(findings, verdict))[2]}
    assert list(parts) == ["Evaluation", "Evaluation data", "Figures", "Slices", "Fairness", "Not judged"]
    assert parts["Figures"].startswith("95 % intervals. A score of at least ")
    assert parts["Evaluation"].startswith("**HOLD.**")
    assert verdict.digest in parts["Evaluation"]
    assert all(digest in parts["Evaluation data"] for digest in verdict.judged.values())
    assert (
        "| AUC | 0.711 [0.701, 0.721] | 0.697 [0.687, 0.707] | +0.014 [+0.009, +0.019] |" in parts["Figures"]
    )
    assert parts["Slices"].index("C11") < parts["Slices"].index("C10")
    assert "2 more are too small to be judged" in parts["Slices"]
    assert "carrier = C12" in parts["Not judged"]


def test_the_registry_shows_one_card_with_the_decision_first() -> None:
    findings = made()
    title, lead, parts = read_card(merge_cards(TRAINED, draw_card(findings, verdict_on(findings))))
    assert (title, lead) == ("Probability of late", "A multilayer perceptron.")
    assert [part.heading for part in parts] == ["Evaluation", "Data", "Evaluation data", "Figures", "Use"]


def test_names_from_data_are_text_in_the_card() -> None:
    findings = made(slices=[(("origin",), ["<script>x</script>|"])], warnings=("<b>|",))
    card = draw_card(findings, verdict_on(findings))
    assert "<script" not in card
    assert "<b>" not in card


def test_summary_and_page_name_the_same_rows_needed_for_the_worst_slice(written: Callable[..., Step]) -> None:
    """Two slices are undecided; the worse one is larger off its limit, and needs fewer rows."""
    groups = (Group("north", 200, 128, 200, 20), Group("south", 200, 136, 200, 20))
    step = written(rows_of(groups))
    rule = {"metric": "recall", "at_least": 0.7, "scope": "slice"}
    found = step.judge(slices=["origin"], rules=[rule])
    worst, other = found.rulings[0].rules
    assert worst.name == "recall of origin north"
    assert 0 < worst.needed < other.needed
    line = next(
        row
        for row in (step.folder / "summary.md").read_text().splitlines()
        if row.startswith(f"| {worst.name}")
    )
    assert f"| {worst.needed:,} | INCONCLUSIVE |" in line
    assert (
        f"About {other.needed:,} rows of a slice would decide every slice of recall by origin."
        in (step.folder / "summary.md").read_text()
    )
