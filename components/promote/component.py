"""The ``promote`` component: a registered version goes to its next stage, if it has what that demands."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.MLFLOW, install_kfp_package=False)
def promote(
    registry: dict,
    promotion: dict,
    request: dict,
    trust: str,
    record: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Bring a registered version to its next stage: staging, canary, production, archived.

    Args:
        registry: Name, address of MLflow, audit: the section ``registry``.
        promotion: Path to production and the conditions on it: the section ``promotion``. The policy in
            ``trust`` replaces it.
        request: ``to``, ``by``, ``reason``, and ``version``, ``approver``, ``approval``, ``expected``,
            ``canary_verdict`` where they are needed.
        trust: Folder that the cluster mounts, with policy and trusted keys; it replaces ``registry.trust``.
            A machine without the folder uses the section's.
        record: ``promotion.json``, ``verdict.json`` and the step's record, which leads back to the data.
        summary: What was asked of the version, what it answered, and the entry in the audit.

    Returns:
        PASS if the version stands there now; HOLD, FAIL or INCONCLUSIVE if not.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Promotion, PromotionRequest, Registry
    from trainwright.registry.policy import protect
    from trainwright.registry.promote import promote as move

    with reported("promote"):
        made = move(
            protect(Registry.parse(registry, "parameter registry"), trust),
            Promotion.parse(promotion, "parameter promotion"),
            PromotionRequest.parse(request, "parameter request"),
            Path(record.path),
            Path(summary.path),
        )
        describe("promote", record, summary)
    return made.decision
