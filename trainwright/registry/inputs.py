"""Read all that the decision on a promotion depends on, except the state under the lease."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.experiment import PromotionRequest, Registry
from trainwright.registry.changes import require_audit
from trainwright.registry.evidence import (
    ProductionModel,
    VersionEvidence,
    read_canary_verdict,
    read_evidence,
    read_production_model,
)
from trainwright.registry.identity import verify_approval
from trainwright.registry.names import PRODUCTION
from trainwright.registry.policy import PromotionPolicy
from trainwright.registry.signing import Keyring
from trainwright.verdicts import Verdict

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
