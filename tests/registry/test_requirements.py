"""Each requirement of a stage alone: what it compares, and where its limit lies."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainwright.artifacts import Environment, Trial
from trainwright.experiment import Override, Promotion, PromotionRequest
from trainwright.registry.audit import AuditEntry, AuditEvent, AuditState
from trainwright.registry.evidence import ModelSignature, ProductionModel, VersionEvidence
from trainwright.registry.policy import Approval, PromotionPolicy
from trainwright.registry.promote import PromotionResult, _decide, _Outcome, _summary, result_lines
from trainwright.registry.requirements import PromotionCase, PromotionInputs, check_requirements
from trainwright.verdicts import ABOVE, AT_LEAST, AT_MOST, BELOW, SIZE, UP_TO, NotJudged, Rule, Verdict

NOW = datetime(2026, 11, 24, tzinfo=UTC)
PLACE = Environment(name="torch", lock_sha256="", library="", library_sha256="", python="", platform="")
SIGNATURE = ModelSignature(
    frozenset({("x", "double"), ("y", "long")}), frozenset({("score", "double")}), "binary"
)
GUARDS = {"error_rate": 0.01, "latency_s": 0.2}
TRIAL = Trial(
    model="m" * 64,
    input_example="",
    said="4 scores",
    scores="ab",
    measured={
        "scores": 4,
        "scores that are no numbers": 0,
        "scores that differ at a second call": 0,
        "rows or outputs beside the signature": 0,
        "scores outside 0 to 1": 0,
    },
    environment=PLACE,
)


def verdict(decision: str = "PASS", baseline: str = "", *rules: Rule, **judged: str) -> Verdict:
    return Verdict(decision=decision, rules=rules, judged=judged, baseline_version=baseline)


def guard(name: str, limit: float, value: float = 0.0, **changes: Any) -> Rule:
    return replace(Rule(name=name, value=value, limit=limit, test=AT_MOST), **changes)


CANARY_VERDICT = verdict("PASS", "", *(guard(name, limit) for name, limit in GUARDS.items()))


def moved(
    action: str, version: str, target: str, *, ago_s: float = 100_000, begin_s: float = 100_000
) -> AuditEvent:
    """A change that was committed ``ago_s`` seconds ago; a canary's traffic began ``begin_s`` ago."""
    facts = {f"guard {name}": f"{limit:g}" for name, limit in GUARDS.items()}
    intent = AuditEntry(
        seq=1, previous="", time=(NOW - timedelta(seconds=ago_s)).isoformat(), token=1, model="m",
        kind="intent", change="c", action=action, version=version, target=target, reason="it was slow",
        facts=facts | {"start": (NOW - timedelta(seconds=begin_s)).isoformat()},
        stages={version: target, "4": "archived"},
    )  # fmt: skip
    return AuditEvent(intent, replace(intent, seq=2, kind="commit"))


def case(to: str = "staging", *, stage: str = "", there: str = "", **given: Any) -> PromotionCase:
    """Version 5 on its way, with version ``there`` in production; whatever is not given speaks for it."""
    before = {"staging": "candidate", "canary": "staging", "production": "canary", "archived": "staging"}[to]
    known = VersionEvidence(
        version="5", stage=stage or before, first=True, model_digest="m" * 64, author="ada",
        verdict=verdict("PASS", there), data_verdict=verdict(), note="n", override=None, trial=TRIAL,
        signature=SIGNATURE, records=(),
    )  # fmt: skip
    rules = {"canary": {"share": 0.1, "guards": GUARDS}, "min_soak_s": 3600, **given.get("policy", {})}
    request = {"to": to, "by": "bob", "reason": "better", **given.get("request", {})}
    policy = Promotion.model_validate(rules)
    inputs = PromotionInputs(
        PromotionPolicy(policy, given.get("source", "policy.json"), given.get("approval")),
        replace(known, **given.get("evidence", {})),
        there,
        given.get("production"),
        given.get("canary"),
        given.get("approver", ""),
    )
    event = given.get("event")
    found = {"production": there} if there else {}
    present = SimpleNamespace(
        state=AuditState.of((event.intent, event.commit) if event else ()),
        aliases=given.get("aliases", found),
        found=found,
        disagreement=given.get("disagreement", ""),
        now=NOW,
    )
    return PromotionCase(PromotionRequest.model_validate(request), inputs, cast(Any, present))


