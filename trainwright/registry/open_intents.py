"""Judge an intent again that its process left open, before another process completes it.

Between the intent and its completion, an override may expire, a version may be deleted, and the policy may
change. So whoever finds the intent evaluates its request again, by the policy that applies now.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from trainwright.errors import InputError
from trainwright.experiment import Promotion, PromotionRequest, Registry
from trainwright.registry.audit import PROMOTE, RESTORE, ROLLBACK, AuditEntry
from trainwright.registry.changes import (
    RegistryConnection,
    RegistryState,
    after_promotion,
    after_rollback,
    open_registry,
)
from trainwright.registry.inputs import read_inputs
from trainwright.registry.names import PRODUCTION
from trainwright.registry.policy import read_policy
from trainwright.registry.requirements import PromotionCase, check_requirements
from trainwright.tracking.server import open_client, persist

REQUEST, POLICY = "request", "requirements"
"""Facts of an intent: the request and the policy that it was judged by, as JSON."""


def connect(
    registry: Registry, policy: Promotion | None = None, *, adopt: bool = False
) -> RegistryConnection:
    """Open MLflow and the audit, and judge open intents again by :func:`_objection`."""
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
