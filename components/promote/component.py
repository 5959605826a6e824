"""The ``promote`` component: a registered version goes to its next stage, if it has what that demands."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.MLFLOW, install_kfp_package=False)
def promote(
    registry: dict,
    promotion: dict,
    request: dict,
    record: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Bring a registered version to its next stage: staging, canary, production, archived.

    Args:
        registry: Name, address of MLflow, audit: the section ``registry``.
        promotion: Path to production and the conditions on it: the section ``promotion``.
        request: ``to``, ``by``, ``reason``, and ``version``, ``approver``, ``expected``,
            ``canary_verdict`` where they are needed.
        record: ``promotion.json``, ``verdict.json`` and the step's record, which leads back to the data.
        summary: What was asked of the version, what it answered, and the entry in the audit.

    Returns:
        PASS if the version stands there now; HOLD, FAIL or INCONCLUSIVE if not.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Promotion, PromotionRequest, Registry
    from trainwright.registry.promote import promote as move

    with reported("promote"):
        made = move(
            Registry.parse(registry, "parameter registry"),
            Promotion.parse(promotion, "parameter promotion"),
            PromotionRequest.parse(request, "parameter request"),
            Path(record.path),
            Path(summary.path),
        )
        describe("promote", record, summary)
    return made.decision
