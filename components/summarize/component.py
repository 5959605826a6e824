"""The ``summarize`` component: the exit handler that says on one page what became of a run."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.MLFLOW, install_kfp_package=False)
def summarize(
    status: dsl.PipelineTaskFinalStatus,
    run: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    section: dict = {},  # noqa: B006 - a default of the component
    registry: dict = {},  # noqa: B006
    scheduled: str = "",
) -> None:
    """Write what ran, where it stopped and why, and the line from the result back to the source.

    Use it as an exit handler. It never fails, so that it hides nothing: what it cannot find is on its page.

    Args:
        status: How the run ended; Kubeflow fills it in.
        run: The record of the run, with the records of all its steps.
        page: One self-contained page.
        summary: The same in a few lines.
        section: Owner of the run, its record in MLflow, alerts and events: the section ``run``.
        registry: Address of MLflow: the section ``registry``; empty to log nothing.
        scheduled: Time for which the run was scheduled, for OpenLineage.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.summarize.run import FinalStatus, root_of
    from trainwright.summarize.summarize import summarize as write
    from trainwright.summarize.workflow import in_cluster

    job, task = status.pipeline_job_resource_name or "", status.pipeline_task_name or ""
    ending = FinalStatus(status.state or "", job, task, status.error_code or 0, status.error_message or "")
    places = Path(page.path), Path(summary.path), Path(run.path)
    folder = page.uri.rpartition("/")[0]
    write(root_of(run.uri), ending, *places, in_cluster(), folder, section, registry, scheduled)
    describe("summarize", run, page, summary)
