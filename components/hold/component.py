"""The ``hold`` component: it says which gate stopped a run, and why."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def hold(
    verdict: dsl.Input[dsl.Artifact],
    gate: str,
    record: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> str:
    """Say which gate stopped the run, and which rules did not pass; the run itself ends well.

    Use it in the branch that a pipeline takes where a gate did not let the run go on. The branch then holds
    a step that ends, so that Kubeflow Pipelines counts the run's groups as complete.

    Args:
        verdict: The gate's ``verdict.json``; a PASS is rejected.
        gate: The step that decided, such as ``evaluate``.
        record: The step's record, which leads back to everything that was judged.
        summary: The rules that did not pass, each with its number and limit.

    Returns:
        The reason in one line.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.hold.hold import explain

    with reported("hold"):
        reason = explain(Path(verdict.path), gate, Path(record.path), Path(summary.path))
        describe("hold", record, summary)
    return reason
