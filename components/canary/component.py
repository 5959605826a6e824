"""The ``canary`` component: served answers become a verdict on the canary, and its share of the traffic."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def canary(
    serving: dict,
    promotion: dict,
    registry: dict,
    trust: str,
    verdict: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    candidate: str = "",
    candidate_model: str = "",
    candidate_source: str = "",
    production: str = "",
    production_model: str = "",
    production_source: str = "",
) -> str:
    """Compare what a canary answered with what production did, and set its share of the traffic.

    Args:
        serving: Log of requests and InferenceService: the section ``serving``.
        promotion: ``canary`` has guards and shares: the section ``promotion``. The policy in ``trust``
            replaces it.
        registry: Name of the model: the section ``registry``.
        trust: Folder that the cluster mounts, with the policy; it replaces ``registry.trust``. A machine
            without the folder uses the section's.
        verdict: ``verdict.json``, ``inference_service.json`` and the step's record.
        summary: Every guard with its number, interval and limit.
        candidate: Number of the version that is the canary, as the log has it; '' for none.
        candidate_model: Digest of its manifest.
        candidate_source: URI of its files.
        production: Number of the version in production; '' for none.
        production_model: Digest of its manifest.
        production_source: URI of its files.

    Returns:
        PASS if the canary is no worse than every guard's limit, FAIL if it is worse than one; INCONCLUSIVE
        if the log cannot tell yet.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.canary.canary import ServedVersion, judge_canary
    from trainwright.errors import reported
    from trainwright.experiment import Promotion, Registry, Serving
    from trainwright.registry.policy import protect, read_policy

    with reported("canary"):
        policy = read_policy(
            protect(Registry.parse(registry, "parameter registry"), trust),
            Promotion.parse(promotion, "parameter promotion"),
        )
        made = judge_canary(
            Serving.parse(serving, "parameter serving"),
            policy.promotion.canary,
            ServedVersion(candidate, candidate_model, candidate_source),
            ServedVersion(production, production_model, production_source),
            Path(verdict.path),
            Path(summary.path),
        )
        describe("canary", verdict, summary)
    return made.decision
