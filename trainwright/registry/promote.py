"""Promote a version to its next stage if it meets the requirements; roll back; restore MLflow's aliases."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from trainwright.documents import Document, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Promotion, PromotionRequest, Registry, Section
from trainwright.redaction import redacted
from trainwright.registry.audit import PROMOTE, RESTORE, ROLLBACK, AuditEntry, AuditEvent
from trainwright.registry.changes import (
    RegistryConnection,
    RegistryState,
    after_promotion,
    after_rollback,
    apply_change,
    open_registry,
    restore_aliases,
)
from trainwright.registry.evidence import VersionEvidence
from trainwright.registry.hub import NOT_MIRRORED, try_mirror
from trainwright.registry.names import CANARY, PRODUCTION
from trainwright.registry.policy import read_policy
from trainwright.registry.requirements import (
    PromotionCase,
    PromotionInputs,
    aliases_agree,
    check_requirements,
    previous_stage,
    read_inputs,
)
from trainwright.registry.versions import alias_of
from trainwright.report.markdown import escape, table
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import open_client, persist
from trainwright.verdicts import AT_LEAST, NotJudged, Rule, Verdict, worst


@dataclass(frozen=True, kw_only=True)
class PromotionResult(Document):
    """The result of a promotion request.

    Attributes:
        decision: ``PASS`` if the version is in the requested stage now.
        done_before: It was there already; nothing changed.
        production: The version in production now; empty for none.
        entry: Number of the audit's entry of the change; 0 if there is none.
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
    """The decision, filled in while the lease is held."""

    verdict: Verdict | None = None
    event: AuditEvent | None = None
    done_before: bool = False
    production: str = ""


def promote(
    registry: Registry, policy: Promotion, request: PromotionRequest, folder: Path, summary: Path
) -> PromotionResult:
    """Move a version to its next stage if it meets the requirements.

    Args:
        registry: Section of MLflow and the audit.
        policy: Section of the requirements; the policy in ``registry.trust`` replaces it.
        request: The version and stage, by whom and why.
        folder: Gets ``promotion.json``, ``verdict.json`` and ``record.json``.
        summary: Path of a Markdown file.

    Returns:
        The result, whatever the decision.

    Raises:
        InputError: The version does not exist, its files were changed, or the request is incomplete.
        DependencyError: MLflow or the audit's store was away.
        TransientError: Another promotion of this model held the lease for ``policy.wait_s``.
        PermissionRefused: MLflow or the store rejects this identity.
    """
    watch = Stopwatch()
    applied = read_policy(registry, policy)
    _require_complete(applied.promotion, request)
    place = connect(registry, applied.promotion)

    def read() -> PromotionInputs:
        version = request.version or _version_before(place, applied.promotion, request)
        there = alias_of(place.client, registry.model, PRODUCTION)
        return read_inputs(place.client, registry, applied, request, version, there)

    inputs = persist(read, registry.tracking_uri, registry.retry_s)
    evidence, outcome = inputs.evidence, _Outcome()

    def decide(present: RegistryState) -> AuditEntry | None:
        return _decide(PromotionCase(request, inputs, present), outcome)

    event = apply_change(place, decide) or outcome.event
    unmirrored = try_mirror(registry)
    verdict, result = _result(registry, request, evidence, place, outcome, event)
    folder.mkdir(parents=True, exist_ok=True)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"{_summary(result, verdict, event)}\n{escape(unmirrored)}\n")
    watch.record(
        folder,
        "promote",
        _headline(result, verdict) + (NOT_MIRRORED if unmirrored else ""),
        decision=verdict.decision,
        config=_config(registry=registry, promotion=applied.promotion, request=request)
        | {"policy": f"policy from {applied.source}"},
        inputs={"model": evidence.model_digest, "model_verdict": evidence.verdict.digest},
        outputs={"promotion": result.digest, "verdict": verdict.digest},
        parents=evidence.records,
    )
    result.write(folder)
    verdict.write(folder)
    return result


def _config(**sections: Section) -> dict[str, Any]:
    return {name: section.model_dump(mode="json") for name, section in sections.items()}


