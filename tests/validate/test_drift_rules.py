"""Comparisons of made-up counts: what is measured, which findings follow, and what a report says of them."""

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from trainwright.drift.comparison import (
    MISSING,
    UNSEEN,
    ColumnComparison,
    ColumnCounts,
    SamplePair,
    column_counts,
    edges,
    measure_counts,
    measure_missing,
    measure_unseen,
    obstacle,
    rule_name,
)
from trainwright.drift.findings import (
    JENSEN_SHANNON,
    L_INFINITY,
    DataFinding,
    Limit,
    SeverityPolicy,
    merged,
    moment_of,
)
from trainwright.drift.judgement import Judgement, baseline_check, not_compared, weigh
from trainwright.drift.null_distribution import NoChance
from trainwright.experiment import Validation
from trainwright.verdicts import AT_MOST, NotJudged, Rule


@dataclass(frozen=True)
class Counted:
    """A sample of 100 rows, counted by hand."""

    split: str = "evaluate"
    rows: int = 100
    counts: Mapping[str, Any] = field(default_factory=dict)
    by_value: Mapping[str, dict[str, float]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    def missing(self, column: str) -> int:
        return self.lost.get(column, 0)

    def values(self, column: str) -> dict[str, float]:
        return self.by_value.get(column, {})

    def uncounted(self, column: str) -> str:  # noqa: ARG002 - every column's
        return self.reason


BINS = np.array([0.0, 10.0, 20.0])
NUMBERS = Limit("x", "numbers", JENSEN_SHANNON, 0.01)
WORDS = Limit("w", "categories", L_INFINITY, 0.05)


def pair(current: Counted, reference: Counted, **cuts: Any) -> SamplePair[Any]:
    return SamplePair("previous", current, reference, cuts)


def test_numbers_are_counted_in_bins_and_words_in_the_order_of_their_larger_share() -> None:
    now, then = Counted(counts={"x": [1, 2, 3, 4]}), Counted(counts={"x": [4, 3, 2, 1]})
    found = column_counts("x", pair(now, then, x=BINS))
    assert found == ColumnCounts((), edges(BINS), [1, 2, 3, 4], [4, 3, 2, 1])
    assert edges(BINS) == [-math.inf, math.ulp(0.0), 10, 20, math.inf]
    assert [name for name, *_ in found.shares()] == [
        "less than 4.94066e-324",
        "4.94066e-324 to 10",
        "10 to 20",
        "more than 20",
    ]
    samples = ({"a": 10, "b": 30, "d": 60}, {"a": 1, "c": 1, "d": 2})
    found = column_counts("w", pair(*(Counted(by_value={"w": rows}) for rows in samples)))
    assert found == ColumnCounts(["d", "b", "a", "c"], (), [60, 30, 10, 0], [2, 0, 1, 1])


def test_shares_are_of_each_sample_and_an_empty_one_has_none() -> None:
    counts = ColumnCounts(["a", "b"], (), [1, 3], [10, 0])
    assert counts.shares() == [("a", 0.25, 1.0), ("b", 0.75, 0.0)]
    assert ColumnCounts(["a", "b"], (), [0, 0], [0, 0]).shares() == [("a", 0, 0), ("b", 0, 0)]
    assert ColumnCounts([], (), [], []).shares() == []


def test_a_column_is_compared_in_bins_only_if_both_samples_were_counted_in_them() -> None:
    both = Counted(counts={"x": [1, 1]}, by_value={"x": {"a": 1}})
    words = replace(both, counts={})
    for samples in (pair(both, both), pair(both, words, x=BINS), pair(words, both, x=BINS)):
        assert column_counts("x", samples) == ColumnCounts(["a"], (), [1], [1])


def bins(current: list[float], previous: list[float]) -> ColumnCounts:
    return ColumnCounts((), [0, 1, 2, 3], current, previous)


def words(values: Iterable[str], current: list[float], previous: list[float]) -> ColumnCounts:
    return ColumnCounts(list(values), (), current, previous)


@pytest.mark.parametrize(
    ("counts", "most", "shown"),
    [
        (bins([1, 2, 0], [0, 2, 1]), 9, bins([1, 2, 0], [0, 2, 1])),
        (bins([0, 2, 0], [0, 2, 0]), 9, ColumnCounts((), [1, 2], [2], [2])),
        (bins([0, 2, 0], [1, 2, 0]), 9, ColumnCounts((), [0, 1, 2], [0, 2], [1, 2])),
        (bins([0, 2, 1], [0, 2, 0]), 9, ColumnCounts((), [1, 2, 3], [2, 1], [2, 0])),
        (words("abc", [3, 2, 1], [1, 2, 3]), 3, words("abc", [3, 2, 1], [1, 2, 3])),
        (
            words("abcd", [4, 3, 2, 1], [1, 2, 3, 4]),
            3,
            ColumnCounts(("a", "b", "2 others"), (), (4, 3, 3), (1, 2, 7)),
        ),
        (
            words(["10", "-2", "9"], [3, 2, 1], [4, 5, 6]),
            3,
            words(["-2", "9", "10"], [2, 1, 3], [5, 6, 4]),
        ),
        (words(["10", "b", "9"], [3, 2, 1], [4, 5, 6]), 3, words(["10", "b", "9"], [3, 2, 1], [4, 5, 6])),
    ],
)
def test_a_plot_shows_what_is_not_empty_and_adds_up_the_rest(
    counts: ColumnCounts, most: int, shown: ColumnCounts
) -> None:
    assert counts.plotted(most) == shown


def test_a_distance_is_measured_over_the_shares_of_both_samples() -> None:
    now = Counted(counts={"x": [50, 50]}, by_value={"w": {"a": 60, "b": 40}})
    then = Counted(split="train", rows=10, counts={"x": [10, 0]}, by_value={"w": {"a": 10}})
    found = measure_counts(pair(now, then, x=np.array([0.0])), [WORDS, NUMBERS])
    words, numbers = found.measured
    assert (words.column, words.measure, words.value, words.limit) == ("w", "L-infinity", 0.4, 0.05)
    assert words.rows == (100, 10)
    terms = 0.5 * math.log2(0.5 / 0.75) + 0.5 * math.log2(0.5 / 0.25) + math.log2(1 / 0.75)
    assert numbers.value == pytest.approx(terms / 2)
    assert found.not_judged == ()


def test_a_column_that_cannot_be_compared_is_not_judged_and_the_others_are() -> None:
    now, then = (Counted(split, by_value={"w": {"a": 1}}) for split in ("evaluate", "train"))
    limits = [NUMBERS, WORDS, Limit("t", "text", L_INFINITY, 0.1), Limit("n", "nested", L_INFINITY, 0.1)]
    found = measure_counts(pair(now, then), limits)
    assert [entry.column for entry in found.measured] == ["w"]
    assert {entry.name: entry.reason for entry in found.not_judged} == {
        "drift/x": "no numbers of it in split train",
        "drift/t": "it is text, as the schema says: its values are not counted",
        "drift/n": "it is a struct, as the schema says; put it under validation.ignore",
    }
    full = Counted("train", counts={"x": [1]}, reason="too many values")
    assert obstacle(NUMBERS, pair(now, full)) == "no numbers of it in split evaluate"
    assert obstacle(NUMBERS, pair(full, full)) == ""
    assert obstacle(WORDS, pair(now, full)) == "too many values"
    unseen = measure_unseen(pair(now, full), [NUMBERS, WORDS], threshold=0.1)
    assert (unseen.measured, unseen.not_judged) == (
        (),
        (NotJudged(name="new/w", reason="too many values"),),
    )


def test_missing_and_new_values_are_shares_of_rows() -> None:
    now, then = Counted(lost={"x": 30}), Counted(rows=50, lost={"x": 5})
    (missing,) = measure_missing(pair(now, then), ["x"], threshold=0.1).measured
    assert (missing.measure, missing.value, missing.rows) == (MISSING, pytest.approx(0.2), (100, 50))
    words = pair(Counted(by_value={"w": {"a": 6, "b": 1, "c": 1}}), Counted(by_value={"w": {"a": 1, "d": 1}}))
    (unseen,) = measure_unseen(words, [WORDS], threshold=0.1).measured
    assert (unseen.measure, unseen.value, unseen.limit) == (UNSEEN, 0.25, 0.1)


def moved(value: float = 0.4, limit: float = 0.1, floor: float = 0.0, **changes: Any) -> ColumnComparison:
    made = ColumnComparison("x", "Jensen-Shannon", "previous", value, limit, NoChance(), (1234, 99), floor)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("value", "limit", "floor", "is_moved", "is_undecided", "ratio"),
    [
        (0.4, 0.1, 0.0, True, False, 4.0),
        (0.1, 0.1, 0.0, False, False, 1.0),
        (0.4, 0.1, 0.4, False, True, 1.0),
        (0.4, 0.1, 0.5, False, True, 0.8),
        (0.1, 0.1, 0.5, False, False, 0.2),
        (0.4, 0.0, 0.5, False, False, 0.8),
        (0.4, 0.0, 0.0, True, False, math.inf),
        (0.0, 0.0, 0.0, False, False, 0.0),
    ],
)  # fmt: skip
def test_a_value_has_moved_beyond_its_limit_and_chance_and_is_undecided_between_them(
    value: float, limit: float, floor: float, is_moved: bool, is_undecided: bool, ratio: float
) -> None:
    found = moved(value, limit, floor)
    assert (found.moved, found.is_undecided, found.ratio) == (is_moved, is_undecided, ratio)


