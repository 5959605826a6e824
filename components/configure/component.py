"""The ``configure`` component: checks a run's configuration, and gives each step the keys that it reads."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.FEAST, install_kfp_package=False)
def configure(  # noqa: PLR0917 - one argument a section, and one a key that people change
    configuration: dsl.Output[dsl.Artifact],
    data: dict = {},  # noqa: B006 - the default of a component's input
    features: dict = {},  # noqa: B006
    registry: dict = {},  # noqa: B006
    validation: dict = {},  # noqa: B006
    network: dict = {},  # noqa: B006
    training: dict = {},  # noqa: B006
    resources: dict = {},  # noqa: B006
    evaluation: dict = {},  # noqa: B006
    source: str = "",
    schema: str = "",
    model_name: str = "",
    learning_rate: float = 0.0,
    epochs: int = 0,
    min_auc: float = 0.0,
    claim: str = "",
    run: dict = {},  # noqa: B006
    pipeline: str = "",
    tuning: dict = None,  # type: ignore[assignment]  # noqa: RUF013 - kfp knows no union
) -> NamedTuple(  # type: ignore[valid-type]
    "Configured",
    [
        ("source", str),
        ("schema", str),
        ("bootstrap_schema", bool),
        ("feature_source", str),
        ("baseline", str),
        ("serving", str),
        ("split", str),
        ("engine", dict),
        ("columns", dict),
        ("data", dict),
        ("validation", dict),
        ("features", dict),
        ("network", dict),
        ("training", dict),
        ("resources", dict),
        ("evaluation", dict),
        ("registry", dict),
        ("server", dict),
        ("tuning", dict),
        ("budget", dict),
    ],
):
    """Check the whole configuration of a run before any other step starts, and report all errors together.

    The Feast service that it names is looked up, too, before any data is read.

    The sections are those of the experiment file, as JSON objects; an empty one has the defaults of all its
    keys. The other inputs override one key of a section each; empty or 0 leaves the section's value.

    Args:
        configuration: ``experiment.json``: the effective configuration, with every default.
        data: Source, roles of the columns, splits, limits.
        features: Columns to use, and a Feast service to join, if there is one.
        registry: Registered model, address of MLflow, audit.
        validation: Comparisons and drift limits.
        network: Architecture and its size.
        training: Epochs, batch size, learning rate, checkpoints.
        resources: Launcher, nodes, processes, time limits.
        evaluation: Metrics, thresholds, slices.
        source: Overrides ``data.source``.
        schema: Overrides ``schema_file``: path or URI of the reviewed TFDV schema.
        model_name: Overrides ``registry.model``.
        learning_rate: Overrides ``training.learning_rate``; of trees, ``network.learning_rate``.
        epochs: Overrides ``training.epochs``.
        min_auc: Overrides ``evaluation.min_auc``: the smallest accepted AUC.
        claim: Overrides ``resources.claim``.
        run: Prices and budget of the run: the section ``run``.
        pipeline: Name of the pipeline, which a budget may be for.
        tuning: Search of hyperparameters; only of a pipeline that has `tune`.

    Returns:
        source: Source of the rows. schema: Path or URI of the schema; empty for none. bootstrap_schema:
        Whether ``validate`` writes a schema that is absent. feature_source: Files behind the features; empty
        for none. baseline: Accepted baseline; empty for none. serving: Log of served rows; empty for
        none. split: Split that the model is judged on. engine: What scores it.
        columns: Columns that the source has to have, by the keys that name them.
        server: Registered model and address of MLflow. budget: What the jobs can cost, and the shared budgets
        that this counts against. The others: the sections, each with the keys that its
        step reads.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.configure.configuration import Overrides, check_service
    from trainwright.configure.configuration import configure as check
    from trainwright.errors import reported

    with reported("configure"):
        sections = {
            "data": data,
            "features": features,
            "registry": registry,
            "validation": validation,
            "network": network,
            "training": training,
            "resources": resources,
            "evaluation": evaluation,
            "run": run,
            **({} if tuning is None else {"tuning": tuning}),
        }
        overrides = Overrides(
            source=source,
            schema=schema,
            model_name=model_name,
            learning_rate=learning_rate,
            epochs=epochs,
            min_auc=min_auc,
            claim=claim,
        )
        made = check_service(check(sections, overrides, Path(configuration.path), pipeline))
        describe("configure", configuration)
    return made
