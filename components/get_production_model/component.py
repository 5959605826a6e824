"""The ``get_production_model`` component: asks the registry for the version in production."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.MLFLOW, install_kfp_package=False)
def get_production_model(
    registry: dict,
    record: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    budget: dict = {},  # noqa: B006 - the default of a component's input
    alias: str = "production",
) -> NamedTuple("Production", [("model_version", str), ("source", str), ("registered", str)]):  # type: ignore[valid-type]
    """Ask the registry what is in production, so that everything after it can be cached on the answer.

    It also sums the shared budgets of the run, whose costs MLflow has: no training is submitted beyond one.

    Never cache this step itself: what is in production is nothing that the cache's key could know.

    Args:
        registry: Name of the registered model and address of MLflow: the section ``registry``.
        record: What was asked and found.
        summary: The version, in one line.
        budget: What the jobs of the run can cost, and the budgets that this counts against; from `configure`.
        alias: Alias to look for in place of production, such as ``canary``.

    Returns:
        model_version: Digest of the model's manifest. source: Where its files are. registered: Number of the
        version. All are '' if no version is there.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Registry
    from trainwright.get_production_model.production_version import check_budgets
    from trainwright.get_production_model.production_version import get_production_model as ask

    with reported("get_production_model"):
        section = Registry.parse(registry, "parameter registry")
        check_budgets(budget, section)
        found = ask(section, Path(record.path), Path(summary.path), alias)
        describe("get_production_model", record, summary)
    return (found.model, found.source, found.version)