@pytest.mark.parametrize(
    ("entry", "rows"),
    [
        (moved(0.4, 0.1, 0.4), 5000),
        (moved(0.4, 0.1, 0.4, measure="L-infinity"), 20_000),
        (moved(0.4, 0.1, 0.4, measure=MISSING), 20_000),
        (moved(0.4, 0.1, 0.4, measure=UNSEEN), 0),
        (moved(0.4, 0.1, 0.0), 0),
        (moved(0.4, 0.2, 0.4, rows=(3, 9)), 6),
        (moved(0.4, 0.2, 0.4, rows=(50, 9)), 100),
        (moved(0.4, 0.2, 0.4, rows=(51, 9)), 110),
    ],
)  # fmt: skip
def test_the_rows_that_would_tell_grow_with_what_chance_reaches(entry: ColumnComparison, rows: int) -> None:
    assert entry.rows_needed == entry.not_judged().needed == rows
    assert (f"about {rows:,} rows would tell" in entry.too_few_rows().what) == (rows > 0)


@pytest.mark.parametrize(
    ("measure", "against", "name"),
    [
        ("Jensen-Shannon", "previous", "drift/x"),
        ("L-infinity", "baseline", "baseline/drift/x"),
        (MISSING, "previous", "missing/x"),
        (UNSEEN, "serving", "serving/new/x"),
    ],
)
def test_a_comparison_has_the_same_name_in_rules_and_findings(measure: str, against: Any, name: str) -> None:
    entry = moved(measure=measure, against=against)
    assert entry.rule == entry.finding().rule == entry.not_judged().name == rule_name("x", measure, against)
    assert entry.rule == name
    assert entry.is_distance == (measure in ("Jensen-Shannon", "L-infinity"))


