"""The ``register`` component: a model that passed becomes a version in MLflow, with its lineage."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.MLFLOW, install_kfp_package=False)
def register(
    model: dsl.Input[dsl.Model],
    model_version: str,
    data_verdict: dsl.Input[dsl.Artifact],
    model_verdict: dsl.Input[dsl.Artifact],
    trial: dsl.Input[dsl.Artifact],
    registry: dict,
    commit: str,
    registration: dsl.Output[dsl.Model],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Register a model in MLflow, once, with both verdicts and the way back to its source.

    Args:
        model: The trained model's folder.
        model_version: Digest of its manifest; another content is refused.
        data_verdict: What was decided about the data: FAIL is refused; less than PASS asks for a word later.
        model_verdict: What was decided about the model: only PASS is registered, or what a person overrides.
        trial: What ``smoke_test`` found: a model that was not loaded and tried is not registered.
        registry: Name, address of MLflow, retries, author, override: the section ``registry``.
        commit: Git commit of the experiment; empty if there is none.
        registration: ``registration.json``: model, version, digests, commit, environment locks.
        summary: The entry, and the line from the model back to the source.

    Returns:
        The registered version.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.experiment import Registry
    from trainwright.registry.register import register as enter

    with reported("register"):
        section = Registry.parse(registry, "parameter registry")
        judged = Path(data_verdict.path), Path(model_verdict.path), Path(trial.path)
        places = Path(registration.path), Path(summary.path), registration.uri
        made = enter(Path(model.path), model_version, *judged, section, commit, *places)
        describe("register", registration, summary)
    return made.version
