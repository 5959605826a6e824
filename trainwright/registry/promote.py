"""Promote a version to its next stage if it meets the requirements."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trainwright.documents import Document, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Promotion, PromotionRequest, Registry
from trainwright.registry.audit import PROMOTE, AuditEvent
from trainwright.registry.changes import (
    AliasChange,
    RegistryConnection,
    RegistryState,
    after_promotion,
    apply_change,
    open_registry,
    require_audit,
)
from trainwright.registry.evidence import (
    ProductionModel,
    VersionEvidence,
    read_canary_verdict,
    read_evidence,
    read_production_model,
)
from trainwright.registry.names import CANARY, PRODUCTION
from trainwright.registry.requirements import PromotionCase, aliases_agree, check_requirements, previous_stage
from trainwright.registry.versions import alias_of
from trainwright.report.markdown import escape, table
from trainwright.storage import redacted
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import persist
from trainwright.verdicts import NotJudged, Rule, Verdict, worst


@dataclass(frozen=True, kw_only=True)
class PromotionResult(Document):
    """The result of a promotion request.

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
    """Findings collected while the lease is held."""

    verdict: Verdict | None = None
    event: AuditEvent | None = None
    done_before: bool = False
    production: str = ""
    rules: list[Rule] = field(default_factory=list)


def promote(
    registry: Registry, policy: Promotion, request: PromotionRequest, folder: Path, summary: Path
) -> PromotionResult:
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
    place = open_registry(registry, policy.lease_s, policy.wait_s)

    def ask() -> tuple[VersionEvidence, ProductionModel | None, str]:
        version = request.version or _standing_before(place, policy, request)
        there = alias_of(place.client, registry.model, PRODUCTION)
        found = read_evidence(place.client, require_audit(registry), registry.model, version)
        if not there or there == version:
            return found, None, there
        return found, read_production_model(place.client, registry.model, there), there

    evidence, production, there = persist(ask, registry.tracking_uri, registry.retry_s)
    canary = None
    if request.to == PRODUCTION and request.canary_verdict:
        canary = read_canary_verdict(request.canary_verdict, evidence.model_digest)
    outcome = _Outcome()

    def decide(present: RegistryState) -> AliasChange | None:
        case = PromotionCase(request, policy, evidence, production, canary, present)
        return _decide(case, there, outcome)

    outcome.event = apply_change(place, decide) or outcome.event
    made = _result(registry, request, evidence, place, outcome)
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


def _standing_before(place: RegistryConnection, policy: Promotion, request: PromotionRequest) -> str:
    """Return the version in the stage before; if there is none, the one that stands in this stage already."""
    stages = [stage for stage in (previous_stage(policy, request.to), request.to) if stage]
    for stage in stages:
        if found := alias_of(place.client, place.chain.model, stage):
            return found
    raise InputError(
        f"no version of {place.chain.model!r} is {' or '.join(stages)}",
        where="version",
        hint="Name the version; trainwright model history lists where versions stand.",
    )