def section(**changes: Any) -> Validation:
    return Validation.check(changes, "test")


DAY = dt.datetime(2026, 11, 24, 23, 59, tzinfo=dt.UTC)
NOT_DONE = DataFinding(kind="COMPARISON_NOT_DONE", what="x", column="x", against="previous")
STALE = DataFinding(kind="DATA_STALE", what="old")


@pytest.mark.parametrize(
    ("finding", "rules", "severity"),
    [
        (STALE, [], "HOLD"),
        (STALE, [{"kind": "*", "severity": "WARN"}], "WARN"),
        (STALE, [{"kind": "*", "severity": "WARN"}, {"kind": "DATA_*", "severity": "BLOCK"}], "BLOCK"),
        (STALE, [{"kind": "*", "column": "x", "severity": "BLOCK"}], "HOLD"),
        (STALE, [{"kind": "*", "against": "baseline", "severity": "BLOCK"}], "HOLD"),
        (NOT_DONE, [{"kind": "*", "severity": "WARN"}], "HOLD"),
        (NOT_DONE, [{"kind": "*", "severity": "BLOCK"}, {"kind": "*", "severity": "WARN"}], "BLOCK"),
        (NOT_DONE, [{"kind": "*", "column": "x", "against": "previous", "severity": "BLOCK"}], "BLOCK"),
        (NOT_DONE, [{"kind": "*", "column": "y", "severity": "BLOCK"}], "HOLD"),
    ],
)
def test_the_last_severity_that_fits_counts_but_lowers_no_missing_comparison(
    finding: DataFinding, rules: list[dict[str, Any]], severity: str
) -> None:
    assert SeverityPolicy(section(severity=rules), None).judge(finding).severity == severity


