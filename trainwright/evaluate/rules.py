"""Apply the rules of the section `evaluation` to measured metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from trainwright.errors import InputError
from trainwright.evaluate.findings import (
    MIN_UNITS,
    ComparedMetric,
    Disparity,
    Findings,
    Kind,
    Ruling,
    Sample,
    Slice,
)
from trainwright.evaluate.formatting import decimals
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import (
    LOWER,
    ModelRule,
    Overfitting,
    find_metric,
    name_class,
    names_for,
)
from trainwright.experiment.evaluation import Fairness as Limits
from trainwright.significance import Estimate, beyond, holm, rows_needed
from trainwright.verdicts import (
    ABOVE,
    AT_LEAST,
    BASELINE,
    BELOW,
    RATIO,
    SEVERITY,
    SIZE,
    UP_TO,
    NotJudged,
    Rule,
    worst,
)

RULES_SECTION = "evaluation.rules"


def require_defined(evaluation: Evaluation, kind: Kind, classes: Sequence[str]) -> Evaluation:
    """Return the section with every metric of one class under the class's name, not its number.

    Raises:
        InputError: Nothing can refuse a model, or a rule names a metric that this kind does not have, or a
            class that does not exist.
    """
    if problems := evaluation.undefined_for(kind):
        raise InputError(
            "; ".join(problems), where="evaluation", hint=f"Take one of {', '.join(names_for(kind))}."
        )
    limits = (evaluation.max_calibration_error, evaluation.fairness, evaluation.overfitting)
    if evaluation.constant_prediction == "warn" and not evaluation.all_rules and not any(limits):
        raise InputError(
            f"no rule says what a model of kind {kind} must reach, and constant_prediction is warn",
            where=RULES_SECTION,
            hint=f"Give a rule on one of {', '.join(names_for(kind))}, or let constant_prediction fail.",
        )
    return _with_names(evaluation, kind, classes)


OVERFITTING = {"binary": "auc", "multiclass": "macro_auc", "regression": "rmse", "language_model": "loss"}
"""Metric of a limit on overfitting that names none, by kind."""


def _with_names(evaluation: Evaluation, kind: Kind, classes: Sequence[str]) -> Evaluation:
    changed: dict[str, object] = {
        "rules": tuple(
            rule.model_copy(update={"metric": _named(rule.metric, classes, RULES_SECTION)})
            for rule in evaluation.rules
        )
    }
    if fairness := evaluation.fairness:
        where = "evaluation.fairness.group_minimum"
        least = {_named(name, classes, where): limit for name, limit in fairness.group_minimum.items()}
        changed["fairness"] = fairness.model_copy(update={"group_minimum": least})
    if over := evaluation.overfitting:
        metric = _named(over.metric or OVERFITTING[kind], classes, "evaluation.overfitting.metric")
        changed["overfitting"] = over.model_copy(update={"metric": metric})
    return evaluation.model_copy(update=changed)


def _named(metric: str, classes: Sequence[str], where: str) -> str:
    """Return a metric with the name of its class, or raise InputError with the name that was meant."""
    if found := name_class(metric, classes):
        return found
    base, _, of_class = metric.partition("/")
    close = get_close_matches(of_class, classes, 1)
    meant = f"Did you mean {base}/{close[0]}? " if close else ""
    raise InputError(
        f"{metric} names class {of_class!r}, which does not exist",
        where=where,
        hint=f"{meant}The classes are {', '.join(classes[:20])}.",
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
    """Limit, test, and the decisions where the limit is surely broken and where the rows cannot tell.

    ``unsure`` is PASS for a rule that is only to find harm.
    """

    limit: float
    test: str
    confidence: float
    broken: str = "FAIL"
    unsure: str = "INCONCLUSIVE"

    def tail_probability(self, found: Estimate) -> float:
        """Return the one-sided p-value of a number this far on the wrong side of the limit."""
        chance = beyond(found, self.limit, self.confidence)
        low_is_wrong = self.test in (ABOVE, RATIO)
        wrong = found.value < self.limit if low_is_wrong else found.value > self.limit
        return chance if wrong else 1 - chance


def metric_title(metric: str) -> str:
    """Name a metric as a reader would: ``AUC``, ``log loss``, ``recall of class 2``, ``recall of setosa``."""
    base, _, of_class = metric.partition("/")
    named = " ".join(_SHORT.get(word, word) for word in base.split("_"))
    return f"{named} of {_class_title(of_class)}" if of_class else named


def judge_estimate(
    name: str, found: Estimate, rows: int, terms: RuleTerms, *, detail: str = "", p_value: float | None = None
) -> tuple[Rule, tuple[NotJudged, ...]]:
    """Judge one number over ``rows`` rows; return the rule, and what it leaves undecided.

    ``p_value`` is that of being beyond the limit, adjusted for other slices; None for a number alone.
    """
    drawn = Rule(
        name=name,
        value=found.value,
        limit=terms.limit,
        test=terms.test,
        interval=(found.low, found.high),
        broken=terms.broken,
        unsure=terms.unsure,
        p_value=terms.tail_probability(found) if p_value is None else p_value,
        level=1.0 if p_value is None else max((1 - terms.confidence) / 2, 1e-9),
    )
    decision = drawn.outcome()
    left = _undecided(drawn, found, rows, terms)
    text = f"{decision}; {terms.confidence:.0%} interval {found.low:.4f} to {found.high:.4f}"
    rule = replace(
        drawn,
        detail=f"{text}; {detail}" if detail else text,
        needed=left[0].needed if left else 0,
    )
    return rule, left


def _undecided(rule: Rule, found: Estimate, rows: int, terms: RuleTerms) -> tuple[NotJudged, ...]:
    if replace(rule, unsure="INCONCLUSIVE").outcome() != "INCONCLUSIVE":
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
        alone = terms.tail_probability(found)
        tests = max(1.0, rule.p_value / alone)  # as Holm counted them here; a chance of 0 is decided
    needed = rows_needed(found, terms.limit, rows, terms.confidence, tests=tests)
    if needed > rows:
        reason += f"; about {needed:,} rows like these {rows:,} would tell"
    decision = "" if terms.unsure == "PASS" else terms.unsure
    return (NotJudged(name=rule.name, reason=reason, decision=decision, needed=needed),)


def fact_line(name: str, rule: Rule, ends: str = "") -> str:
    """Write a number and its limit in a few words."""
    outcome = replace(rule, broken="FAIL", unsure="INCONCLUSIVE").outcome()
    groups = f": {ends}" if ends and outcome != "PASS" else ""
    if rule.test in (SIZE, RATIO):
        sign = _SIGNS[rule.test][outcome != "PASS"]
        return f"{name} {rule.value:.3f} {sign} {rule.limit:.3f}{groups}"
    sign = {"PASS": _SIGNS[rule.test][0], "FAIL": _SIGNS[rule.test][1]}.get(outcome, "around")
    number = Estimate(rule.value, *rule.interval)
    return f"{name} {number} {sign} {rule.limit:.3f}{groups}"


def rule_on(
    name: str, found: Estimate, rows: int, terms: RuleTerms, *, kind: str = "absolute", ends: str = ""
) -> Ruling:
    """Judge one number over all rows; ``ends`` names the groups at both ends of a disparity."""
    rule, left = judge_estimate(name, found, rows, terms, detail=ends)
    return Ruling(name, rule.outcome(), fact_line(name, rule, ends), (rule,), left, kind)


def not_judged_ruling(
    name: str, reason: str, *, kind: str = "absolute", scope: str = "overall", fact: str = ""
) -> Ruling:
    """Return the ruling on something that cannot be judged: that is no pass."""
    left = NotJudged(name=name, reason=reason, decision="INCONCLUSIVE")
    return Ruling(name, "INCONCLUSIVE", fact or f"{name} not judged", (), (left,), kind, scope)


def apply_rules(findings: Findings) -> Iterator[Ruling]:
    """Apply every rule, and every limit of the section."""
    evaluation = findings.evaluation
    rules = evaluation.all_rules
    limits = evaluation.fairness
    compares = [rule for rule in rules if rule.kind != "absolute"]
    for rule in rules:
        if rule.kind == "absolute" or findings.baseline:
            yield _on_slices(findings, rule) if rule.scope == "slice" else _on_whole(findings, rule)
    if not findings.baseline and (compares or (limits and limits.worsening)):
        yield _without_baseline(findings, compares, limits)
    yield from _short_limits(findings)
    if limits:
        yield from _fairness_rulings(findings, limits)
    if evaluation.overfitting:
        yield _overfitting_ruling(findings, evaluation.overfitting)
    if evaluation.constant_prediction != "warn":
        yield constant_ruling(findings, evaluation.constant_prediction.upper())
    if evaluation.small_slices != "warn":
        yield from _small_slices(findings, _SMALL[evaluation.small_slices])


def _too_few_rows(findings: Findings, metric: str, *samples: Sample) -> str:
    """Say why the interval of a metric is too narrow to rely on; empty if the rows are enough."""
    cluster = findings.evaluation.cluster
    fewest, what = min(_smallest_count(findings.kind, sample, metric, cluster) for sample in samples)
    return f"{fewest:,} {what}; its interval needs {MIN_UNITS} of each" if fewest < MIN_UNITS else ""


def _smallest_count(kind: Kind, sample: Sample, metric: str, cluster: str | None) -> tuple[int, str]:
    """Return the smallest number of rows or clusters that a metric depends on, and its description."""
    of_class = metric.partition("/")[2]
    found = [(sample.rows, "rows")]
    counted = [(sample.counts, "rows of")]
    if sample.clusters:
        found.append((sample.clusters, f"values of {cluster}"))
        counted.append((sample.counts_in_clusters, f"values of {cluster} with rows of"))
    for counts, what in counted:
        if kind == "binary" or metric.startswith("macro_"):
            rare = "rarer" if kind == "binary" else "rarest"
            found.append((min(counts), f"{what} the {rare} label"))
        elif of_class:
            found.append((counts[sample.class_names.index(of_class)], f"{what} {_class_title(of_class)}"))
    return min(found)


def _class_title(name: str) -> str:
    """Write the name of a class so that a number is not taken for a count: ``class 2``, ``setosa``."""
    return f"class {name}" if name.isdecimal() else name


def _class_too_small(metric: str, entry: Slice, classes: Sequence[str], least: int) -> str:
    """Say why a slice is too small for the metric of one class, or a mean of all; empty if it is not."""
    of_class = metric.partition("/")[2]
    if metric.startswith("macro_") and entry.counts:
        of_class = classes[min(range(len(entry.counts)), key=entry.counts.__getitem__)]
    if not of_class or not entry.counts:
        return ""
    count = entry.counts[classes.index(of_class)]
    return f"{count:,} of at least {least:,} rows of {_class_title(of_class)}" if count < least else ""


CONSTANT_GAIN = "gain over a constant prediction"


def constant_ruling(findings: Findings, broken: str) -> Ruling:
    """Judge that the mean loss is below that of a constant prediction."""
    found, evaluation = findings.constant, findings.evaluation
    if found.gain is None:
        return not_judged_ruling(CONSTANT_GAIN, found.reason, kind="constant")
    if reason := _too_few_rows(findings, found.metric, findings.sample):
        fact = f"too few rows to compare with a constant prediction: {reason}"
        return not_judged_ruling(CONSTANT_GAIN, reason, kind="constant", fact=fact)
    terms = RuleTerms(0.0, ABOVE, evaluation.confidence, broken)
    title = metric_title(found.metric)
    digits = decimals(abs(found.constant - found.model), found.model)
    model, constant = f"{found.model:,.{digits}f}", f"{found.constant:,.{digits}f}"
    detail = f"{title} {model}, of {CONSTANT_NAMES[findings.kind]} {constant}"
    rule, left = judge_estimate(CONSTANT_GAIN, found.gain, findings.sample.rows, terms, detail=detail)
    said = {"PASS": "below", broken: "not below"}.get(rule.outcome(), "not clearly below")
    fact = f"{title} {model} {said} {constant} of a constant prediction"
    return Ruling(CONSTANT_GAIN, rule.outcome(), fact, (rule,), left, "constant")


def constant_warning(findings: Findings) -> tuple[str, ...]:
    """Warn of a model that is not clearly better than a constant prediction, where no rule decides on it."""
    ruling = constant_ruling(findings, "FAIL")
    if findings.evaluation.constant_prediction != "warn" or ruling.decision == "PASS":
        return ()
    reason = ruling.undecided[0].reason if ruling.undecided else ""
    return (ruling.fact if reason in ruling.fact else f"{ruling.fact}: {reason}",)


CONSTANT_NAMES = {
    "binary": "the share of the positive class as every score",
    "multiclass": "the shares of the classes as every score",
    "regression": "the mean as every estimate",
    "language_model": "the frequencies of the tokens as every prediction",
}
"""The constant prediction by kind."""

_SMALL = {"warn": "", "hold": "HOLD", "block": "FAIL"}
"""Decision on a slice that is too small, by ``small_slices``."""


def _without_baseline(findings: Findings, rules: Sequence[ModelRule], limits: Limits | None) -> Ruling:
    """Decide as the section says where rules need a baseline and there is none."""
    policy = findings.evaluation.missing_baseline
    text = "there is no baseline to compare with"
    if findings.unscored:
        text = f"version {findings.unscored} is in production, and could not score these rows"
        policy = "hold" if policy == "bootstrap" else policy  # this is not the first model
    decision = {"fail": "FAIL", "hold": "HOLD", "bootstrap": "PASS"}[policy]
    names = [f"{metric_title(rule.metric)} against the baseline" for rule in rules]
    names += [f"worsening of {name.replace('_', ' ')}" for name in (limits.worsening if limits else ())]
    if policy == "bootstrap":
        text = "no baseline: the first model, as missing_baseline says"
    rule = Rule(name=BASELINE, value=0.0, limit=1.0, test=AT_LEAST, detail=text, broken=decision)
    left = tuple(NotJudged(name=name, reason="there is no baseline") for name in names)
    return Ruling(BASELINE, decision, text, (rule,), left, "baseline")


def _terms(findings: Findings, rule: ModelRule) -> RuleTerms:
    metric = find_metric(rule.metric)
    below = rule.kind == "absolute" and metric is not None and metric.better == LOWER
    return RuleTerms(
        limit=-rule.limit if rule.kind == "non_inferiority" else rule.limit,
        test=BELOW if below else ABOVE,
        confidence=findings.evaluation.confidence,
        broken=rule.broken.upper(),
        unsure="PASS" if rule.undecided == "warn" else "INCONCLUSIVE",
    )


def _rule_name(rule: ModelRule) -> str:
    return metric_title(rule.metric) if rule.kind == "absolute" else f"{metric_title(rule.metric)} gain"


def _number(found: ComparedMetric, rule: ModelRule) -> Estimate | None:
    return found.candidate if rule.kind == "absolute" else found.gain


def _on_whole(findings: Findings, rule: ModelRule) -> Ruling:
    name, sample = _rule_name(rule), findings.sample
    found = findings.overall.get(rule.metric)
    if found is None and rule.metric != "coverage" and "/" not in rule.metric:
        raise InputError(f"{rule.metric} is not measured for these predictions", where=RULES_SECTION)
    number = _number(found, rule) if found else None
    if number is None:
        reason = f"{metric_title(rule.metric)} is not defined on these rows"
        return not_judged_ruling(name, reason, kind=rule.kind)
    if reason := _too_few_rows(findings, rule.metric, sample):
        fact = f"{name} {number.value:.3f} of too few rows"
        return not_judged_ruling(name, reason, kind=rule.kind, fact=fact)
    return rule_on(name, number, sample.rows, _terms(findings, rule), kind=rule.kind)


Part = tuple[str, Slice, Estimate | None]
"""The name of a rule on a slice, the slice, and the number that is judged."""


def _on_slices(findings: Findings, rule: ModelRule) -> Ruling:
    cuts = [cut for cut in findings.all_cuts if not rule.by or set(cut.columns) <= set(rule.by)]
    slices = [
        (f"{_rule_name(rule)} of {cut.name} {entry.name}", entry) for cut in cuts for entry in cut.judged
    ]
    name = f"{_rule_name(rule)} by {', '.join(cut.name for cut in cuts)}"
    if not slices:
        return not_judged_ruling(name, "no slice has rows enough to be judged", kind=rule.kind, scope="slice")
    if not any(rule.metric in entry.figures for _, entry in slices):
        raise InputError(
            f"{rule.metric} is not measured slice by slice",
            where=RULES_SECTION,
            hint=f"Take one of {', '.join(slices[0][1].figures)}, or scope: overall.",
        )
    parts = [(place, entry, _number(entry.figures[rule.metric], rule)) for place, entry in slices]
    undefined = "" if rule.undecided == "warn" else "INCONCLUSIVE"
    small = _SMALL[findings.evaluation.small_slices]
    return _judge_slices(
        findings, name, rule.metric, parts, _terms(findings, rule), rule.kind, undefined, small
    )


def _judge_slices(
    findings: Findings,
    name: str,
    metric: str,
    parts: Sequence[Part],
    terms: RuleTerms,
    kind: str,
    undefined: str,
    small: str,
) -> Ruling:
    """Judge every slice that is large enough; to claim that one is broken, allow for all (Holm).

    ``undefined`` is the decision on slices without the metric, ``small`` on those with too few of a class.
    """
    least, classes = findings.evaluation.min_positives, findings.sample.class_names
    reasons = {place: _class_too_small(metric, entry, classes, least) for place, entry, _ in parts}
    parts = [part for part in parts if not reasons[part[0]]]
    defined = [(place, entry.rows, number) for place, entry, number in parts if number]
    chances = holm([terms.tail_probability(number) for _, _, number in defined])
    judged = [
        judge_estimate(place, number, rows, terms, p_value=chance)
        for (place, rows, number), chance in zip(defined, chances, strict=True)
    ]
    left = [entry for _, entries in judged for entry in entries]
    left += [
        NotJudged(name=place, reason="not defined on these rows", decision=undefined)
        for place, _, number in parts
        if number is None
    ]
    left += [NotJudged(name=place, reason=why, decision=small) for place, why in reasons.items() if why]
    rules = sorted((rule for rule, _ in judged), key=_gravest)
    decision = worst(
        [*(rule.outcome() for rule in rules), *(entry.decision for entry in left if entry.decision)]
    )
    fact = f"{name}: no slice is judged"
    if rules:
        alike = sum(rule.outcome() == rules[0].outcome() for rule in rules)
        several = decision != "PASS" and alike > 1
        of = f"{alike} such slices" if several else f"{len(rules)} slices"
        fact = f"{fact_line(rules[0].name, rules[0])}, the worst of {of}"
    return Ruling(name, decision, fact, tuple(rules), tuple(left), kind, "slice")


def _gravest(rule: Rule) -> tuple[int, float, str]:
    towards = rule.value - rule.limit if rule.test in (ABOVE, RATIO) else rule.limit - rule.value
    return -SEVERITY.index(rule.outcome()), towards, rule.name


def _short_limits(findings: Findings) -> Iterator[Ruling]:
    """Judge the limits that the section has fields for: gaps of recall, and the calibration error."""
    evaluation = findings.evaluation
    for column, gap in findings.gaps.items():
        if (limit := evaluation.recall_gap(column)) is not None:
            name = f"recall gap over {column}"
            yield _on_disparity(findings, name, gap, RuleTerms(limit, SIZE, evaluation.confidence, "HOLD"))
    if evaluation.max_calibration_error is not None:
        error = findings.overall["calibration_error"].candidate
        terms = RuleTerms(evaluation.max_calibration_error, SIZE, evaluation.confidence, "HOLD")
        if error is None:
            yield not_judged_ruling("calibration error", "it is not defined on these rows")
        else:
            yield rule_on("calibration error", error, findings.sample.rows, terms)


def _on_disparity(
    findings: Findings, name: str, found: Disparity, terms: RuleTerms, kind: str = "fairness"
) -> Ruling:
    number = found.worsening if kind == "worsening" else found.value
    if number is None:
        return not_judged_ruling(name, found.reason or "it is not defined", kind=kind)
    # Groups are named so that no name is taken for a number: ``EWR 0.5``, ``hour 6 0.5``.
    names = [
        name if name[:1].isalpha() else f"{found.columns[0]} {name}" for name in (found.lowest, found.highest)
    ]
    ends = ", ".join(f"{name} {rate:.3f}" for name, rate in zip(names, found.rates, strict=True))
    return rule_on(name, number, findings.sample.rows, terms, kind=kind, ends=ends)


def _fairness_rulings(findings: Findings, limits: Limits) -> Iterator[Ruling]:
    confidence, broken = findings.evaluation.confidence, limits.broken.upper()
    largest: dict[str, float] = {str(name): limit for name, limit in limits.limits.items()}
    worse: dict[str, float] = {str(name): limit for name, limit in limits.worsening.items()}
    for found in findings.disparities:
        name = f"{found.measure.replace('_', ' ')} by {' and '.join(found.columns)}"
        if (limit := largest.get(found.measure)) is not None:
            test = RATIO if found.measure == "selection_rate_ratio" else SIZE
            yield _on_disparity(findings, name, found, RuleTerms(limit, test, confidence, broken))
        if findings.baseline and (limit := worse.get(found.measure)) is not None:
            terms = RuleTerms(limit, UP_TO, confidence, broken)
            yield _on_disparity(findings, f"worsening of {name}", found, terms, "worsening")
    for metric, least in limits.group_minimum.items():
        yield _group_minimum(findings, metric, RuleTerms(least, ABOVE, confidence, broken))


def _group_minimum(findings: Findings, metric: str, terms: RuleTerms) -> Ruling:
    name = f"{metric_title(metric)} of every group"
    parts = [
        (f"{metric_title(metric)} of {cut.name} {entry.name}", entry, entry.figures[metric].candidate)
        for cut in findings.all_cuts
        if cut in findings.groups
        for entry in cut.judged
        if metric in entry.figures
    ]
    least, classes = findings.evaluation.min_positives, findings.sample.class_names
    if not any(number and not _class_too_small(metric, entry, classes, least) for _, entry, number in parts):
        reason = "no group has rows enough to be judged"
        return not_judged_ruling(name, reason, kind="fairness", scope="slice")
    return _judge_slices(findings, name, metric, parts, terms, "fairness", "INCONCLUSIVE", "")


def _overfitting_ruling(findings: Findings, limit: Overfitting) -> Ruling:
    metric = limit.metric or OVERFITTING[findings.kind]
    name, gap = f"{metric_title(metric)} overfitting", findings.overfitting.get(metric)
    if findings.fitted_sample is None:
        reason = f"split {limit.split!r} was not scored: name it in training.predict"
        return not_judged_ruling(name, reason, kind="overfitting")
    both = findings.sample, findings.fitted_sample
    reason = _too_few_rows(findings, metric, *both) if gap else "it is not defined"
    if gap is None or reason:
        return not_judged_ruling(name, reason, kind="overfitting")
    terms = RuleTerms(limit.at_most, UP_TO, findings.evaluation.confidence, "HOLD")
    return rule_on(name, gap, min(sample.rows for sample in both), terms, kind="overfitting")


def _small_slices(findings: Findings, decision: str) -> Iterator[Ruling]:
    small = tuple(
        NotJudged(name=f"{cut.name} = {entry.name}", reason=entry.reason, decision=decision)
        for cut in findings.all_cuts
        for entry in cut.slices
        if entry.reason
    )
    if small:
        fact = f"{len(small)} slices are too small to be judged"
        yield Ruling("small slices", decision, fact, (), small, scope="slice")
