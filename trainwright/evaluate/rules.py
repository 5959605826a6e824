"""Apply the rules of the section `evaluation` to measured metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trainwright.errors import InputError
from trainwright.evaluate.findings import (
    ComparedMetric,
    Disparity,
    GroupComparison,
    Kind,
    Ruling,
    Sample,
    Slice,
    Slicing,
)
from trainwright.evaluate.slices import MIN_UNITS, class_too_small, smallest_count
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import LOWER, ModelRule, find_metric, names_for
from trainwright.experiment.evaluation import Fairness as Limits
from trainwright.significance import Estimate, beyond, holm, rows_needed
from trainwright.verdicts import ABOVE, BELOW, RATIO, SEVERITY, SIZE, UP_TO, NotJudged, Rule, worst

RULES_SECTION = "evaluation.rules"


def rules_of(evaluation: Evaluation, kind: Kind) -> tuple[ModelRule, ...]:
    """Return the rules that apply: those given, or for two classes that the AUC is above chance.

    Raises:
        InputError: There is no rule at all, or one names a metric that this kind does not have.
    """
    _require_limits_defined(evaluation, kind)
    rules = evaluation.all_rules
    limited = evaluation.max_calibration_error is not None or evaluation.fairness
    if not rules and kind == "binary":
        rules = (ModelRule(metric="auc", at_least=0.5),)
    elif not rules and not limited:
        raise InputError(
            f"no rule says what a model of kind {kind} must reach",
            where=RULES_SECTION,
            hint=f"Give a rule on one of {', '.join(names_for(kind))}.",
        )
    for rule in rules:
        metric = find_metric(rule.metric)
        if metric is None or kind not in metric.kinds:
            raise InputError(
                f"{rule.metric} is not defined for a model of kind {kind}",
                where=RULES_SECTION,
                hint=f"Take one of {', '.join(names_for(kind))}.",
            )
    return rules


def _require_limits_defined(evaluation: Evaluation, kind: Kind) -> None:
    """Refuse a limit that this kind has no figure for: left out, it would look as if it held."""
    gaps = evaluation.max_recall_gap is not None or bool(evaluation.recall_gaps)
    calibrated = evaluation.max_calibration_error is not None
    wrong = [
        *(["max_recall_gap"] if gaps and kind != "binary" else []),
        *(["max_calibration_error"] if calibrated and kind not in ("binary", "multiclass") else []),
    ]
    if wrong:
        raise InputError(
            f"{' and '.join(wrong)} is not defined for a model of kind {kind}", where=RULES_SECTION
        )


_SIGNS = {
    ABOVE: (">", "<="),
    BELOW: ("<", ">="),
    UP_TO: ("<=", ">"),
    SIZE: ("of", ">"),
    RATIO: ("of", "<"),
}
_SHORT = {"auc": "AUC", "mae": "MAE", "rmse": "RMSE", "r2": "R2", "f1": "F1"}


@dataclass(frozen=True)
class RuleTerms:
    """Terms by which an estimate is judged.

    Attributes:
        limit: What it is held against.
        test: One of :data:`trainwright.verdicts.TESTS`.
        confidence: Of its interval.
        broken: FAIL or HOLD: what it decides where the limit is surely broken.
        unsure: INCONCLUSIVE, or PASS where it is only to find harm.
    """

    limit: float
    test: str
    confidence: float
    broken: str = "FAIL"
    unsure: str = "INCONCLUSIVE"

    @property
    def level(self) -> float:
        """The one-sided chance of a wrong claim that is accepted."""
        return (1 - self.confidence) / 2


def metric_title(metric: str) -> str:
    """Name a metric as a reader would: ``AUC``, ``log loss``, ``recall of class 2``."""
    base, _, number = metric.partition("/")
    named = _SHORT.get(base, base.replace("_", " "))
    return f"{named} of class {number}" if number else named


def judge_estimate(
    name: str, found: Estimate, rows: int, terms: RuleTerms, *, detail: str = "", p_value: float | None = None
) -> tuple[Rule, tuple[NotJudged, ...]]:
    """Judge one number.

    Args:
        name: What it is.
        found: The number with its interval.
        rows: Rows that it was taken over.
        terms: How it is judged.
        detail: What else a reader needs to know.
        p_value: Of being beyond the limit, adjusted for others; calculated for this one alone if None.

    Returns:
        The rule, and what it leaves undecided.
    """
    chance = tail_probability(found, terms) if p_value is None else p_value
    level = max(terms.level, 1e-9) if p_value is not None else 1.0
    drawn = Rule(
        name=name,
        value=found.value,
        limit=terms.limit,
        passed=False,
        test=terms.test,
        interval=(found.low, found.high),
        broken=terms.broken,
        unsure=terms.unsure,
        p_value=chance,
        level=level,
    )
    decision = drawn.outcome()
    left = _undecided(drawn, found, rows, terms)
    told = f"{decision}; {terms.confidence:.0%} interval {found.low:.4f} to {found.high:.4f}"
    rule = replace(
        drawn,
        decision=decision,
        passed=decision == "PASS",
        detail="; ".join(part for part in (told, detail) if part),
        needed=left[0].needed if left else 0,
    )
    return rule, left


def tail_probability(found: Estimate, terms: RuleTerms) -> float:
    """Return the one-sided chance of a number this far on the wrong side, if the truth were at the limit."""
    chance = beyond(found, terms.limit, terms.confidence)
    wrong = found.value < terms.limit if terms.test in (ABOVE, RATIO) else found.value > terms.limit
    return chance if wrong else 1 - chance


def _undecided(rule: Rule, found: Estimate, rows: int, terms: RuleTerms) -> tuple[NotJudged, ...]:
    holds = replace(rule, unsure="INCONCLUSIVE").outcome()
    if holds != "INCONCLUSIVE":
        return ()
    tests = 1.0
    if terms.test in (SIZE, RATIO):
        reason = (
            f"{found.value:.4f} is beyond {terms.limit:.4f}, but may be by chance: "
            f"its interval is {found.low:.4f} to {found.high:.4f}"
        )
    elif found.low <= terms.limit <= found.high:
        reason = f"the interval {found.low:.4f} to {found.high:.4f} holds the limit {terms.limit:.4f}"
    else:
        reason = f"beyond the limit {terms.limit:.4f}, but among so many slices it may be by chance"
        alone = tail_probability(found, terms)
        tests = max(1.0, rule.p_value / alone) if alone > 0 else 1.0  # as Holm counted them here
    needed = rows_needed(found, terms.limit, rows, terms.confidence, tests=tests)
    if needed > rows:
        reason += f"; about {needed:,} rows like these {rows:,} would tell"
    decision = "" if terms.unsure == "PASS" else terms.unsure
    return (NotJudged(name=rule.name, reason=reason, decision=decision, needed=needed),)


def fact_line(name: str, rule: Rule, ends: str = "") -> str:
    """Say a number and its limit in a few words."""
    outcome = replace(rule, broken="FAIL", unsure="INCONCLUSIVE").outcome()
    beside = f": {ends}" if ends and outcome != "PASS" else ""
    if rule.test in (SIZE, RATIO):
        sign = _SIGNS[rule.test][outcome != "PASS"]
        return f"{name} {rule.value:.3f} {sign} {rule.limit:.3f}{beside}"
    sign = {"PASS": _SIGNS[rule.test][0], "FAIL": _SIGNS[rule.test][1]}.get(outcome, "around")
    number = Estimate(rule.value, *rule.interval)
    return f"{name} {number} {sign} {rule.limit:.3f}{beside}"


def rule_on(
    name: str, found: Estimate, rows: int, terms: RuleTerms, *, kind: str = "absolute", ends: str = ""
) -> Ruling:
    """Judge one number over all rows, as a ruling."""
    rule, left = judge_estimate(name, found, rows, terms, detail=ends)
    return Ruling(name, rule.decision, fact_line(name, rule, ends), (rule,), left, kind)


def not_judged_ruling(name: str, reason: str, *, kind: str = "absolute", scope: str = "overall") -> Ruling:
    """Say that something that was asked for cannot be judged: that is no pass."""
    left = NotJudged(name=name, reason=reason, decision="INCONCLUSIVE")
    return Ruling(name, "INCONCLUSIVE", f"{name} not judged", (), (left,), kind, scope)


def slice_ruling(
    name: str, judged: Sequence[tuple[Rule, tuple[NotJudged, ...]]], more: Sequence[NotJudged], kind: str
) -> Ruling:
    """Put the rules on many slices into one ruling, the worst first."""
    rules = sorted((rule for rule, _ in judged), key=_gravest)
    left = (*(entry for _, entries in judged for entry in entries), *more)
    said = [entry.decision for entry in left if entry.decision]
    if not rules:
        return Ruling(name, worst(said), f"{name}: no slice is judged", (), left, kind, "slice")
    decision = worst([*(rule.decision for rule in rules), *said])
    alike = sum(1 for rule in rules if rule.decision == rules[0].decision)
    told = f"{fact_line(rules[0].name, rules[0])}, the worst of {len(rules)} slices"
    if decision != "PASS" and alike > 1:
        told = f"{fact_line(rules[0].name, rules[0])}, the worst of {alike} such slices"
    return Ruling(name, decision, told, tuple(rules), left, kind, "slice")


def _gravest(rule: Rule) -> tuple[int, float, str]:
    towards = rule.value - rule.limit if rule.test in (ABOVE, RATIO) else rule.limit - rule.value
    return -SEVERITY.index(rule.decision), towards, rule.name


@dataclass(frozen=True)
class MeasuredEvaluation:
    """Measured values that rules apply to; fields as in :class:`trainwright.evaluate.findings.Findings`."""

    evaluation: Evaluation
    kind: Kind
    sample: Sample
    compared: bool
    overall: dict[str, ComparedMetric]
    cuts: tuple[Slicing, ...]
    fairness: GroupComparison | None
    gaps: dict[str, Disparity]
    overfitting: dict[str, Estimate]
    fitted: Sample | None
    """The rows that it was fitted on; None where they were not scored."""
    unscored: str = ""
    """The version in production, if there is one and there are no predictions of it."""

    @property
    def confidence(self) -> float:
        """Of every interval."""
        return self.evaluation.confidence


def rulings(figures: MeasuredEvaluation, rules: Sequence[ModelRule]) -> tuple[Ruling, ...]:
    """Apply every rule, and every limit of the section."""
    return tuple(_rulings(figures, rules))


def _rulings(figures: MeasuredEvaluation, rules: Sequence[ModelRule]) -> Iterator[Ruling]:
    compares = [rule for rule in rules if rule.kind != "absolute"]
    limits = figures.evaluation.fairness
    for rule in rules:
        if rule.kind == "absolute" or figures.compared:
            yield _on_slices(figures, rule) if rule.scope == "slice" else _on_whole(figures, rule)
    if not figures.compared and (compares or (limits and limits.worsening)):
        yield _without_baseline(figures, compares, limits)
    yield from _short_limits(figures)
    if limits and figures.fairness:
        yield from _fairness_rulings(figures, limits, figures.fairness)
    if figures.evaluation.overfitting:
        yield _overfitting_ruling(figures)
    if figures.evaluation.small_slices != "warn" and (ruling := _small_slices_ruling(figures)):
        yield ruling


def _without_baseline(
    figures: MeasuredEvaluation, rules: Sequence[ModelRule], limits: Limits | None
) -> Ruling:
    """Say what follows where rules need a baseline and there is none: what the section says."""
    policy = figures.evaluation.missing_baseline
    told = "there is no baseline to compare with"
    if figures.unscored:
        told = f"version {figures.unscored} is in production, and could not score these rows"
        policy = "hold" if policy == "bootstrap" else policy  # this is not the first model
    decision = {"fail": "FAIL", "hold": "HOLD", "bootstrap": "PASS"}[policy]
    asked = [f"{metric_title(rule.metric)} against the baseline" for rule in rules]
    asked += [f"worsening of {name.replace('_', ' ')}" for name in (limits.worsening if limits else ())]
    if policy == "bootstrap":
        told = "no baseline: the first model, as missing_baseline says"
    rule = Rule(
        name="baseline", value=0.0, limit=1.0, passed=decision == "PASS", detail=told, decision=decision
    )
    left = tuple(NotJudged(name=name, reason="there is no baseline") for name in asked)
    return Ruling("baseline", decision, told, (rule,), left, "baseline")


def _terms(figures: MeasuredEvaluation, rule: ModelRule) -> RuleTerms:
    metric = find_metric(rule.metric)
    below = rule.kind == "absolute" and metric is not None and metric.better == LOWER
    return RuleTerms(
        limit=-rule.limit if rule.kind == "non_inferiority" else rule.limit,
        test=BELOW if below else ABOVE,
        confidence=figures.confidence,
        broken=rule.broken.upper(),
        unsure="PASS" if rule.undecided == "warn" else "INCONCLUSIVE",
    )


def _named(rule: ModelRule) -> str:
    return metric_title(rule.metric) if rule.kind == "absolute" else f"{metric_title(rule.metric)} gain"


def _number(found: ComparedMetric | None, rule: ModelRule) -> Estimate | None:
    if found is None:
        return None
    return found.candidate if rule.kind == "absolute" else found.gain


def _on_whole(figures: MeasuredEvaluation, rule: ModelRule) -> Ruling:
    name, sample = _named(rule), figures.sample
    found = figures.overall.get(rule.metric)
    if found is None and rule.metric != "coverage" and "/" not in rule.metric:
        raise InputError(f"{rule.metric} is not measured for these predictions", where=RULES_SECTION)
    number = _number(found, rule)
    if number is None:
        return not_judged_ruling(
            name, f"{metric_title(rule.metric)} is not defined on these rows", kind=rule.kind
        )
    fewest, what = smallest_count(figures.kind, sample, rule.metric, figures.evaluation.cluster)
    if fewest < MIN_UNITS:
        reason = f"{fewest:,} {what}; its interval needs {MIN_UNITS} of each"
        ruling = not_judged_ruling(name, reason, kind=rule.kind)
        return Ruling(ruling.name, ruling.decision, f"{name} {number.value:.3f} of too few rows",
                      (), ruling.undecided, rule.kind)  # fmt: skip
    return rule_on(name, number, sample.rows, _terms(figures, rule), kind=rule.kind)


def _on_slices(figures: MeasuredEvaluation, rule: ModelRule) -> Ruling:
    """Judge every slice that is large enough; to claim that one is broken, allow for all (Holm)."""
    wanted = [cut for cut in figures.cuts if not rule.by or set(cut.columns) <= set(rule.by)]
    parts = [(cut, entry) for cut in wanted for entry in cut.judged]
    name = f"{_named(rule)} by {', '.join(cut.name for cut in wanted)}"
    if not parts:
        return not_judged_ruling(name, "no slice has rows enough to be judged", kind=rule.kind, scope="slice")
    if not any(rule.metric in entry.figures for _, entry in parts):
        raise InputError(
            f"{rule.metric} is not measured slice by slice",
            where=RULES_SECTION,
            hint=f"Take one of {', '.join(parts[0][1].figures)}, or scope: overall.",
        )
    terms = _terms(figures, rule)
    numbers = [(_place(rule, cut, entry), entry, _number(entry.figures[rule.metric], rule))
               for cut, entry in parts]  # fmt: skip
    small = {
        place: class_too_small(rule.metric, entry, figures.evaluation.min_positives)
        for place, entry, _ in numbers
    }
    numbers = [parts for parts in numbers if not small[parts[0]]]
    defined = [(place, entry, number) for place, entry, number in numbers if number]
    chances = holm([tail_probability(number, terms) for _, _, number in defined])
    judged = [
        judge_estimate(place, number, entry.rows, terms, p_value=chance)
        for (place, entry, number), chance in zip(defined, chances, strict=True)
    ]
    decision = "" if rule.undecided == "warn" else "INCONCLUSIVE"
    left = [
        NotJudged(name=place, reason="not defined on these rows", decision=decision)
        for place, _, number in numbers
        if number is None
    ]
    policy = {"warn": "", "hold": "HOLD", "block": "FAIL"}[figures.evaluation.small_slices]
    left += [NotJudged(name=place, reason=why, decision=policy) for place, why in small.items() if why]
    return slice_ruling(name, judged, left, rule.kind)


def _place(rule: ModelRule, cut: Slicing, entry: Slice) -> str:
    return f"{_named(rule)} of {cut.name} {entry.name}"


def _short_limits(figures: MeasuredEvaluation) -> Iterator[Ruling]:
    """Judge the limits that the section has fields for: gaps of recall, and the calibration error."""
    evaluation = figures.evaluation
    for column, gap in figures.gaps.items():
        limit = evaluation.recall_gap(column)
        if limit is None:
            continue
        name = f"recall gap over {column}"
        if gap.value is None:
            yield not_judged_ruling(name, gap.reason, kind="fairness")
        else:
            terms = RuleTerms(limit, SIZE, figures.confidence, "HOLD")
            yield rule_on(name, gap.value, figures.sample.rows, terms, kind="fairness", ends=_ends(gap))
    if evaluation.max_calibration_error is not None:
        error = figures.overall["calibration_error"].candidate
        terms = RuleTerms(evaluation.max_calibration_error, SIZE, figures.confidence, "HOLD")
        if error is None:
            yield not_judged_ruling("calibration error", "it is not defined on these rows")
        else:
            yield rule_on("calibration error", error, figures.sample.rows, terms)


def _ends(gap: Disparity) -> str:
    """Name the groups at both ends so that no name is taken for a number: ``EWR 0.5``, ``hour 6 0.5``."""
    names = (gap.lowest, gap.highest)
    spoken_names = [name if name[:1].isalpha() else f"{gap.columns[0]} {name}" for name in names]
    return ", ".join(f"{name} {rate:.3f}" for name, rate in zip(spoken_names, gap.rates, strict=True))


def _fairness_rulings(
    figures: MeasuredEvaluation, limits: Limits, fairness: GroupComparison
) -> Iterator[Ruling]:
    for found in fairness.disparities:
        name = f"{found.measure.replace('_', ' ')} by {' and '.join(found.columns)}"
        for limit, number, kind in (
            (limits.limits.get(found.measure), found.value, "fairness"),  # type: ignore[call-overload]
            (limits.worsening.get(found.measure), found.worsening, "worsening"),  # type: ignore[call-overload]
        ):
            if limit is None or (kind == "worsening" and not figures.compared):
                continue
            named = name if kind == "fairness" else f"worsening of {name}"
            if number is None:
                yield not_judged_ruling(named, found.reason or "it is not defined", kind=kind)
                continue
            test = RATIO if found.measure == "selection_rate_ratio" else SIZE
            test = UP_TO if kind == "worsening" else test
            terms = RuleTerms(limit, test, figures.confidence, limits.broken.upper())
            yield rule_on(named, number, figures.sample.rows, terms, kind=kind, ends=_ends(found))
    groupings = set(limits.groupings)
    for metric, least in limits.group_minimum.items():
        yield _group_minimum(figures, metric, least, groupings, limits.broken.upper())


def _group_minimum(
    figures: MeasuredEvaluation, metric: str, least: float, groupings: set[tuple[str, ...]], broken: str
) -> Ruling:
    name, terms = (
        f"{metric_title(metric)} of every group",
        RuleTerms(least, ABOVE, figures.confidence, broken),
    )
    found = [
        (f"{metric_title(metric)} of {cut.name} {entry.name}", entry)
        for cut in figures.cuts
        if cut.columns in groupings
        for entry in cut.judged
        if metric in entry.figures
    ]
    small = {
        place: class_too_small(metric, entry, figures.evaluation.min_positives) for place, entry in found
    }
    parts = [
        (place, entry.rows, entry.figures[metric].candidate) for place, entry in found if not small[place]
    ]
    defined = [(place, rows, number) for place, rows, number in parts if number]
    if not defined:
        return not_judged_ruling(
            name, "no group has rows enough to be judged", kind="fairness", scope="slice"
        )
    chances = holm([tail_probability(number, terms) for _, _, number in defined])
    judged = [
        judge_estimate(place, number, rows, terms, p_value=chance)
        for (place, rows, number), chance in zip(defined, chances, strict=True)
    ]
    left = [
        NotJudged(name=place, reason="not defined on these rows", decision="INCONCLUSIVE")
        for place, _, number in parts
        if number is None
    ]
    left += [NotJudged(name=place, reason=why) for place, why in small.items() if why]
    return slice_ruling(name, judged, left, "fairness")


def _overfitting_ruling(figures: MeasuredEvaluation) -> Ruling:
    asked = figures.evaluation.overfitting
    if asked is None:
        raise InputError("no limit on overfitting", where="evaluation.overfitting")
    name, gap = f"{metric_title(asked.metric)} overfitting", figures.overfitting.get(asked.metric)
    if figures.fitted is None:
        reason = f"split {asked.split!r} was not scored: name it in training.predict"
        return not_judged_ruling(name, reason, kind="overfitting")
    both, cluster = (figures.sample, figures.fitted), figures.evaluation.cluster
    fewest, what = min(smallest_count(figures.kind, sample, asked.metric, cluster) for sample in both)
    if gap is None or fewest < MIN_UNITS:
        reason = f"{fewest:,} {what}; its interval needs {MIN_UNITS} of each" if gap else "it is not defined"
        return not_judged_ruling(name, reason, kind="overfitting")
    terms = RuleTerms(asked.at_most, UP_TO, figures.confidence, "HOLD")
    return rule_on(name, gap, min(sample.rows for sample in both), terms, kind="overfitting")


def _small_slices_ruling(figures: MeasuredEvaluation) -> Ruling | None:
    decision = "HOLD" if figures.evaluation.small_slices == "hold" else "FAIL"
    small = [
        NotJudged(name=f"{cut.name} = {entry.name}", reason=entry.reason, decision=decision)
        for cut in figures.cuts
        for entry in cut.slices
        if entry.reason
    ]
    told = f"{len(small)} slices are too small to be judged"
    return Ruling("small slices", decision, told, (), tuple(small), scope="slice") if small else None