@pytest.mark.parametrize(
    ("until", "counts"), [("2026-11-23", False), ("2026-11-24", True), ("2026-11-25", True)]
)
def test_a_suppression_counts_through_its_last_day(until: str, counts: bool) -> None:
    entry = {"kind": "DATA_STALE", "reason": "known", "until": until}
    policy = SeverityPolicy(section(suppressions=[entry]), DAY)
    found = policy.judge(STALE)
    assert (found.weight == "", found.severity) == (counts, "HOLD")
    lapsed = [entry.what for entry in policy.lapsed([found])]
    what = f"the suppression of DATA_STALE ended with {until}, and this run is of 2026-11-24 (it said: known)"
    assert lapsed == ([] if counts else [what])
    assert list(policy.lapsed([NOT_DONE])) == []


def test_the_moment_of_a_run_is_its_latest_time() -> None:
    assert moment_of(None, "", "") is None
    assert moment_of(0.0, "", "") == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert moment_of(0.0, "2026-11-23T12:00:00+02:00", "2026-11-23") == dt.datetime(
        2026, 11, 23, 10, tzinfo=dt.UTC
    )
    assert moment_of(0.0, "2026-11-22", "2026-11-23") == dt.datetime(2026, 11, 23, tzinfo=dt.UTC)


def test_findings_alike_in_several_splits_are_one_and_the_gravest_come_first() -> None:
    found = merged(
        [
            replace(STALE, split="train", severity="WARN"),
            replace(STALE, split="test", severity="WARN"),
            replace(NOT_DONE, split="train", severity="HOLD"),
            DataFinding(kind="A", what="waived", severity="BLOCK", waived="suppressed"),
            DataFinding(kind="B", what="grave", severity="BLOCK"),
        ]
    )
    assert [(entry.kind, entry.split) for entry in found] == [
        ("B", ""), ("COMPARISON_NOT_DONE", "train"), ("DATA_STALE", ""), ("A", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "against", "column", "kind"),
    [
        ("drift/x", "previous", "x", "COMPARISON_NOT_DONE"),
        ("baseline/drift/x", "baseline", "x", "COMPARISON_NOT_DONE"),
        ("serving/missing/x", "serving", "x", "COMPARISON_NOT_DONE"),
        ("drift/text", "previous", "text", "TEXT_NOT_COMPARED"),
        ("missing/text", "previous", "text", "COMPARISON_NOT_DONE"),
        ("label/x", "", "", "COMPARISON_NOT_DONE"),
        ("freshness", "", "", "COMPARISON_NOT_DONE"),
    ],
)
def test_what_was_not_judged_is_a_finding_of_its_column(
    name: str, against: str, column: str, kind: str
) -> None:
    left = NotJudged(name=name, reason="why")
    found, unjudged = weigh([], [], [left], SeverityPolicy(section(), None), ["text"])
    (only,) = found
    assert (only.against, only.column, only.kind, only.rule, unjudged) == (
        against,
        column,
        kind,
        name,
        (left,),
    )


def test_weighing_adds_what_moved_what_is_undecided_and_nothing_twice() -> None:
    finding = DataFinding(kind="DATA_STALE", what="old", rule="freshness")
    left = NotJudged(name="freshness", reason="why")
    found, unjudged = weigh(
        [finding],
        [moved(), moved(0.1), moved(0.4, 0.1, 0.4, column="y")],
        [left],
        SeverityPolicy(section(), None),
    )
    assert [(entry.kind, entry.column) for entry in found] == [
        ("DATA_STALE", ""), ("COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH", "x"), ("TOO_FEW_ROWS", "y"),
    ]  # fmt: skip
    assert [entry.name for entry in unjudged] == ["freshness", "drift/y"]


def judgement(*comparisons: ColumnComparison, **changes: Any) -> Judgement:
    found, left = weigh(
        changes.pop("found", []),
        comparisons,
        changes.pop("left", []),
        changes.pop("policy", SeverityPolicy(section(), DAY)),
    )
    limits = (NUMBERS, WORDS)
    return Judgement(
        limits=limits, findings=merged(found), comparisons=comparisons, not_judged=left, **changes
    )