def outcomes(found: PromotionCase) -> dict[str, str]:
    """The rules that do not pass, by name."""
    rules, _ = check_requirements(found)
    return {rule.name: rule.outcome() for rule in rules if not rule.passed}


def detail(found: PromotionCase, name: str) -> str:
    rules, _ = check_requirements(found)
    (rule,) = [rule for rule in rules if rule.name == name]
    return rule.detail


def in_production(**changes: Any) -> dict[str, Any]:
    """What speaks for version 5 on its way into production, in place of version 4."""
    there: dict[str, Any] = {
        "to": "production",
        "there": "4",
        "production": ProductionModel(SIGNATURE, "p" * 64),
        "event": moved("promote", "5", "canary"),
        "canary": CANARY_VERDICT,
        "approver": "eve",
    }
    return there | changes


@pytest.mark.parametrize(
    "found",
    [
        case(),
        case("canary"),
        case("archived"),
        case(**in_production()),
        case(**in_production(there="", production=None)),
    ],
)
def test_a_version_that_meets_everything_passes(found: PromotionCase) -> None:
    assert outcomes(found) == {}


ALL = {
    "aliases are as the audit says",
    "the version counts",
    "stage",
    "model verdict",
    "data verdict",
    "loaded and tried",
}


DIRECT = {"path": ["production"], "canary": None, "four_eyes": False}


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (case("archived"), {"aliases are as the audit says", "not needed in production or for a rollback"}),
        (case(), ALL),
        (case("canary"), ALL | {"production is as it was evaluated"}),
        (
            case(**in_production()),
            ALL
            | {"production is as it was evaluated", "inputs and outputs fit production's", "canary verdict"}
            | {"seconds as a canary", "approved by another person"},
        ),
        (
            case(**in_production(policy=DIRECT, stage="candidate", event=None)),
            ALL | {"production is as it was evaluated", "inputs and outputs fit production's"},
        ),
    ],
)  # fmt: skip
def test_each_stage_has_its_requirements(found: PromotionCase, names: set[str]) -> None:
    rules, _ = check_requirements(found)
    assert {rule.name for rule in rules} == names
    assert outcomes(found) == {}
    assert all((rule.value, rule.limit) == (1, 1) for rule in rules if rule.name != "seconds as a canary")


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (case(disagreement="production is 3, not 4"), {"aliases are as the audit says": "HOLD"}),
        (case(evidence={"first": False}), {"the version counts": "FAIL"}),
        (case(evidence={"stage": ""}), {"the version counts": "FAIL", "stage": "FAIL"}),
        (case(stage="canary"), {"stage": "FAIL"}),
        (case(stage="archived"), {}),
        (case("canary", stage="archived"), {"stage": "FAIL"}),
        (case("canary", stage="candidate"), {"stage": "FAIL"}),
        (case("canary", stage="candidate", event=moved("promote", "5", "staging")), {}),
        (case(evidence={"trial": replace(TRIAL, model="o" * 64)}), {"loaded and tried": "FAIL"}),
        (case(evidence={"trial": replace(TRIAL, scores="")}), {"loaded and tried": "FAIL"}),
        (case(event=moved("rollback", "4", "production")), {}),
        (
            case("archived", aliases={"production": "5", "previous-production": "4"}),
            {"not needed in production or for a rollback": "FAIL"},
        ),
        (
            case("archived", aliases={"production": "6", "previous-production": "5"}),
            {"not needed in production or for a rollback": "FAIL"},
        ),
        (case("archived", aliases={"staging": "5"}), {}),
    ],
)
def test_a_version_with_one_thing_against_it(found: PromotionCase, broken: dict[str, str]) -> None:
    assert outcomes(found) == broken


