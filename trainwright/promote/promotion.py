"""The step: a version is held against what its next stage demands, and moved there if it has it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Promotion, PromotionRequest, Registry
from trainwright.promote.aliases import promoted
from trainwright.promote.evidence import (
    Evidence,
    InProduction,
    read_canary_verdict,
    read_evidence,
    read_production,
)
from trainwright.promote.place import audit_of, opened
from trainwright.promote.requirements import Case, agrees, before, judge
from trainwright.promote.summary import headline, summarize
from trainwright.registry.change import Change, Place, Present, changed
from trainwright.registry.entries import PROMOTE, Event
from trainwright.registry.names import CANARY, PRODUCTION
from trainwright.registry.versions import alias_of
from trainwright.storage import redacted
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import persist
from trainwright.verdicts import NotJudged, Rule, Verdict, worst


@dataclass(frozen=True, kw_only=True)
class Promoted(Document):
    """What came of a request.

    Attributes:
        model: Name of the registered model.
        version: The version that was asked for.
        to: The stage that was asked for.
        decision: ``PASS`` if it stands there now.
        done_before: It stood there already; nothing was changed.
        production: The version in production now; empty for none.
        entry: Number of the audit's entry that says so; 0 if there is none.
        entry_digest: Its digest.
        audit: Where the audit lies.
        verdict: Digest of the verdict on the request.
    """

    FILE: ClassVar[str] = "promotion.json"
    model: str
    version: str
    to: str
    decision: str
    done_before: bool
    production: str
    entry: int
    entry_digest: str
    audit: str
    verdict: str


@dataclass
class _Outcome:
    """What was found while nobody else could change anything."""

    verdict: Verdict | None = None
    event: Event | None = None
    done_before: bool = False
    production: str = ""
    rules: list[Rule] = field(default_factory=list)


def promote(
    registry: Registry, policy: Promotion, request: PromotionRequest, folder: Path, summary: Path
) -> Promoted:
    """Bring a version to its next stage, if it has what that demands.

    Args:
        registry: Where the model is registered, and its audit.
        policy: What is demanded.
        request: What is asked for, by whom and why.
        folder: For ``promotion.json``, ``verdict.json`` and ``record.json``.
        summary: Markdown file.

    Returns:
        What came of it: not only PASS.

    Raises:
        InputError: There is no such version, its files were changed, or the request lacks something.
        DependencyError: MLflow or the audit's store was away.
        TransientError: Another promotion of this model went on for ``policy.wait_s``.
        PermissionRefused: MLflow or the store refuses this identity.
    """
    watch = Stopwatch()
    _require_complete(policy, request)
    place = opened(registry, policy.lease_s, policy.wait_s)

    def ask() -> tuple[Evidence, InProduction | None, str]:
        version = request.version or _standing_before(place, policy, request)
        there = alias_of(place.client, registry.model, PRODUCTION)
        found = read_evidence(place.client, audit_of(registry), registry.model, version)
        if not there or there == version:
            return found, None, there
        return found, read_production(place.client, registry.model, there), there

    evidence, production, there = persist(ask, registry.tracking_uri, registry.retry_s)
    canary = None
    if request.to == PRODUCTION and request.canary_verdict:
        canary = read_canary_verdict(request.canary_verdict, evidence.model_digest)
    outcome = _Outcome()

    def decide(present: Present) -> Change | None:
        case = Case(request, policy, evidence, production, canary, present)
        return _decide(case, there, outcome)

    outcome.event = changed(place, decide) or outcome.event
    made = _document(registry, request, evidence, place, outcome)
    _write(made, outcome, registry, policy, request, evidence, folder, summary, watch)
    return made


def _require_complete(policy: Promotion, request: PromotionRequest) -> None:
    if request.to in ("staging", "canary") and request.to not in policy.path:
        raise InputError(f"{request.to} is not on promotion.path, which is {list(policy.path)}", where="to")
    if request.to == CANARY and policy.canary is None:
        raise InputError(
            "promotion.canary is not set: which share of the requests, and what is watched meanwhile",
            where="promotion.canary",
            hint="For example: canary: {share: 0.05, guards: {error_rate: 0.01}}",
        )


def _standing_before(place: Place, policy: Promotion, request: PromotionRequest) -> str:
    """Return the version in the stage before; if there is none, the one that stands in this stage already."""
    stages = [stage for stage in (before(policy, request.to), request.to) if stage]
    for stage in stages:
        if found := alias_of(place.client, place.chain.model, stage):
            return found
    raise InputError(
        f"no version of {place.chain.model!r} is {' or '.join(stages)}",
        where="version",
        hint="Name the version; trainwright model history lists where versions stand.",
    )


def _decide(case: Case, read: str, outcome: _Outcome) -> Change | None:
    """Judge; return what is to be done, or None."""
    present, request, version = case.present, case.request, case.evidence.version
    outcome.production = present.aliases.get(PRODUCTION, "")
    last = present.state.last_move(version)
    if last and last.intent.version == version and last.intent.target == request.to:
        outcome.event, outcome.done_before = last, True
    rules, unjudged = ([], []) if outcome.done_before else judge(case)
    if not outcome.done_before and present.found.get(PRODUCTION, "") != read:
        unjudged.append(
            NotJudged(name="inputs", reason="production moved while this was decided", decision="HOLD")
        )
    if outcome.done_before:
        said = f"version {version} is {request.to} since entry {last.commit.seq}" if last else ""
        done = Rule(name="done before", value=1.0, limit=1.0, passed=True, detail=said, decision="PASS")
        rules = [done, agrees(case)]
    outcome.verdict = _verdict(case, rules, unjudged)
    if outcome.done_before or outcome.verdict.decision != "PASS":
        return None
    standing = promoted(present.aliases, version, request.to)
    outcome.production = standing.aliases.get(PRODUCTION, "")
    return Change(
        action=PROMOTE,
        version=version,
        model_digest=case.evidence.model_digest,
        origin=case.stage,
        target=request.to,
        expected=case.expected,
        after=standing.aliases,
        stages=standing.stages,
        who=_who(case),
        reason=request.reason,
        evidence=outcome.verdict.judged | {"promotion_verdict": outcome.verdict.digest},
        facts=_facts(case),
    )


def _verdict(case: Case, rules: list[Rule], unjudged: list[NotJudged]) -> Verdict:
    evidence = case.evidence
    judged = {
        "model": evidence.model_digest,
        "model_verdict": evidence.verdict.digest,
        "data_verdict": evidence.data_verdict.digest,
        "registration": evidence.note,
        "trial": evidence.trial.digest,
        "promotion": digest_text(case.policy.to_json()),
        "request": digest_text(case.request.to_json()),
    }
    judged |= {"canary_verdict": case.canary.digest} if case.canary else {}
    said = [entry.decision for entry in unjudged if entry.decision]
    return Verdict(
        decision=worst([*(rule.outcome() for rule in rules), *said]),
        rules=tuple(rules),
        judged=judged,
        not_judged=tuple(unjudged),
        baseline_version=case.present.aliases.get(PRODUCTION, ""),
    )


def _who(case: Case) -> dict[str, str]:
    names = {
        "by": case.request.by,
        "approver": case.request.approver,
        "author": case.evidence.author,
        "override": case.evidence.override.approver if case.evidence.override else "",
    }
    return {name: value for name, value in names.items() if value}


def _facts(case: Case) -> dict[str, str]:
    """Return what else was decided, as texts."""
    facts = {"path": " ".join(case.policy.path), "compared": case.evidence.verdict.baseline_version or "none"}
    if case.evidence.data_verdict.decision != "PASS":
        facts["data"] = f"{case.evidence.data_verdict.decision}, accepted"
    canary = case.policy.canary
    if case.request.to == CANARY and canary:
        begins = max(canary.start, case.present.now) if canary.start else case.present.now
        guards = {f"guard {name}": f"{limit:g}" for name, limit in canary.guards.items()}
        facts |= {"share": f"{canary.share:g}", "start": begins.isoformat(), **guards}
    if case.request.canary_verdict and case.canary:
        facts["canary_verdict"] = redacted(case.request.canary_verdict)
    return facts


def _document(
    registry: Registry, request: PromotionRequest, evidence: Evidence, place: Place, outcome: _Outcome
) -> Promoted:
    verdict, event = _decided(outcome), outcome.event
    return Promoted(
        model=registry.model,
        version=evidence.version,
        to=request.to,
        decision=verdict.decision,
        done_before=outcome.done_before,
        production=outcome.production,
        entry=event.commit.seq if event else 0,
        entry_digest=event.commit.digest if event else "",
        audit=redacted(place.chain.place),
        verdict=verdict.digest,
    )


def _decided(outcome: _Outcome) -> Verdict:
    assert outcome.verdict is not None  # noqa: S101 - it was decided, or an error was raised
    return outcome.verdict


def _write(
    made: Promoted,
    outcome: _Outcome,
    registry: Registry,
    policy: Promotion,
    request: PromotionRequest,
    evidence: Evidence,
    folder: Path,
    summary: Path,
    watch: Stopwatch,
) -> None:
    verdict = _decided(outcome)
    folder.mkdir(parents=True, exist_ok=True)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(summarize(made, verdict, outcome.event))
    watch.record(
        folder,
        "promote",
        headline(made, verdict),
        decision=verdict.decision,
        config={
            "registry": registry.model_dump(mode="json"),
            "promotion": policy.model_dump(mode="json"),
            "request": request.model_dump(mode="json"),
        },
        inputs={"model": evidence.model_digest, "model_verdict": evidence.verdict.digest},
        outputs={"promotion": made.digest, "verdict": verdict.digest},
        parents=evidence.records,
    )
    made.write(folder)
    verdict.write(folder)