def test_a_headline_has_the_one_fact_that_matters() -> None:
    near, far = moved(0.05, column="y"), moved(0.4)
    block = DataFinding(kind="NO_DATA_IN_SPAN", what="no rows")
    assert judgement(near).headline == "0 of 2 columns moved; closest y 0.050 of 0.100"
    assert judgement().headline == "0 of 2 columns moved"
    assert judgement(near, far).headline == "HOLD: 1 of 2 columns moved: x 0.400 > 0.100"
    many = [moved(0.4 + number / 100, column=f"c{number}") for number in range(5)]
    assert judgement(*many).headline.endswith(
        "c4 0.440 > 0.100, c3 0.430 > 0.100, c2 0.420 > 0.100, and 2 more"
    )
    assert judgement(far, found=[STALE]).headline.startswith("HOLD: 1 of 2")
    assert judgement(found=[STALE]).headline == "HOLD: old"
    assert judgement(far, found=[STALE, block]).headline == "FAIL: no rows"
    assert judgement(found=[block, replace(block, what="none")]).headline == "FAIL: no rows, and 1 more"
    undecided = moved(0.4, 0.1, 0.4)
    assert judgement(undecided).headline == "0 of 2 columns moved; too few rows to tell in 1"
    left = [NotJudged(name=f"drift/{name}", reason="why") for name in "abcd"]
    assert judgement(left=left).headline == (
        "HOLD: 4 columns could not be compared: why (a, b, c, and 1 more)"
    )
    other = [*left[:1], NotJudged(name="drift/z", reason="other")]
    assert judgement(left=other).headline == "HOLD: 2 columns could not be compared: why (a), and 1 more"
    known = {"kind": "*", "reason": "known", "until": "2026-12-01"}
    policy = SeverityPolicy(section(suppressions=[known]), DAY)
    assert judgement(far, policy=policy).headline.endswith("closest x 0.400 > 0.100; 1 suppressed")


@pytest.mark.parametrize(
    ("findings", "decision"),
    [([], "PASS"), ([replace(STALE, severity="WARN")], "PASS"), ([STALE], "HOLD"),
     ([STALE, DataFinding(kind="NO_DATA_IN_SPAN", what="none")], "FAIL")],
)  # fmt: skip
def test_the_gravest_finding_decides_and_the_rules_say_the_same(
    findings: list[DataFinding], decision: str
) -> None:
    found = judgement(moved(0.05), found=findings)
    assert found.decision == decision
    first, *rest = found.rules()
    assert (first.name, first.outcome()) == ("schema", decision)
    assert first.value == sum(finding.severity != "WARN" for finding in findings)
    stale = [rule.outcome() for rule in rest if rule.name == "schema/DATA_STALE"]
    assert stale == {"PASS": ["PASS"], "HOLD": ["HOLD"], "FAIL": ["HOLD"]}[decision][: len(stale)]


def test_a_broken_rule_whose_finding_is_only_told_passes_with_the_reason() -> None:
    rows = Rule(name="volume", value=9, limit=5, test=AT_MOST)
    finding = DataFinding(kind="A", what="many", severity="WARN", rule="volume")
    for severity, outcome, end in (
        ("WARN", "PASS", "only told"),
        ("HOLD", "HOLD", ""),
        ("BLOCK", "FAIL", ""),
    ):
        (rule,) = [
            rule
            for rule in judgement(found=[replace(finding, severity=severity)], counted=(rows,)).rules()
            if rule.name == "volume"
        ]
        assert (rule.outcome(), rule.detail.endswith(end)) == (outcome, True)


def test_a_baseline_that_is_missing_is_a_rule_and_a_finding_unless_it_is_skipped() -> None:
    for how, there, counts in (("skip", False, (0, 0)), ("hold", True, (1, 0)), ("fail", False, (1, 1))):
        rules, findings = baseline_check(section(on_missing_baseline=how), there=there)
        assert (len(rules), len(findings)) == counts
        assert [rule.passed for rule in rules] == [there] * len(rules)
    for how, words in (("hold", "baseline accept RUN"), ("bootstrap", "accept the one that was calculated")):
        _, (missing,) = baseline_check(section(on_missing_baseline=how), there=False, what="it is gone")
        assert missing.what.startswith("it is gone: ")
        assert words in missing.what


def test_a_reference_that_cannot_be_read_leaves_every_comparison_open() -> None:
    found = [entry.name for entry in not_compared("serving", [NUMBERS, WORDS], "it is gone")]
    assert found == [
        "serving/drift/x",
        "serving/missing/x",
        "serving/drift/w",
        "serving/missing/w",
        "serving/new/w",
    ]