@pytest.mark.parametrize(
    ("event", "expected", "broken"),
    [
        (moved("rollback", "4", "production"), "evaluated", {"rolled back": "HOLD"}),
        (moved("rollback", "4", "production"), "", {}),
        (moved("rollback", "5", "production"), "evaluated", {}),
        (moved("promote", "4", "production"), "evaluated", {}),
    ],
)
def test_a_version_that_was_rolled_back_comes_back_only_by_name(
    event: AuditEvent, expected: str, broken: dict[str, str]
) -> None:
    back = replace(event.intent, stages={"5": "archived", "4": "production"})
    found = case(event=AuditEvent(back, replace(back, seq=2, kind="commit")), request={"expected": expected})
    assert {name: said for name, said in outcomes(found).items() if name != "stage"} == broken


FAILED = verdict("FAIL")


def override(days: float = 1, approver: str = "eve", of: Verdict = FAILED) -> dict[str, Any]:
    ends = NOW + timedelta(days=days)
    made = Override(verdict=of.digest, approver=approver, reason="known", expires=ends)
    return {"verdict": FAILED, "override": made}


@pytest.mark.parametrize(
    ("evidence", "policy", "broken"),
    [
        ({"verdict": FAILED}, {}, True),
        ({"verdict": verdict("INCONCLUSIVE")}, {}, True),
        (override(), {}, False),
        (override(of=verdict("HOLD")), {}, True),
        (override(days=3), {"max_override_days": 3}, False),
        (override(days=3.0001), {"max_override_days": 3}, True),
        (override(days=0), {}, True),
        (override(days=-1), {}, True),
        (override(approver="ADA"), {}, True),
        (override(approver="ada"), {"four_eyes": False}, False),
    ],
)
def test_only_a_living_override_by_another_person_excuses_a_verdict(
    evidence: dict[str, Any], policy: dict[str, Any], broken: bool
) -> None:
    found = case(evidence=evidence, policy=policy)
    assert outcomes(found) == ({"model verdict": "FAIL"} if broken else {})
    late = ", more than promotion.max_override_days (3) from now"
    assert (late in detail(found, "model verdict")) == (evidence == override(days=3.0001))
    assert ("who is the author" in detail(found, "model verdict")) == (evidence == override(approver="ADA"))


HELD = verdict("HOLD", "", *(guard(f"r{number}", 1, 2) for number in range(5)), guard("fine", 1))


@pytest.mark.parametrize(
    ("data", "named", "broken"),
    [
        (HELD, "", {"data verdict": "HOLD"}),
        (HELD, FAILED.digest, {"data verdict": "HOLD"}),
        (HELD, HELD.digest, {}),
        (FAILED, "", {"data verdict": "FAIL"}),
        (FAILED, FAILED.digest, {"data verdict": "FAIL"}),
    ],
)
def test_a_data_verdict_is_accepted_by_its_digest_unless_it_is_a_fail(
    data: Verdict, named: str, broken: dict[str, str]
) -> None:
    found = case(evidence={"data_verdict": data}, request={"data_verdict": named})
    assert outcomes(found) == broken
    if data is HELD and broken:
        assert detail(found, "data verdict").startswith(
            "HOLD; r0 2 (limit 1); r1 2 (limit 1); r2 2 (limit 1); to promote it all the same"
        )


MORE = ModelSignature(SIGNATURE.inputs | {("z", "long")}, SIGNATURE.outputs, "binary")
FEWER = ModelSignature(SIGNATURE.inputs, frozenset(), "binary")


