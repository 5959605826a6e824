"""The ``join`` component: rows become a training set, with the features known at each row's time."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.FEAST, install_kfp_package=False)
def join(
    entities: dsl.Input[dsl.Dataset],
    data_version: str,
    training_set: dsl.Output[dsl.Dataset],
    summary: dsl.Output[dsl.Markdown],
    verdict: dsl.Output[dsl.Artifact],
    features: dict = {},  # noqa: B006 - the default of a component's input
    features_version: str = "",
    quarantine: dsl.Input[dsl.Dataset] = None,
    quarantine_version: str = "",
    data_verdict: dsl.Input[dsl.Artifact] = None,
    validation: dict = {},  # noqa: B006
    references: dict = {},  # noqa: B006
) -> str:
    """Make the training set: choose its columns, join features as of each row's time, audit leakage.

    Without a feature service in ``features``, the columns of the rows are the features.

    Args:
        entities: Snapshot with the rows; its time column says when each prediction is made.
        data_version: The digest that the snapshot must have.
        training_set: Snapshot of the other rows in the same order and splits, with their features.
        summary: What was joined, and the audit: values, ages, leaks, and what single columns give away.
        verdict: The data verdict, with what was judged about the joined features, and their statistics.
        features: Columns to use and to leave out, repository and service: the section ``features``.
        features_version: The content digest that ``resolve`` found for the features' files; '' for none.
        quarantine: Snapshot of the rows that ``validate`` took out; they are left out here.
        quarantine_version: The digest that it must have; '' without a quarantine.
        data_verdict: The verdict of ``validate``, whose rules the verdict carries on.
        validation: Limits on the drift of the joined features: the section ``validation``.
        references: What the features are compared with, as ``resolve`` found it: ``baseline``, the accepted
            ``baseline.json``, and ``serving``, a log of served rows; beside each its ``_version``.

    Returns:
        The data version of the training set.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Features, Validation

    with reported("join"):
        section = Features.parse(features, "parameter features")
        judged = Validation.parse(validation, "parameter validation")
        from trainwright.join.gate import GateContext
        from trainwright.join.join import make_training_set

        made = make_training_set(
            Path(entities.path),
            data_version,
            section,
            features_version,
            Path(training_set.path),
            Path(summary.path),
            gate=GateContext(
                verdict=Path(verdict.path),
                validation=judged,
                **references,
                data_verdict=Path(data_verdict.path) if data_verdict else None,
            ),
            quarantine=Path(quarantine.path) if quarantine else None,
            quarantine_version=quarantine_version,
        )
        describe("join", training_set, summary, verdict)
    return made.digest
