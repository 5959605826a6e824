"""The ``smoke_test`` component: loads a model as it will be served and scores its input example."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TORCH, install_kfp_package=False)
def smoke_test(
    model: dsl.Input[dsl.Model],
    model_version: str,
    trial: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Load a model as it will be served, and score its input example, in a process that knows nothing else.

    Args:
        model: The trained model's folder.
        model_version: Digest of its manifest; another content is refused.
        trial: ``trial.json``: what it answered, and where; ``register`` asks for it.
        summary: What it answered.

    Returns:
        Digest of the trial.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.smoke_test.trial import try_model

    with reported("smoke_test"):
        made = try_model(Path(model.path), model_version, Path(trial.path), Path(summary.path))
        describe("smoke_test", trial, summary)
    return made.digest
