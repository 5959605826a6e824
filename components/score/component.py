"""The ``score`` component: the model in production scores the rows that a candidate is judged on."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TORCH, install_kfp_package=False)
def score(
    training_set: dsl.Input[dsl.Dataset],
    data_version: str,
    evaluation: str,
    registry: str,
    predictions: dsl.Output[dsl.Dataset],
    summary: dsl.Output[dsl.Markdown],
) -> NamedTuple("Baseline", [("predictions_version", str), ("registered", str)]):  # type: ignore[valid-type]
    """Score the judged split with the registered version that is in production.

    Never cache this step: which version is in production stands outside of the cache's key.

    Args:
        training_set: The snapshot that the candidate was made from.
        data_version: Digest of its manifest; another content is refused.
        evaluation: JSON: which split is judged (the section ``evaluation``).
        registry: JSON: name of the registered model, MLflow's address (the section ``registry``).
        predictions: Snapshot of the scored rows, of the form that ``train`` writes; empty without a version
            in production, or where it cannot read these rows.
        summary: Which version scored how many rows, or why none did.

    Returns:
        predictions_version: Digest of that snapshot; '' if there is none. registered: The version in
        production; '' if there is none.
    """
    from pathlib import Path

    from trainwright.errors import reported
    from trainwright.experiment import Evaluation, Registry
    from trainwright.score.baseline import score_production

    with reported("score"):
        made = score_production(
            Path(training_set.path),
            data_version,
            Evaluation.parse(evaluation, "parameter evaluation"),
            Registry.parse(registry, "parameter registry"),
            predictions=Path(predictions.path),
            summary=Path(summary.path),
        )
    return (made.predictions_version, made.registered)