def _decide(case: PromotionCase, read: str, outcome: _Outcome) -> AliasChange | None:
    """Judge; return what is to be done, or None."""
    present, request, version = case.present, case.request, case.evidence.version
    outcome.production = present.aliases.get(PRODUCTION, "")
    last = present.state.last_move(version)
    if last and last.intent.version == version and last.intent.target == request.to:
        outcome.event, outcome.done_before = last, True
    rules, unjudged = ([], []) if outcome.done_before else check_requirements(case)
    if not outcome.done_before and present.found.get(PRODUCTION, "") != read:
        unjudged.append(
            NotJudged(name="inputs", reason="production moved while this was decided", decision="HOLD")
        )
    if outcome.done_before:
        said = f"version {version} is {request.to} since entry {last.commit.seq}" if last else ""
        done = Rule(name="done before", value=1.0, limit=1.0, passed=True, detail=said, decision="PASS")
        rules = [done, aliases_agree(case)]
    outcome.verdict = _verdict(case, rules, unjudged)
    if outcome.done_before or outcome.verdict.decision != "PASS":
        return None
    standing = after_promotion(present.aliases, version, request.to)
    outcome.production = standing.aliases.get(PRODUCTION, "")
    return AliasChange(
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


def _verdict(case: PromotionCase, rules: list[Rule], unjudged: list[NotJudged]) -> Verdict:
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


def _who(case: PromotionCase) -> dict[str, str]:
    names = {
        "by": case.request.by,
        "approver": case.request.approver,
        "author": case.evidence.author,
        "override": case.evidence.override.approver if case.evidence.override else "",
    }
    return {name: value for name, value in names.items() if value}


def _facts(case: PromotionCase) -> dict[str, str]:
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


def _result(
    registry: Registry,
    request: PromotionRequest,
    evidence: VersionEvidence,
    place: RegistryConnection,
    outcome: _Outcome,
) -> PromotionResult:
    verdict, event = _require_verdict(outcome), outcome.event
    return PromotionResult(
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


def _require_verdict(outcome: _Outcome) -> Verdict:
    assert outcome.verdict is not None  # noqa: S101 - it was decided, or an error was raised
    return outcome.verdict


def _write(
    made: PromotionResult,
    outcome: _Outcome,
    registry: Registry,
    policy: Promotion,
    request: PromotionRequest,
    evidence: VersionEvidence,
    folder: Path,
    summary: Path,
    watch: Stopwatch,
) -> None:
    verdict = _require_verdict(outcome)
    folder.mkdir(parents=True, exist_ok=True)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(result_summary(made, verdict, outcome.event))
    watch.record(
        folder,
        "promote",
        result_headline(made, verdict),
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


def result_headline(made: "PromotionResult", verdict: Verdict) -> str:
    """Say in one line what came of it, with the first reason if it was refused."""
    name = f"{made.model} version {made.version}"
    if made.done_before and made.decision == "PASS":
        return f"{name} was {made.to} before, entry {made.entry}"
    if made.decision == "PASS":
        was = f", was {verdict.baseline_version or 'none'}" if made.to == "production" else ""
        return f"{name} is {made.to}{was}, entry {made.entry}"
    return f"{name} stays: {'; '.join(unmet_requirements(verdict)[:2])}"


def unmet_requirements(verdict: Verdict) -> list[str]:
    """Name what does not hold, with its numbers."""
    broken = [_rule_text(rule) for rule in verdict.rules if not rule.passed]
    return broken + [f"{entry.name}: {entry.reason}" for entry in verdict.not_judged if entry.decision]


def _rule_text(rule: Rule) -> str:
    return f"{rule.name}: {rule.detail}" if rule.detail else f"{rule.name} {rule.value:g} < {rule.limit:g}"


def result_lines(made: "PromotionResult", verdict: Verdict) -> Iterator[str]:
    """Write what came of it for a terminal: what does not hold first, then the rest as it was asked."""
    yield f"{made.decision}: {result_headline(made, verdict)}"
    asked = [(rule.outcome(), rule.name, _reason(rule)) for rule in verdict.rules]
    asked += [(entry.decision or "-", entry.name, entry.reason) for entry in verdict.not_judged]
    asked.sort(key=lambda row: row[0] in ("PASS", "-"))
    widest = max((len(name) for _, name, _ in asked), default=0)
    for answer, name, because in asked:
        yield f"  {answer:<12}  {name:<{widest}}  {' '.join(because.split())}".rstrip()
    if made.decision == "PASS":
        yield f"  audit         {made.audit}, entry {made.entry}"
    if made.decision == "PASS" and made.to == "production":
        yield f"  back again    trainwright model rollback {made.model} --by NAME --reason WHY"


def result_summary(made: "PromotionResult", verdict: Verdict, event: AuditEvent | None) -> str:
    """Write the rules and, if it was done, the entry of the audit."""
    rules = [(rule.name, rule.outcome(), _reason(rule)) for rule in verdict.rules]
    parts = [
        f"**{made.decision}: {escape(result_headline(made, verdict))}**\n",
        table(("asked", "answer", "because"), rules),
    ]
    if verdict.not_judged:
        parts.append(
            table(("not judged", "why"), [(entry.name, entry.reason) for entry in verdict.not_judged])
        )
    if event:
        parts += ["### In the audit\n", table(("what", "value"), event_facts(event))]
    if made.decision == "PASS" and made.to == "production":
        parts.append("Back again: `trainwright model rollback`, with a reason.\n")
    return "\n".join(parts)


def _reason(rule: Rule) -> str:
    if rule.detail:
        return rule.detail
    return "" if rule.value == rule.limit == 1 else f"{rule.value:g} of {rule.limit:g}"


def event_facts(event: AuditEvent) -> list[tuple[str, str]]:
    """List what an event says of itself."""
    intent = event.intent
    return [
        ("entries", f"{intent.seq} and {event.commit.seq}"),
        ("done", event.commit.time),
        ("who", ", ".join(f"{name} {value}" for name, value in sorted(intent.who.items()))),
        ("why", intent.reason),
        ("before", _pointed(intent.before)),
        ("after", _pointed(intent.after)),
        *((f"digest of {name}", digest) for name, digest in sorted(intent.evidence.items())),
        *sorted(intent.facts.items()),
    ]


def _pointed(aliases: dict[str, str]) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in sorted(aliases.items())) or "nothing"