@pytest.mark.parametrize(
    ("new", "there", "said"),
    [
        (MORE, SIGNATURE, "asks for z (long)"),
        (FEWER, SIGNATURE, "lacks score (double)"),
        (SIGNATURE, MORE, ""),
        (SIGNATURE, FEWER, ""),
    ],
)
def test_callers_of_production_can_call_the_new_version(
    new: ModelSignature, there: ModelSignature, said: str
) -> None:
    name = "inputs and outputs fit production's"
    facts: dict[str, Any] = {
        "there": "4",
        "production": ProductionModel(there, "p"),
        "evidence": {"signature": new},
    }
    assert outcomes(case(**facts)) == ({name: "FAIL"} if said else {})
    assert detail(case(**facts), name) == said
    allowed = case(**facts, policy={"allow_new_inputs": True})
    assert outcomes(allowed) == {}
    assert detail(allowed, name) == (f"{said} (allowed by promotion.allow_new_inputs)" if said else "")


MODEL = ProductionModel(SIGNATURE, "p" * 64)


@pytest.mark.parametrize(
    ("compared", "there", "expected", "model", "holds"),
    [
        ("4", "4", "evaluated", "", True),
        ("4", "4", "evaluated", "p" * 64, True),
        ("4", "4", "evaluated", "q" * 64, False),
        ("4", "4", "4", "q" * 64, True),
        ("3", "4", "evaluated", "", False),
        ("3", "4", "4", "", True),
        ("", "", "evaluated", "", True),
        ("4", "", "", "", True),
        ("", "4", "", "", False),
    ],
)
def test_production_is_the_version_that_was_compared_with_or_named(
    compared: str, there: str, expected: str, model: str, holds: bool
) -> None:
    judged = {"baseline.model": model} if model else {}
    found = case(
        "canary",
        there=there,
        production=MODEL if there else None,
        request={"expected": expected},
        evidence={"verdict": replace(verdict("PASS", compared), judged=judged)},
    )
    name = "production is as it was evaluated"
    assert outcomes(found) == ({} if holds else {name: "FAIL"})
    other = model == "q" * 64 and expected == "evaluated"
    assert (", in truth with another model, qqqqqqqqqqqq" in detail(found, name)) == other


@pytest.mark.parametrize(
    ("ago_s", "begin_s", "outcome", "soaked"),
    [
        (3600, 3600, "PASS", 3600),
        (3599.999, 3600, "HOLD", 3599.999),
        (3600, 3599.999, "HOLD", 3599.999),
        (5000, 4000, "PASS", 4000),
        (60, -60, "HOLD", 0),
    ],
)
def test_a_canary_soaks_from_its_commit_or_its_start_whichever_is_later(
    ago_s: float, begin_s: float, outcome: str, soaked: float
) -> None:
    event = moved("promote", "5", "canary", ago_s=ago_s, begin_s=begin_s)
    rules, _ = check_requirements(case(**in_production(event=event)))
    (rule,) = [rule for rule in rules if rule.name == "seconds as a canary"]
    assert (rule.outcome(), rule.value, rule.limit) == (outcome, soaked, 3600)


def test_a_version_that_was_no_canary_has_not_soaked() -> None:
    event = moved("promote", "5", "staging")
    found = case(**in_production(event=event, canary=CANARY_VERDICT))
    assert outcomes(found) == {"seconds as a canary": "HOLD", "stage": "FAIL"}
    assert outcomes(case(**in_production(event=None))) == {"seconds as a canary": "HOLD"}
    assert {rule.value for rule in check_requirements(found)[0] if rule.name == "seconds as a canary"} == {0}


STRICT, LOOSE = guard("error_rate", 0.01), guard("error_rate", 0.02)
OTHER = guard("latency_s", 0.2)
WIDE = {"test": BELOW, "interval": (0.0, 0.3)}


