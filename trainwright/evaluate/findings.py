"""All that was found about one set of scores: what the page shows and the verdict stands on."""

from dataclasses import dataclass

from trainwright.evaluate.metrics import Performance, measure
from trainwright.evaluate.rules import GAP, Ruling, headline, rule_on, worst
from trainwright.evaluate.scores import Scores
from trainwright.evaluate.slices import Cut, cut_column
from trainwright.experiment import Evaluation


@dataclass(frozen=True)
class Findings:
    """The figures of a model, and what the rules say of them.

    Attributes:
        evaluation: What was asked.
        scores: The rows that were judged.
        performance: Figures over all of them.
        cuts: The slices of each column that was asked for.
        rulings: What each rule says.
    """

    evaluation: Evaluation
    scores: Scores
    performance: Performance
    cuts: tuple[Cut, ...]
    rulings: tuple[Ruling, ...]

    @property
    def decision(self) -> str:
        """The worst of the rulings."""
        return worst(ruling.decision for ruling in self.rulings)

    @property
    def headline(self) -> str:
        """What was decided and why, in one line."""
        return headline(self.rulings)

    def flatten(self) -> dict[str, float]:
        """Name every defined figure flatly, as Kubeflow and MLflow take them; all are finite."""
        whole = self.performance
        figures = {
            "auc": whole.auc.value,
            "auc_low": whole.auc.low,
            "auc_high": whole.auc.high,
            "log_loss": whole.log_loss,
            "brier": whole.brier,
            "calibration_error": whole.calibration.error.value,
            "accuracy": whole.accuracy.value,
            "precision": whole.precision.value if whole.precision else None,
            "recall": whole.recall.value,
        }
        for cut in self.cuts:
            figures |= _flatten_cut(cut)
        return {name: value for name, value in figures.items() if value is not None}


def _flatten_cut(cut: Cut) -> dict[str, float | None]:
    gap = f"{GAP.replace(' over ', '/').replace(' ', '_')}{cut.column}"
    figures: dict[str, float | None] = {gap: cut.gap.size.value if cut.gap else None}
    for entry in cut.slices:
        place = f"slice/{cut.column}/{entry.name}"
        figures[f"{place}/rows"] = float(entry.rows)
        figures[f"{place}/recall"] = entry.recall.value if entry.recall else None
        figures[f"{place}/auc"] = entry.auc.value if entry.auc else None
    return figures


def examine(scores: Scores, evaluation: Evaluation) -> Findings:
    """Measure scores overall and slice by slice, and apply every rule.

    Raises:
        InputError: A column cannot be cut into slices.
    """
    threshold, min_positives = evaluation.threshold, evaluation.min_positives
    performance = measure(scores.label, scores.score, threshold=threshold)
    cuts = tuple(
        cut_column(scores.label, scores.score, column, name, threshold=threshold, min_positives=min_positives)
        for name, column in scores.columns.items()
    )
    rulings = tuple(rule_on(performance, cuts, evaluation))
    return Findings(evaluation, scores, performance, cuts, rulings)
