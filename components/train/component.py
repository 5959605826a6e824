"""The ``train`` component: a training set becomes a model and its predictions."""

from typing import NamedTuple

from kfp import dsl

from trainwright.authoring import images


@dsl.component(
    base_image=images.LAUNCHER,
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
def train(
    training_set: dsl.Input[dsl.Dataset],
    data_version: str,
    image: str,
    model: dsl.Output[dsl.Model],
    predictions: dsl.Output[dsl.Dataset],
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    step: dsl.TaskConfig,
    network: dict = {},  # noqa: B006 - the default of a component's input
    training: dict = {},  # noqa: B006
    resources: dict = {},  # noqa: B006
) -> NamedTuple("Versions", [("model_version", str), ("predictions_version", str)]):  # type: ignore[valid-type]
    """Fit a model in one or many processes, and score the splits kept for evaluation.

    Args:
        training_set: Snapshot with a key, a label or text, and any columns to learn from.
        data_version: Digest of its manifest; another content is refused.
        image: Image of the job's pods; without a cluster, the environment of the same name runs it.
        model: Weights, program, transforms, signature, input example, card; the manifest is written last.
        predictions: Snapshot of the scored rows that have a label, with a column ``score`` in [0, 1].
        report: Curves of the loss, the speed and the use of the machine. Of a failed training, the error
            names the copy in the store: Kubeflow Pipelines keeps no artifact of a step that failed.
        summary: Rows, losses and versions.
        metrics: ``train_loss`` and what it is to be compared with.
        step: What the pipeline sets on this step, filled in by Kubeflow Pipelines: it goes to the job.
        network: Architecture and its size: the section ``network``.
        training: Epochs, batch size, learning rate, parallelism, checkpoints: the section ``training``.
        resources: Launcher, nodes, processes, limits: the section ``resources``.

    Returns:
        model_version: Digest of the model's manifest. predictions_version: Digest of that of the predictions.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.train.submit import TrainRequest, submit

    with reported("train"):
        asked = TrainRequest(
            Path(training_set.path), data_version, network, training, resources, image, model.uri, vars(step)
        )
        places = (Path(place.path) for place in (model, predictions, summary, report))
        made = submit(asked, *places)
        metrics.metadata.update(made.metrics)
        describe("train", model, predictions, report, summary, metrics)
    return (made.model_version, made.predictions_version)
