"""Requirements for a stage, each as a rule with its number and limit, and what they are checked with."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from trainwright.experiment import Promotion, PromotionRequest, Registry
from trainwright.registry.audit import ROLLBACK, AuditEvent
from trainwright.registry.changes import RegistryState, require_audit
from trainwright.registry.evidence import (
    ModelSignature,
    ProductionModel,
    VersionEvidence,
    read_canary_verdict,
    read_evidence,
    read_production_model,
)
from trainwright.registry.names import ARCHIVED, CANARY, CANDIDATE, PREVIOUS, PRODUCTION
from trainwright.registry.policy import REQUESTED, PromotionPolicy, same_person, verify_approval
from trainwright.registry.signing import Keyring
from trainwright.verdicts import AT_LEAST, AT_MOST, BELOW, SIZE, UP_TO, NotJudged, Rule, Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class PromotionInputs:
    """Policy, evidence and persons of a promotion.

    Attributes:
        there: Version in production when they were read; empty for none.
        production: Its model; None if there is none, or it is the version itself.
        canary: The verdict on the canary; None if the request names none.
        approver: Who approves: proved by a token if the policy names approvers, else as typed.
    """

    policy: PromotionPolicy
    evidence: VersionEvidence
    there: str
    production: ProductionModel | None
    canary: Verdict | None
    approver: str


def read_inputs(
    client: "MlflowClient",
    registry: Registry,
    policy: PromotionPolicy,
    request: PromotionRequest,
    version: str,
    there: str,
) -> PromotionInputs:
    """Read and verify the inputs of a decision about a version; ``there`` is the one in production.

    Raises:
        InputError: A version, file, note or token is missing or was changed.
    """
    keys = Keyring.of(registry)
    evidence = read_evidence(client, require_audit(registry), registry.model, version, keys)
    production = None
    if there and there != version:
        production = read_production_model(client, registry.model, there)
    canary = None
    if request.to == PRODUCTION and request.canary_verdict:
        canary = read_canary_verdict(request.canary_verdict, evidence.model_digest)
    approver = request.approver.strip()
    if policy.approval:
        proof = (request.approval, request.to, evidence.model_digest)
        approver = verify_approval(policy.approval, policy.keys, *proof) if request.approval else ""
    return PromotionInputs(policy, evidence, there, production, canary, approver)


EVALUATED = "evaluated"
"""Placeholder for the version that the evaluation compared with."""

_MOST_SAID = 3


@dataclass(frozen=True)
class PromotionCase:
    """A promotion request with the inputs of its decision, under the lease."""

    request: PromotionRequest
    inputs: PromotionInputs
    present: RegistryState

    @property
    def policy(self) -> Promotion:
        """The promotion policy that applies."""
        return self.inputs.policy.promotion

    @property
    def evidence(self) -> VersionEvidence:
        """The evidence of the version."""
        return self.inputs.evidence

    @property
    def production(self) -> ProductionModel | None:
        """The model in production; None if there is none."""
        return self.inputs.production

    @property
    def canary(self) -> Verdict | None:
        """The verdict on the canary; None if the request names none."""
        return self.inputs.canary

    @property
    def expected(self) -> str:
        """The version that must still be in production; empty for none."""
        expected = self.request.expected
        return self.evidence.verdict.baseline_version if expected == EVALUATED else expected

    @property
    def stage(self) -> str:
        """The stage of the version: from the audit, or from MLflow for a version without an entry."""
        return self.present.state.stage(self.evidence.version) or self.evidence.stage


def previous_stage(policy: Promotion, to: str) -> str:
    """Return the stage before ``to`` on the policy's path; empty if it is not on it."""
    path = (CANDIDATE, *policy.path)
    return path[path.index(to) - 1] if to in path else ""


def check_requirements(case: PromotionCase) -> tuple[list[Rule], list[NotJudged]]:
    """Evaluate the requirements of the requested stage; return the rules and what was not judged."""
    if case.request.to == ARCHIVED:
        return [aliases_agree(case), _is_at_rest(case)], []
    rules = [aliases_agree(case), _counts(case), _comes_from(case), _passed(case)]
    rules += [_data_passed(case), _tried(case)]
    rules += _rolled_back(case)
    unjudged: list[NotJudged] = []
    if case.inputs.policy.source == REQUESTED:
        unjudged.append(NotJudged(name="policy", reason="policy from the request, not from a protected file"))
    if case.production is None:
        unjudged.append(NotJudged(name="inputs", reason="no version is in production"))
    else:
        rules.append(_fits(case, case.production.signature))
    if case.request.to in (CANARY, PRODUCTION):
        rules.append(_is_current(case))
    if case.request.to == PRODUCTION:
        rules += _after_a_canary(case)
    rules += _approved(case)
    return rules, unjudged


