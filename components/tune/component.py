"""The ``tune`` component: searches hyperparameters with trials on the launcher of ``train``."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(
    base_image=images.TUNE,
    install_kfp_package=False,
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
    ],
)
def tune(
    training_set: dsl.Input[dsl.Dataset],
    data_version: str,
    image: str,
    study: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    step: dsl.TaskConfig,
    tuning: dict = {},  # noqa: B006 - the default of a component's input
    network: dict = {},  # noqa: B006
    training: dict = {},  # noqa: B006
    resources: dict = {},  # noqa: B006
) -> NamedTuple("Tuned", [("network", dict), ("training", dict), ("outcome", str)]):  # type: ignore[valid-type]
    """Search hyperparameters, and compare the best trials with the default on new seeds.

    Args:
        training_set: Snapshot that all trials share.
        data_version: Digest of its manifest; another content is rejected.
        image: Image of the trials' pods; without a cluster, the environment of the same name runs them.
        study: ``study.json``: every trial, the importances and the confirmation.
        report: Optimization history, importances, rungs, cost per trial, and the confirmation.
        summary: The outcome and the best trials.
        metrics: Best value, trials, seconds and cost.
        step: Settings of the pipeline for this step, filled in by Kubeflow Pipelines: they go to the jobs.
        tuning: Search space, sampler, pruner, budget and confirmation: the section ``tuning``.
        network: Section ``network``: the default that trials change.
        training: Section ``training``, likewise.
        resources: Compute of one trial: the section ``resources``.

    Returns:
        network: The winner's section ``network``, for `train`. training: Its section ``training``.
        outcome: ``better``, ``no better`` (the default wins) or ``not confirmed``.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.train.submit import TrainRequest
    from trainwright.tune.tune import tune as search

    with reported("tune"):
        rows, sections = Path(training_set.path), (network, training, resources)
        request = TrainRequest(rows, data_version, *sections, image, study.uri, vars(step))
        tuned = search(request, tuning, *(Path(output.path) for output in (study, summary, report)))
        metrics.metadata.update(tuned.metrics)
        describe("tune", study, report, summary, metrics)
    return (tuned.network, tuned.training, tuned.outcome)