@pytest.mark.parametrize(
    ("canary", "outcome"),
    [
        (None, "HOLD"),
        (verdict("FAIL", "", STRICT, OTHER), "FAIL"),
        (verdict("HOLD", "", STRICT, OTHER), "HOLD"),
        (verdict("INCONCLUSIVE", "", STRICT, OTHER), "HOLD"),
        (verdict("PASS", "", STRICT), "HOLD"),
        (verdict("PASS", "", LOOSE, OTHER), "HOLD"),
        (verdict("PASS", "", STRICT, OTHER), ""),
        (verdict("PASS", "", STRICT, guard("latency_s", 0.2, 0.2)), ""),
        (verdict("PASS", "", STRICT, guard("latency_s", 0.2, 0.3, broken="PASS")), "HOLD"),
        (verdict("PASS", "", STRICT, guard("latency_s", 0.2, 0.1, unsure="PASS", **WIDE)), "HOLD"),
        (verdict("PASS", "", STRICT, guard("latency_s", 0.2, 0.3, test=ABOVE, interval=(0.3, 0.4))), "HOLD"),
        *(
            (verdict("PASS", "", STRICT, guard("latency_s", 0.2, 0.1, test=test, interval=(0.0, 0.15))), "")
            for test in (BELOW, UP_TO, SIZE)
        ),
    ],
)  # fmt: skip
def test_a_canary_has_a_rule_for_every_guard_at_its_limit(canary: Verdict | None, outcome: str) -> None:
    found = case(**in_production(canary=canary))
    assert outcomes(found) == ({"canary verdict": outcome} if outcome else {})


PROVEN = Approval(issuer="https://ci", approvers=("eve",))


@pytest.mark.parametrize(
    ("author", "approver", "changes", "said"),
    [
        ("ada", "eve", {}, "trained by ada, requested by bob, approved by eve"),
        ("ada", "", {}, "nobody approved it (approver)"),
        ("ada", "", {"approval": PROVEN}, "the policy requires the token of an approver (approval)"),
        ("  ", "eve", {}, "registry.author was empty at registration"),
        ("ada", "ADA", {}, "approved by ADA, who is the author"),
        ("ada", "bob", {}, "approved by bob, who is the requester"),
        ("bob", "Bob", {}, "approved by Bob, who is the author and the requester"),
    ],
)
def test_production_needs_an_approver_who_is_neither_author_nor_requester(
    author: str, approver: str, changes: dict[str, Any], said: str
) -> None:
    found = case(**in_production(approver=approver, evidence={"author": author}, **changes) | {"there": ""}
                 | {"production": None})  # fmt: skip
    assert said in detail(found, "approved by another person")
    holds = said.endswith("approved by eve")
    assert outcomes(found) == ({} if holds else {"approved by another person": "HOLD"})


@pytest.mark.parametrize(
    ("to", "four_eyes", "approval", "overridden", "asked"),
    [
        ("production", True, None, False, True),
        ("production", False, None, False, False),
        ("production", False, PROVEN, False, False),
        ("production", False, PROVEN, True, True),
        ("production", False, None, True, False),
        ("canary", True, PROVEN, False, False),
        ("canary", True, PROVEN, True, True),
        ("canary", True, None, True, False),
    ],
)
def test_an_approval_is_required_for_production_and_of_an_override_where_tokens_prove_it(
    to: str, four_eyes: bool, approval: Approval | None, overridden: bool, asked: bool
) -> None:
    evidence = override() if overridden else {}
    rules, _ = check_requirements(
        case(to, policy={"four_eyes": four_eyes}, approval=approval, evidence=evidence)
    )
    assert ("approved by another person" in {rule.name for rule in rules}) == asked


def test_what_was_not_judged_is_named() -> None:
    _, unjudged = check_requirements(case(source="the request"))
    assert unjudged == [
        NotJudged(name="policy", reason="policy from the request, not from a protected file"),
        NotJudged(name="inputs", reason="no version is in production"),
    ]
    assert check_requirements(case(there="4", production=MODEL))[1] == []


