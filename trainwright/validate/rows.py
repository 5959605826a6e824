"""What numbers of rows alone tell: how many there are, how fresh, and how the label is shared out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainwright.experiment import Validation
from trainwright.validate.baseline import Baseline
from trainwright.validate.findings import Finding
from trainwright.validate.limits import learned_from
from trainwright.validate.policy import parse_time
from trainwright.validate.profile import Profile
from trainwright.validate.statistics import by_column
from trainwright.verdicts import NotJudged, Rule

_SHOWN = 5


@dataclass(frozen=True)
class Tally:
    """What one of these checks gave.

    Attributes:
        rules: Numbers with their limits; a rule that is broken has a finding.
        findings: What is wrong.
        not_judged: What was asked for and could not be judged.
    """

    rules: tuple[Rule, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()


def volume(splits: Mapping[str, int], validation: Validation, baseline: Baseline | None) -> Tally:
    """Compare the rows that a model would learn from with those that the model in production learned from.

    Args:
        splits: Rows by split.
        validation: The accepted ratios.
        baseline: The accepted baseline; nothing is compared without one.
    """
    if baseline is None:
        return Tally()
    name, asked = learned_from(validation), validation.volume
    if not splits.get(name):
        return Tally(
            not_judged=(NotJudged(name="volume", reason=f"split {name} has no rows, or is not there"),)
        )
    ratio = splits[name] / baseline.rows
    told = f"split {name} has {splits[name]:,} rows, {ratio:.3g} times the {baseline.rows:,} of the baseline"
    rules, found = [], []
    for bound, limit, kept in (
        ("min", asked.min_ratio, ratio >= asked.min_ratio),
        ("max", asked.max_ratio, ratio <= asked.max_ratio),
    ):
        rules.append(Rule(name=f"volume/{bound}", value=ratio, limit=limit, passed=kept, detail=told))
        if not kept:
            kind = "COMPARATOR_LOW_NUM_EXAMPLES" if bound == "min" else "COMPARATOR_HIGH_NUM_EXAMPLES"
            what = f"{told}; {'at least' if bound == 'min' else 'at most'} {limit:g} times are accepted"
            found.append(Finding(split=name, kind=kind, against="baseline", rule=rules[-1].name, what=what))
    return Tally(tuple(rules), tuple(found))


def freshness(newest: float | None, newest_since: str) -> Tally:
    """Check that the newest row is as new as it has to be.

    Args:
        newest: Its time in seconds since 1970 in UTC; None if the rows have no time.
        newest_since: Time that it must reach, ISO 8601; empty if none is asked for.

    Raises:
        InputError: ``newest_since`` is no time.
    """
    if not newest_since:
        return Tally()
    since = parse_time(newest_since, "parameter newest_since")
    if newest is None:
        reason = "the snapshot does not say how new its newest row is (time.newest); name data.time"
        return Tally(not_judged=(NotJudged(name="freshness", reason=reason),))
    late = since.timestamp() - newest
    told = f"the newest row is of {_written(datetime.fromtimestamp(newest, UTC))}"
    rule = Rule(
        name="freshness", value=newest, limit=since.timestamp(), passed=late <= 0,
        detail=f"{told}; it has to reach {_written(since)}; seconds since 1970",
    )  # fmt: skip
    what = f"{told}, {_span(late)} too old: it has to reach {_written(since)}"
    return Tally((rule,), () if late <= 0 else (Finding(kind="DATA_STALE", rule=rule.name, what=what),))


def _written(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _span(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"  # noqa: PLR2004


def label_balance(profile: Profile, label: str, least: float) -> Tally:
    """Check that there is something to learn: a label with one value teaches nothing.

    Args:
        profile: A split that is learned from or judged on.
        label: The column to predict.
        least: Smallest accepted share of any of its values; only where they are counted one by one.
    """
    feature = by_column(profile.statistics).get(label)
    if feature is None or profile.missing(label) >= profile.rows:
        return Tally()  # a column that is gone or empty is found as such
    values = profile.values(label)
    if not values:
        return _of_numbers(profile, label, feature.num_stats, least)
    shares = {name: rows / sum(values.values()) for name, rows in values.items()}
    rules = [_rule(f"label/{profile.split}/values", len(values), 2)]
    found = []
    if len(values) == 1:
        (only,) = values
        what = (
            f"the label {label} is {only} in all {sum(values.values()):,.0f} labelled rows of {profile.split}"
        )
        found.append(_finding("LABEL_CONSTANT", label, rules[0], profile, what))
    elif least:
        rare = min(shares, key=lambda name: (shares[name], name))
        rules.append(_rule(f"label/{profile.split}/rarest", shares[rare], least))
        if shares[rare] < least:
            what = (
                f"the label {label} is {rare} in {shares[rare]:.2%} of the labelled rows of {profile.split}, "
                f"at least {least:.2%} must be ({_counts(values)})"
            )
            found.append(_finding("LABEL_SHARE_LOW", label, rules[1], profile, what))
    return Tally(tuple(rules), tuple(found))


def _of_numbers(profile: Profile, label: str, numbers: Any, least: float) -> Tally:
    """Check a label whose values are not counted: a number to be predicted, or text."""
    rules, found, not_judged = [], [], []
    if numbers.common_stats.num_non_missing:
        rules.append(_rule(f"label/{profile.split}/values", 1 + (numbers.min < numbers.max), 2))
        if not rules[0].passed:
            what = f"the label {label} is {numbers.min:g} in every labelled row of {profile.split}"
            found.append(_finding("LABEL_CONSTANT", label, rules[0], profile, what))
    if least:
        reason = f"the values of the label {label} are not counted one by one: the schema calls it a number"
        not_judged.append(NotJudged(name=f"label/{profile.split}/rarest", reason=reason))
    return Tally(tuple(rules), tuple(found), tuple(not_judged))


def _finding(kind: str, label: str, rule: Rule, profile: Profile, what: str) -> Finding:
    return Finding(split=profile.split, column=label, kind=kind, rule=rule.name, what=what)


def _rule(name: str, value: float, limit: float) -> Rule:
    return Rule(name=name, value=float(value), limit=float(limit), passed=value >= limit)


def _counts(values: Mapping[str, float]) -> str:
    ordered = sorted(values.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name}: {rows:,.0f}" for name, rows in ordered[:_SHOWN])
    return shown + (f", and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")


def together(tallies: Iterator[Tally]) -> Tally:
    """Put the results of several checks together."""
    parts = list(tallies)
    return Tally(
        tuple(rule for part in parts for rule in part.rules),
        tuple(finding for part in parts for finding in part.findings),
        tuple(entry for part in parts for entry in part.not_judged),
    )