def _rule(name: str, holds: bool, detail: str, otherwise: str = "FAIL") -> Rule:
    return Rule(
        name=name,
        value=float(holds),
        limit=1.0,
        test=AT_LEAST,
        detail=detail,
        broken=otherwise,
    )


def aliases_agree(case: PromotionCase) -> Rule:
    """HOLD while MLflow's aliases differ from the audit."""
    difference = case.present.disagreement
    detail = f"{difference}. Somebody moved it by hand: trainwright model restore" if difference else ""
    return _rule("aliases are as the audit says", not difference, detail, "HOLD")


def _counts(case: PromotionCase) -> Rule:
    evidence = case.evidence
    counts = evidence.first and bool(evidence.stage)
    left = "left over from a request that was repeated; another version has its key"
    return _rule("the version counts", counts, "" if counts else left)


def _comes_from(case: PromotionCase) -> Rule:
    """Require the previous stage; an archived version starts at the first stage again."""
    required, stage = previous_stage(case.policy, case.request.to), case.stage
    again = required == CANDIDATE and stage == ARCHIVED
    detail = f"it is {stage or 'nowhere'}; {case.request.to} comes after {required}"
    return _rule("stage", stage == required or again, detail)


def _rolled_back(case: PromotionCase) -> Iterator[Rule]:
    """Require that a person names the version to replace, lest a retried step restores one rolled back."""
    event = case.present.state.last_move(case.evidence.version)
    if event is None or event.intent.action != ROLLBACK or event.intent.version == case.evidence.version:
        return
    named = case.request.expected != EVALUATED
    advice = "" if named else "; to bring it back all the same, name the version in production (expected)"
    said = f"it was rolled back at {event.commit.time[:19]}Z: {event.intent.reason}{advice}"
    yield _rule("rolled back", named, said, "HOLD")


def _passed(case: PromotionCase) -> Rule:
    verdict, override = case.evidence.verdict, case.evidence.override
    if verdict.decision == "PASS":
        return _rule("model verdict", True, "PASS")
    if override is None or override.verdict != verdict.digest:
        return _rule("model verdict", False, f"{verdict.decision}, and nobody overrode it")
    said = f"{verdict.decision}, overridden by {override.approver} until {override.expires.isoformat()}"
    ends_in = override.expires - case.present.now
    longest = timedelta(days=case.policy.max_override_days)
    if ends_in > longest:
        said += f", more than promotion.max_override_days ({longest.days}) from now"
    own = case.policy.four_eyes and same_person(override.approver, case.evidence.author)
    said += ", who is the author" if own else ""
    holds = timedelta() < ends_in <= longest and not own
    return _rule("model verdict", holds, f"{said}: {override.reason}")


def _data_passed(case: PromotionCase) -> Rule:
    """Require a PASS, or for a HOLD a request that names this verdict."""
    verdict = case.evidence.data_verdict
    if verdict.decision == "PASS":
        return _rule("data verdict", True, "PASS")
    if case.request.data_verdict == verdict.digest and verdict.decision != "FAIL":
        return _rule("data verdict", True, f"{verdict.decision}, accepted by {case.request.by}")
    broken = [
        f"{rule.name} {rule.value:g} (limit {rule.limit:g})" for rule in verdict.rules if not rule.passed
    ]
    said = "; ".join([verdict.decision, *broken[:_MOST_SAID]])
    advice = f"to promote it all the same, name the verdict and why (data_verdict {verdict.digest})"
    return _rule("data verdict", False, f"{said}; {advice}", "FAIL" if verdict.decision == "FAIL" else "HOLD")


def _tried(case: PromotionCase) -> Rule:
    evidence = case.evidence
    problems = evidence.trial.problems(evidence.signature.target)
    holds = not problems and evidence.trial.model == evidence.model_digest
    return _rule("loaded and tried", holds, "; ".join(problems) or evidence.trial.said)


def _fits(case: PromotionCase, production: ModelSignature) -> Rule:
    """Require that callers of the production model can call this one."""
    new = sorted(case.evidence.signature.inputs - production.inputs)
    gone = sorted(production.outputs - case.evidence.signature.outputs)
    said = [f"asks for {name} ({kind})" for name, kind in new] + [
        f"lacks {name} ({kind})" for name, kind in gone
    ]
    holds = not said or case.policy.allow_new_inputs
    allowed = " (allowed by promotion.allow_new_inputs)" if said and holds else ""
    return _rule("inputs and outputs fit production's", holds, "; ".join(said) + allowed)