@pytest.mark.parametrize("there", ["4", ""])
def test_production_that_moved_while_it_was_decided_is_held(there: str) -> None:
    found = case("canary", there="4", production=MODEL)
    found.present.found = {"production": there} if there else {}
    outcome = _Outcome()
    if there:
        cast(Any, found.present).intent = lambda *_, **fields: fields
        intent = cast(Any, _decide(found, outcome))
        assert (intent["origin"], intent["expected"]) == ("staging", "4")
        assert intent["who"] == {"by": "bob", "author": "ada"}
    else:
        assert _decide(found, outcome) is None
    assert outcome.verdict is not None
    assert outcome.verdict.decision == ("PASS" if there else "HOLD")
    assert outcome.verdict.baseline_version == "4"


@pytest.mark.parametrize(
    ("version", "target", "done"), [("5", "canary", True), ("5", "staging", False), ("6", "canary", False)]
)
def test_a_promotion_that_was_done_before_is_not_done_again(version: str, target: str, done: bool) -> None:
    found = case("canary", event=moved("promote", version, target))
    cast(Any, found.present).intent = lambda *_, **fields: fields
    outcome = _Outcome()
    assert (_decide(found, outcome) is None) == done
    assert (outcome.done_before, outcome.event is not None) == (done, done)


def result(decision: str = "PASS", to: str = "production", *, before: bool = False) -> PromotionResult:
    return PromotionResult(
        model="m", version="5", to=to, decision=decision, done_before=before, production="5", entry=7,
        entry_digest="e", audit="/audit", verdict="v",
    )  # fmt: skip


SHORT = Rule(name="seconds as a canary", value=60, limit=3600, test=AT_LEAST, broken="HOLD")
MET = Rule(name="model verdict", value=1, limit=1, test=AT_LEAST, detail="PASS")
BARE = Rule(name="the version counts", value=1, limit=1, test=AT_LEAST)
LEFT = (NotJudged(name="policy", reason="from the request"), NotJudged(name="x", reason="y", decision="HOLD"))
BACK = "trainwright model rollback"


@pytest.mark.parametrize(
    ("made", "rules", "left", "headline"),
    [
        (result(), (MET, BARE), (), "PASS: m version 5 is production, was 4, entry 7"),
        (result(to="canary"), (MET,), LEFT[:1], "PASS: m version 5 is canary, entry 7"),
        (result(before=True), (MET,), (), "PASS: m version 5 was production before, entry 7"),
        (result("HOLD"), (MET, SHORT), LEFT, "HOLD: m version 5 stays: seconds as a canary 60 < 3600; x: y"),
        (result("HOLD", before=True), (SHORT,), (), "HOLD: m version 5 stays: seconds as a canary 60 < 3600"),
        (
            result("FAIL"),
            (replace(MET, value=0, detail="FAIL"), SHORT, replace(SHORT, name="z")),
            (),
            "FAIL: m version 5 stays: model verdict: FAIL; seconds as a canary 60 < 3600",
        ),
    ],
)
def test_a_result_is_told_in_a_line_with_its_reasons_first(
    made: PromotionResult, rules: tuple[Rule, ...], left: tuple[NotJudged, ...], headline: str
) -> None:
    judged = Verdict(decision=made.decision, rules=rules, judged={}, not_judged=left, baseline_version="4")
    first, *lines = result_lines(made, judged)
    assert first == headline
    rows = [line.split()[0] for line in lines if not line.startswith(("  audit", "  back"))]
    assert sorted(rows, key=lambda row: row in ("PASS", "-")) == rows
    assert len(rows) == len(rules) + len(left)
    assert any(line.startswith("  audit         /audit, entry 7") for line in lines) == (
        made.decision == "PASS"
    )
    again = made.decision == "PASS" and made.to == "production"
    page = _summary(made, judged, None)
    assert any(BACK in line for line in lines) == (BACK in page) == again
    assert f"**{made.decision}: m version 5" in page
    assert ("not judged" in page) == bool(left)
    assert ("60 of 3600" in page) == (SHORT in rules)
    assert "1 of 1" not in page


def test_a_requirement_that_is_not_met_is_told_with_its_numbers() -> None:
    judged = Verdict(decision="FAIL", rules=(replace(BARE, value=0),), judged={})
    assert "0 of 1" in _summary(result("FAIL"), judged, None)