def _result(
    registry: Registry,
    request: PromotionRequest,
    evidence: VersionEvidence,
    place: RegistryConnection,
    outcome: _Outcome,
    event: AuditEvent | None,
) -> tuple[Verdict, PromotionResult]:
    verdict = outcome.verdict
    assert verdict is not None  # noqa: S101 - it was decided, or an error was raised
    return verdict, PromotionResult(
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


def _require_complete(policy: Promotion, request: PromotionRequest) -> None:
    if request.to in ("staging", "canary") and request.to not in policy.path:
        raise InputError(f"{request.to} is not on promotion.path, which is {list(policy.path)}", where="to")
    if request.to == CANARY and policy.canary is None:
        raise InputError(
            "promotion.canary is not set: which share of the requests, and what is watched meanwhile",
            where="promotion.canary",
            hint="For example: canary: {share: 0.05, guards: {error_rate: 0.01}}",
        )


def _version_before(place: RegistryConnection, policy: Promotion, request: PromotionRequest) -> str:
    """Return the version in the previous stage; if there is none, the one in the requested stage."""
    stages = [stage for stage in (previous_stage(policy, request.to), request.to) if stage]
    for stage in stages:
        if found := alias_of(place.client, place.chain.model, stage):
            return found
    raise InputError(
        f"no version of {place.chain.model!r} is {' or '.join(stages)}",
        where="version",
        hint="Name the version, which MLflow lists; trainwright model history lists the changes of stages.",
    )


def _decide(case: PromotionCase, outcome: _Outcome) -> AuditEntry | None:
    """Evaluate the requirements; return the intent, None if nothing is to be done."""
    present, request, version = case.present, case.request, case.evidence.version
    outcome.production = present.aliases.get(PRODUCTION, "")
    last = present.state.last_move(version)
    if last and last.intent.version == version and last.intent.target == request.to:
        outcome.event, outcome.done_before = last, True
        detail = f"version {version} is {request.to} since entry {last.commit.seq}"
        done = Rule(name="done before", value=1.0, limit=1.0, test=AT_LEAST, detail=detail)
        outcome.verdict = _verdict(case, [done, aliases_agree(case)], [])
        return None
    rules, unjudged = check_requirements(case)
    if present.found.get(PRODUCTION, "") != case.inputs.there:
        reason = "production moved while this was decided"
        unjudged.append(NotJudged(name="inputs", reason=reason, decision="HOLD"))
    outcome.verdict = _verdict(case, rules, unjudged)
    if outcome.verdict.decision != "PASS":
        return None
    aliases, stages = after_promotion(present.aliases, version, request.to)
    outcome.production = aliases.get(PRODUCTION, "")
    override = case.evidence.override
    who = {
        "by": request.by,
        "approver": case.inputs.approver,
        "author": case.evidence.author,
        "override": override.approver if override else "",
    }
    return present.intent(
        PROMOTE,
        version,
        request.to,
        model_digest=case.evidence.model_digest,
        origin=case.stage,
        expected=case.expected,
        after=aliases,
        stages=stages,
        who={name: value for name, value in who.items() if value},
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


def _facts(case: PromotionCase) -> dict[str, str]:
    facts = {
        "path": " ".join(case.policy.path),
        "compared": case.evidence.verdict.baseline_version or "none",
        "policy": f"policy from {case.inputs.policy.source}",
        REQUEST: case.request.to_json(),
        POLICY: case.policy.to_json(),
    }
    if case.inputs.approver:
        approval = case.inputs.policy.approval
        facts["approval"] = f"token by {approval.issuer}" if approval else "typed in the request"
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


def _headline(result: PromotionResult, verdict: Verdict) -> str:
    """Return the result in one line, with the first reasons of a rejection."""
    name = f"{result.model} version {result.version}"
    if result.done_before and result.decision == "PASS":
        return f"{name} was {result.to} before, entry {result.entry}"
    if result.decision == "PASS":
        was = f", was {verdict.baseline_version or 'none'}" if result.to == "production" else ""
        return f"{name} is {result.to}{was}, entry {result.entry}"
    unmet = [
        f"{rule.name}: {rule.detail}" if rule.detail else f"{rule.name} {rule.value:g} < {rule.limit:g}"
        for rule in verdict.rules
        if not rule.passed
    ]
    unmet += [f"{entry.name}: {entry.reason}" for entry in verdict.not_judged if entry.decision]
    return f"{name} stays: {'; '.join(unmet[:2])}"


def reasons(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Return outcome, name and reason of each requirement, unmet ones first."""
    rows = [(rule.outcome(), rule.name, _reason(rule)) for rule in verdict.rules]
    rows += [(entry.decision or "-", entry.name, entry.reason) for entry in verdict.not_judged]
    return sorted(rows, key=lambda row: row[0] in ("PASS", "-"))


def result_lines(result: PromotionResult, verdict: Verdict) -> Iterator[str]:
    """Yield the result for a terminal, unmet requirements first."""
    yield f"{result.decision}: {_headline(result, verdict)}"
    rows = reasons(verdict)
    widest = max((len(name) for _, name, _ in rows), default=0)
    for decision, name, reason in rows:
        yield f"  {decision:<12}  {name:<{widest}}  {' '.join(reason.split())}".rstrip()
    if result.decision == "PASS":
        yield f"  audit         {result.audit}, entry {result.entry}"
    if result.decision == "PASS" and result.to == "production":
        yield f"  back again    trainwright model rollback {result.model} --by NAME --reason WHY"


def _summary(made: PromotionResult, verdict: Verdict, event: AuditEvent | None) -> str:
    rules = [(rule.name, rule.outcome(), _reason(rule)) for rule in verdict.rules]
    parts = [
        f"**{made.decision}: {escape(_headline(made, verdict))}**\n",
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
    """Return an event as rows of name and value."""
    intent = event.intent
    return [
        ("entries", f"{intent.seq} and {event.commit.seq}"),
        ("done", event.commit.time),
        ("who", ", ".join(f"{name} {value}" for name, value in sorted(intent.who.items()))),
        ("why", intent.reason),
        *(
            (name, ", ".join(f"{alias} {version}" for alias, version in sorted(aliases.items())) or "nothing")
            for name, aliases in (("before", intent.before), ("after", intent.after))
        ),
        *((f"digest of {name}", digest) for name, digest in sorted(intent.evidence.items())),
        *sorted((name, fact) for name, fact in intent.facts.items() if name not in (REQUEST, POLICY)),
    ]


REQUEST, POLICY = "request", "requirements"
"""Facts of an intent: the request and the policy that it was judged by, as JSON."""


def connect(
    registry: Registry, policy: Promotion | None = None, *, adopt: bool = False
) -> RegistryConnection:
    """Open MLflow and the audit, and judge again the intents that their processes left open.

    Between an intent and its completion, an override may expire, a version may be deleted, and the policy may
    change. So whoever finds the intent evaluates its request again, by the policy that applies now.
    """
    times = policy or Promotion()
    judge = partial(_objection, registry)
    return open_registry(registry, judge, times.lease_s, times.wait_s, adopt=adopt)


def _objection(registry: Registry, present: RegistryState, intent: AuditEntry) -> str:
    """Return why an open intent must not be completed; empty if it may."""
    try:
        if intent.action == PROMOTE:
            return _promotion_objection(registry, present, intent)
        expected = _expected(present, intent)
    except InputError as error:
        return f"judged again: {error.what}"
    agrees = (intent.after, intent.stages) == expected
    return "" if agrees else f"judged again: its aliases are not those of a {intent.action}"


def _expected(present: RegistryState, intent: AuditEntry) -> tuple[dict[str, str], Mapping[str, str]]:
    """Return the aliases and stages after a rollback or a restore that is decided now."""
    gone = present.missing({*present.state.succession, *present.aliases.values()})
    if intent.action == ROLLBACK:
        return after_rollback(present.aliases, present.state, gone)
    if intent.action == RESTORE:
        return {alias: version for alias, version in present.aliases.items() if version not in gone}, {}
    raise InputError(f"its action {intent.action!r} is unknown")


def _promotion_objection(registry: Registry, present: RegistryState, intent: AuditEntry) -> str:
    request = PromotionRequest.parse(intent.facts.get(REQUEST, ""), "the request of the intent")
    policy = read_policy(registry, Promotion.parse(intent.facts.get(POLICY, ""), "its policy"))

    def read() -> PromotionCase:
        client = open_client(registry.tracking_uri)
        there = present.aliases.get(PRODUCTION, "")
        inputs = read_inputs(client, registry, policy, request, intent.version, there)
        # The dead process may have moved the version's tag already; the audit knows where it came from.
        return PromotionCase(
            request, replace(inputs, evidence=replace(inputs.evidence, stage=intent.origin)), present
        )

    case = persist(read, registry.tracking_uri, registry.retry_s)
    rules, unjudged = check_requirements(case)
    unmet = [f"{rule.name}: {rule.detail}" for rule in rules if rule.outcome() != "PASS"]
    unmet += [f"{entry.name}: {entry.reason}" for entry in unjudged if entry.decision not in ("", "PASS")]
    if request.to != intent.target or (intent.after, intent.stages) != after_promotion(
        present.aliases, intent.version, request.to
    ):
        unmet.append("its aliases are not those of the request")
    return f"judged again: {'; '.join(unmet)}" if unmet else ""


def rollback(registry: Registry, by: str, reason: str, out: str = "") -> AuditEvent:
    """Restore the previous version in production without requirements, or complete an open rollback.

    Args:
        registry: Section of MLflow and the audit.
        by: Who requests it.
        reason: Why.
        out: The version to remove. Nothing happens if the last change removed it already, or if another is in
            production. Empty: any.

    Raises:
        InputError: No version was in production before, ``out`` is not, or ``by`` or ``reason`` is empty.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_requester(by, reason)
    completed: list[AuditEvent] = []

    def decide(present: RegistryState) -> AuditEntry | None:
        done = present.finished
        if done and done.intent.action == ROLLBACK and out in ("", done.intent.expected):
            completed.append(done)
            return None
        there = present.aliases.get(PRODUCTION, "")
        last = present.state.events[-1] if present.state.events else None
        if out and last and last.intent.facts.get("out") == out and last.production == there:
            completed.append(last)
            return None
        if out and out != there:
            raise InputError(
                f"version {there or 'none'} is in production, not {out}: nothing was done",
                where="rollback",
            )
        gone = present.missing({*present.state.succession, *present.aliases.values()})
        aliases, stages = after_rollback(present.aliases, present.state, gone)
        return present.intent(
            ROLLBACK,
            aliases[PRODUCTION],
            PRODUCTION,
            origin=present.state.stage(aliases[PRODUCTION]) or "",
            expected=there,
            after=aliases,
            stages=stages,
            who={"by": by},
            reason=reason,
            facts={"out": there}
            | ({"found": present.disagreement} if present.disagreement else {})
            | ({"gone": ", ".join(sorted(gone))} if gone else {}),
        )

    event = apply_change(connect(registry), decide) or completed[0]
    try_mirror(registry)
    return event


def _require_requester(by: str, reason: str) -> None:
    PromotionRequest.check({"to": PRODUCTION, "by": by, "reason": reason}, "request")


def restore(registry: Registry, by: str, reason: str, *, adopt: bool = False) -> AuditEvent | None:
    """Set MLflow's aliases to what the audit says; return None if nothing differs.

    Args:
        registry: Section of MLflow and the audit.
        by: Who requests it.
        reason: Why.
        adopt: Accept entries from before signatures, and entries beyond the last one that MLflow notes.

    Raises:
        InputError: ``by`` or ``reason`` is missing.
        DependencyError: MLflow or the audit's store was away.
    """
    _require_requester(by, reason)
    event = restore_aliases(connect(registry, adopt=adopt), {"by": by}, reason)
    try_mirror(registry)
    return event