def _is_current(case: PromotionCase) -> Rule:
    there, compared_with = case.present.aliases.get(PRODUCTION, ""), case.evidence.verdict.baseline_version
    said = f"version {there or 'none'} is in production, it was compared with {compared_with or 'none'}"
    if case.request.expected != EVALUATED:
        said += f", the request names {case.expected or 'none'} (expected)"
    is_there = there == case.expected
    compared = case.evidence.verdict.judged.get("baseline.model")
    if is_there and case.request.expected == EVALUATED and compared and case.production:
        is_there = compared == case.production.model_digest
        said += "" if is_there else f", in truth with another model, {compared[:12]}"
    advice = "" if is_there else ". Evaluate it again, against the one that is there now"
    return _rule("production is as it was evaluated", is_there, said + advice)


def _after_a_canary(case: PromotionCase) -> Iterator[Rule]:
    if CANARY not in case.policy.path:
        return
    event = case.present.state.last_move(case.evidence.version)
    yield _canary_passed(case, event)
    soaked = _soaked_s(case, event) if event and event.intent.target == CANARY else 0.0
    limit = float(case.policy.min_soak_s)
    yield Rule(
        name="seconds as a canary",
        value=round(soaked, 3),
        limit=limit,
        test=AT_LEAST,
        broken="HOLD",
    )


def _canary_passed(case: PromotionCase, event: AuditEvent | None) -> Rule:
    """Require a PASS with a rule for every guard in the audit, at its limit."""
    verdict = case.canary
    if verdict is None:
        return _rule("canary verdict", False, "none was given (canary_verdict)", "HOLD")
    if verdict.decision != "PASS":
        return _rule(
            "canary verdict", False, verdict.decision, "FAIL" if verdict.decision == "FAIL" else "HOLD"
        )
    judged = {f"guard {rule.name}": f"{rule.limit:g}" for rule in verdict.rules if _guards(rule)}
    facts = event.intent.facts if event else {}
    guards = {name: limit for name, limit in facts.items() if name.startswith("guard ")}
    missing = [
        f"{name} {limit}, it has {judged.get(name, 'none')}"
        for name, limit in sorted(guards.items())
        if judged.get(name) != limit
    ]
    said = f"it has no rule for {'; '.join(missing)}" if missing else "PASS"
    return _rule("canary verdict", not missing, said, "HOLD")


def _guards(rule: Rule) -> bool:
    """Return whether a rule keeps its number at or below its limit; an excuse or a wide interval does not."""
    strict = replace(rule, broken="FAIL", unsure="HOLD")
    return rule.test in (AT_MOST, UP_TO, BELOW, SIZE) and strict.passed


def _soaked_s(case: PromotionCase, event: AuditEvent) -> float:
    begun = max(event.commit.moment, datetime.fromisoformat(event.intent.facts["start"]).astimezone(UTC))
    return max((case.present.now - begun).total_seconds(), 0.0)


def _approved(case: PromotionCase) -> Iterator[Rule]:
    """Require an approver who is neither author nor requester, by a token if the policy names approvers."""
    approval = case.inputs.policy.approval
    overridden = case.evidence.verdict.decision != "PASS"
    production = case.request.to == PRODUCTION and case.policy.four_eyes
    if not (production or (approval and overridden)):
        return
    author, approver = case.evidence.author.strip(), case.inputs.approver
    others = {"author": author, "requester": case.request.by}
    same = [role for role, name in others.items() if same_person(name, approver)]
    if not author:
        said = "registry.author was empty at registration, so no approver can be compared with the author"
    elif not approver:
        said = "nobody approved it (approver)"
        if approval:
            said = "the policy requires the token of an approver (approval); a typed name does not count"
    else:
        said = f"trained by {author}, requested by {case.request.by}, approved by {approver}"
        said += f", who is the {' and the '.join(same)}" if same else ""
    yield _rule("approved by another person", bool(author and approver) and not same, said, "HOLD")


def _is_at_rest(case: PromotionCase) -> Rule:
    used = [
        alias for alias in (PRODUCTION, PREVIOUS) if case.present.aliases.get(alias) == case.evidence.version
    ]
    said = f"it is {' and '.join(used)}" if used else ""
    return _rule("not needed in production or for a rollback", not used, said)
