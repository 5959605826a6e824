"""Which rules apply to a kind of label; one that nothing answers to is an error, and never left out."""

from trainwright.errors import InputError
from trainwright.evaluate.findings import Kind
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import ModelRule
from trainwright.experiment.metrics import known, names_for

WHERE = "evaluation.rules"


def rules_of(evaluation: Evaluation, kind: Kind) -> tuple[ModelRule, ...]:
    """Return the rules that apply: those given, or for two classes that the AUC is above chance.

    Raises:
        InputError: There is no rule at all, or one names a metric that this kind does not have.
    """
    _require_defined(evaluation, kind)
    rules = evaluation.all_rules
    limited = evaluation.max_calibration_error is not None or evaluation.fairness
    if not rules and kind == "binary":
        rules = (ModelRule(metric="auc", at_least=0.5),)
    elif not rules and not limited:
        raise InputError(
            f"no rule says what a model of kind {kind} must reach",
            where=WHERE,
            hint=f"Give a rule on one of {', '.join(names_for(kind))}.",
        )
    for rule in rules:
        metric = known(rule.metric)
        if metric is None or kind not in metric.kinds:
            raise InputError(
                f"{rule.metric} is not defined for a model of kind {kind}",
                where=WHERE,
                hint=f"Take one of {', '.join(names_for(kind))}.",
            )
    return rules


def _require_defined(evaluation: Evaluation, kind: Kind) -> None:
    """Refuse a limit that this kind has no figure for: left out, it would look as if it held."""
    gaps = evaluation.max_recall_gap is not None or bool(evaluation.recall_gaps)
    calibrated = evaluation.max_calibration_error is not None
    wrong = [
        *(["max_recall_gap"] if gaps and kind != "binary" else []),
        *(["max_calibration_error"] if calibrated and kind not in ("binary", "multiclass") else []),
    ]
    if wrong:
        raise InputError(f"{' and '.join(wrong)} is not defined for a model of kind {kind}", where=WHERE)
