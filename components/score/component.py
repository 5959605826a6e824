"""The ``score`` component: the model in production scores the rows that a candidate is judged on."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TORCH, install_kfp_package=False)
def score(
    training_set: dsl.Input[dsl.Dataset],
    data_version: str,
    split: str,
    registry: dict,
    model_version: str,
    source: str,
    predictions: dsl.Output[dsl.Dataset],
    summary: dsl.Output[dsl.Markdown],
    engine: dict = {},  # noqa: B006
) -> str:
    """Score the judged split with a registered model, the one in production (``get_production_model``).

    Args:
        training_set: The snapshot that the candidate was made from.
        data_version: Digest of its manifest; another content is refused.
        split: The split that is judged: ``evaluation.split``.
        registry: Name, address of MLflow, retries: the section ``registry`` or these keys of it.
        model_version: Digest of the registered model's manifest; '' for none: nothing is scored.
        source: Where its files are.
        predictions: Snapshot of the scored rows, of the form that ``train`` writes; empty without a model, or
            where it cannot read these rows.
        summary: How many rows were scored, or why none was.
        engine: Engine of the rows: the section ``evaluation.engine``.

    Returns:
        Digest of that snapshot; '' if there is none.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import DataEngine, Registry
    from trainwright.score.score import ProductionModelReference, score_rows

    with reported("score"):
        asked = ProductionModelReference(
            model_version, source, Registry.parse(registry, "parameter registry")
        )
        rows = Path(training_set.path), data_version, split, asked
        made = score_rows(
            *rows,
            predictions=Path(predictions.path),
            summary=Path(summary.path),
            engine=DataEngine.parse(engine, "parameter engine"),
            uri=training_set.uri,
        )
        describe("score", predictions, name="production predictions")
        describe("score", summary)
    return made.predictions_version
