"""What the rules of the section say of the figures.

A rule has three answers, because a number from a sample has an interval. Where the interval lies on one side
of the limit the rule holds or is broken; where it does not, more rows are needed, and that is not a pass. A
gap and a calibration error are sizes, which noise can only enlarge on average (Jensen's inequality), so for
them a number within the limit is enough. By how much one size is worse than another, or a model better on
the rows that it was fitted on, is a difference: its noise goes both ways, and its interval decides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainwright.errors import InputError
from trainwright.evaluate.asked import WHERE
from trainwright.evaluate.enough import FEWEST, how_few, too_few
from trainwright.evaluate.findings import (
    Compared,
    Cut,
    Disparity,
    Fairness,
    Kind,
    Ruling,
    Sample,
    Slice,
)
from trainwright.evaluate.outcomes import Terms, cannot, gather, judge, rule_on, spoken, tail
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import Fairness as Limits
from trainwright.experiment.evaluation import ModelRule
from trainwright.experiment.metrics import LOWER, known
from trainwright.significance import Estimate, holm
from trainwright.verdicts import ABOVE, BELOW, RATIO, SIZE, UP_TO, NotJudged, Rule


@dataclass(frozen=True)
class Figures:
    """What rules are held against; as in :class:`trainwright.evaluate.findings.Findings`."""

    evaluation: Evaluation
    kind: Kind
    sample: Sample
    compared: bool
    overall: dict[str, Compared]
    cuts: tuple[Cut, ...]
    fairness: Fairness | None
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


def rulings(figures: Figures, rules: Sequence[ModelRule]) -> tuple[Ruling, ...]:
    """Apply every rule, and every limit of the section."""
    return tuple(_rulings(figures, rules))


def _rulings(figures: Figures, rules: Sequence[ModelRule]) -> Iterator[Ruling]:
    compares = [rule for rule in rules if rule.kind != "absolute"]
    limits = figures.evaluation.fairness
    for rule in rules:
        if rule.kind == "absolute" or figures.compared:
            yield _on_slices(figures, rule) if rule.scope == "slice" else _on_whole(figures, rule)
    if not figures.compared and (compares or (limits and limits.worsening)):
        yield _without_baseline(figures, compares, limits)
    yield from _short_limits(figures)
    if limits and figures.fairness:
        yield from _fairness(figures, limits, figures.fairness)
    if figures.evaluation.overfitting:
        yield _overfitting(figures)
    if figures.evaluation.small_slices != "warn" and (ruling := _small_slices(figures)):
        yield ruling


def _without_baseline(figures: Figures, rules: Sequence[ModelRule], limits: Limits | None) -> Ruling:
    """Say what follows where rules need a baseline and there is none: what the section says."""
    policy = figures.evaluation.missing_baseline
    told = "there is no baseline to compare with"
    if figures.unscored:
        told = f"version {figures.unscored} is in production, and could not score these rows"
        policy = "hold" if policy == "bootstrap" else policy  # this is not the first model
    decision = {"fail": "FAIL", "hold": "HOLD", "bootstrap": "PASS"}[policy]
    asked = [f"{spoken(rule.metric)} against the baseline" for rule in rules]
    asked += [f"worsening of {name.replace('_', ' ')}" for name in (limits.worsening if limits else ())]
    if policy == "bootstrap":
        told = "no baseline: the first model, as missing_baseline says"
    rule = Rule(
        name="baseline", value=0.0, limit=1.0, passed=decision == "PASS", detail=told, decision=decision
    )
    left = tuple(NotJudged(name=name, reason="there is no baseline") for name in asked)
    return Ruling("baseline", decision, told, (rule,), left, "baseline")


def _terms(figures: Figures, rule: ModelRule) -> Terms:
    metric = known(rule.metric)
    below = rule.kind == "absolute" and metric is not None and metric.better == LOWER
    return Terms(
        limit=-rule.limit if rule.kind == "non_inferiority" else rule.limit,
        test=BELOW if below else ABOVE,
        confidence=figures.confidence,
        broken=rule.broken.upper(),
        unsure="PASS" if rule.undecided == "warn" else "INCONCLUSIVE",
    )


def _named(rule: ModelRule) -> str:
    return spoken(rule.metric) if rule.kind == "absolute" else f"{spoken(rule.metric)} gain"


def _number(found: Compared | None, rule: ModelRule) -> Estimate | None:
    if found is None:
        return None
    return found.candidate if rule.kind == "absolute" else found.gain


def _on_whole(figures: Figures, rule: ModelRule) -> Ruling:
    name, sample = _named(rule), figures.sample
    found = figures.overall.get(rule.metric)
    if found is None and rule.metric != "coverage" and "/" not in rule.metric:
        raise InputError(f"{rule.metric} is not measured for these predictions", where=WHERE)
    number = _number(found, rule)
    if number is None:
        return cannot(name, f"{spoken(rule.metric)} is not defined on these rows", kind=rule.kind)
    fewest, what = how_few(figures.kind, sample, rule.metric, figures.evaluation.cluster)
    if fewest < FEWEST:
        reason = f"{fewest:,} {what}; its interval needs {FEWEST} of each"
        ruling = cannot(name, reason, kind=rule.kind)
        return Ruling(ruling.name, ruling.decision, f"{name} {number.value:.3f} of too few rows",
                      (), ruling.undecided, rule.kind)  # fmt: skip
    return rule_on(name, number, sample.rows, _terms(figures, rule), kind=rule.kind)


def _on_slices(figures: Figures, rule: ModelRule) -> Ruling:
    """Judge every slice that is large enough; to claim that one is broken, allow for all (Holm)."""
    wanted = [cut for cut in figures.cuts if not rule.by or set(cut.columns) <= set(rule.by)]
    parts = [(cut, entry) for cut in wanted for entry in cut.judged]
    name = f"{_named(rule)} by {', '.join(cut.name for cut in wanted)}"
    if not parts:
        return cannot(name, "no slice has rows enough to be judged", kind=rule.kind, scope="slice")
    if not any(rule.metric in entry.figures for _, entry in parts):
        raise InputError(
            f"{rule.metric} is not measured slice by slice",
            where=WHERE,
            hint=f"Take one of {', '.join(parts[0][1].figures)}, or scope: overall.",
        )
    terms = _terms(figures, rule)
    numbers = [(_place(rule, cut, entry), entry, _number(entry.figures[rule.metric], rule))
               for cut, entry in parts]  # fmt: skip
    small = {
        place: too_few(rule.metric, entry, figures.evaluation.min_positives) for place, entry, _ in numbers
    }
    numbers = [parts for parts in numbers if not small[parts[0]]]
    defined = [(place, entry, number) for place, entry, number in numbers if number]
    chances = holm([tail(number, terms) for _, _, number in defined])
    judged = [
        judge(place, number, entry.rows, terms, p_value=chance)
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
    return gather(name, judged, left, rule.kind)


def _place(rule: ModelRule, cut: Cut, entry: Slice) -> str:
    return f"{_named(rule)} of {cut.name} {entry.name}"


def _short_limits(figures: Figures) -> Iterator[Ruling]:
    """Judge the limits that the section has fields for: gaps of recall, and the calibration error."""
    evaluation = figures.evaluation
    for column, gap in figures.gaps.items():
        limit = evaluation.recall_gap(column)
        if limit is None:
            continue
        name = f"recall gap over {column}"
        if gap.value is None:
            yield cannot(name, gap.reason, kind="fairness")
        else:
            terms = Terms(limit, SIZE, figures.confidence, "HOLD")
            yield rule_on(name, gap.value, figures.sample.rows, terms, kind="fairness", ends=_ends(gap))
    if evaluation.max_calibration_error is not None:
        error = figures.overall["calibration_error"].candidate
        terms = Terms(evaluation.max_calibration_error, SIZE, figures.confidence, "HOLD")
        if error is None:
            yield cannot("calibration error", "it is not defined on these rows")
        else:
            yield rule_on("calibration error", error, figures.sample.rows, terms)


def _ends(gap: Disparity) -> str:
    """Name the groups at both ends so that no name is taken for a number: ``EWR 0.5``, ``hour 6 0.5``."""
    names = (gap.lowest, gap.highest)
    spoken_names = [name if name[:1].isalpha() else f"{gap.columns[0]} {name}" for name in names]
    return ", ".join(f"{name} {rate:.3f}" for name, rate in zip(spoken_names, gap.rates, strict=True))


def _fairness(figures: Figures, limits: Limits, fairness: Fairness) -> Iterator[Ruling]:
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
                yield cannot(named, found.reason or "it is not defined", kind=kind)
                continue
            test = RATIO if found.measure == "selection_rate_ratio" else SIZE
            test = UP_TO if kind == "worsening" else test
            terms = Terms(limit, test, figures.confidence, limits.broken.upper())
            yield rule_on(named, number, figures.sample.rows, terms, kind=kind, ends=_ends(found))
    groupings = set(limits.groupings)
    for metric, least in limits.group_minimum.items():
        yield _group_minimum(figures, metric, least, groupings, limits.broken.upper())


def _group_minimum(
    figures: Figures, metric: str, least: float, groupings: set[tuple[str, ...]], broken: str
) -> Ruling:
    name, terms = f"{spoken(metric)} of every group", Terms(least, ABOVE, figures.confidence, broken)
    found = [
        (f"{spoken(metric)} of {cut.name} {entry.name}", entry)
        for cut in figures.cuts
        if cut.columns in groupings
        for entry in cut.judged
        if metric in entry.figures
    ]
    small = {place: too_few(metric, entry, figures.evaluation.min_positives) for place, entry in found}
    parts = [
        (place, entry.rows, entry.figures[metric].candidate) for place, entry in found if not small[place]
    ]
    defined = [(place, rows, number) for place, rows, number in parts if number]
    if not defined:
        return cannot(name, "no group has rows enough to be judged", kind="fairness", scope="slice")
    chances = holm([tail(number, terms) for _, _, number in defined])
    judged = [
        judge(place, number, rows, terms, p_value=chance)
        for (place, rows, number), chance in zip(defined, chances, strict=True)
    ]
    left = [
        NotJudged(name=place, reason="not defined on these rows", decision="INCONCLUSIVE")
        for place, _, number in parts
        if number is None
    ]
    left += [NotJudged(name=place, reason=why) for place, why in small.items() if why]
    return gather(name, judged, left, "fairness")


def _overfitting(figures: Figures) -> Ruling:
    asked = figures.evaluation.overfitting
    if asked is None:
        raise InputError("no limit on overfitting", where="evaluation.overfitting")
    name, gap = f"{spoken(asked.metric)} overfitting", figures.overfitting.get(asked.metric)
    if figures.fitted is None:
        reason = f"split {asked.split!r} was not scored: name it in training.predict"
        return cannot(name, reason, kind="overfitting")
    both, cluster = (figures.sample, figures.fitted), figures.evaluation.cluster
    fewest, what = min(how_few(figures.kind, sample, asked.metric, cluster) for sample in both)
    if gap is None or fewest < FEWEST:
        reason = f"{fewest:,} {what}; its interval needs {FEWEST} of each" if gap else "it is not defined"
        return cannot(name, reason, kind="overfitting")
    terms = Terms(asked.at_most, UP_TO, figures.confidence, "HOLD")
    return rule_on(name, gap, min(sample.rows for sample in both), terms, kind="overfitting")


def _small_slices(figures: Figures) -> Ruling | None:
    decision = "HOLD" if figures.evaluation.small_slices == "hold" else "FAIL"
    small = [
        NotJudged(name=f"{cut.name} = {entry.name}", reason=entry.reason, decision=decision)
        for cut in figures.cuts
        for entry in cut.slices
        if entry.reason
    ]
    told = f"{len(small)} slices are too small to be judged"
    return Ruling("small slices", decision, told, (), tuple(small), scope="slice") if small else None
