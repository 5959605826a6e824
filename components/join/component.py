"""The ``join`` component: rows get their features as they were known at each row's time."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.FEAST, install_kfp_package=False)
def join(
    entities: dsl.Input[dsl.Dataset],
    data_version: str,
    features: dict,
    features_version: str,
    quarantine: dsl.Input[dsl.Dataset],
    quarantine_version: str,
    training_set: dsl.Output[dsl.Dataset],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Join a Feast feature service to every row, as of the row's time, and prove that nothing leaked.

    Args:
        entities: Snapshot with the rows; its time column says when each prediction is made.
        data_version: The digest that the snapshot must have.
        features: Repository, service, request columns, columns that leak: the section ``features``.
        features_version: The content digest that ``resolve`` found for the features' files.
        quarantine: Snapshot of the rows that ``validate`` took out; they are left out here.
        quarantine_version: The digest that it must have.
        training_set: Snapshot of the other rows in the same order and splits, with their features.
        summary: What was joined, and the audit: values, ages, leaks, and what single columns give away.

    Returns:
        The data version of the training set.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Features

    with reported("join"):
        from trainwright.join.join import make_training_set

        section = Features.parse(features, "parameter features")
        made = make_training_set(
            Path(entities.path),
            data_version,
            section,
            features_version,
            Path(training_set.path),
            Path(summary.path),
            quarantine=Path(quarantine.path),
            quarantine_version=quarantine_version,
        )
        describe("join", training_set, summary)
    return made.digest
