"""The main job: from a source of rows to a registered model."""

from kfp import dsl, kubernetes

from components.evaluate.component import evaluate
from components.hold.component import hold
from components.ingest.component import ingest
from components.join.component import join
from components.locate.component import locate
from components.probe.component import probe
from components.register.component import register
from components.resolve.component import resolve
from components.score.component import score
from components.summarize.component import summarize
from components.train.component import train
from components.validate.component import validate
from trainwright.authoring import images
from trainwright.authoring.tasks import Amount, configure

SHARED = "/shared"
"""Where the train step and the pods of its job see the volume that they share: ``resources.mount``."""

DATABASE = "trainwright-database"
SECRETS = "/var/run/secrets/trainwright"
"""A Secret, if the namespace has it, and the folder of its files: ``data.sql.password_file`` lies there."""


def _look(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """Set up a task that looks at what is outside: never cached, for that may have changed since."""
    return configure(task, cpu="500m", memory="1G", cached=False)


def _read_outside(task: dsl.PipelineTask) -> None:
    """Give a task that reads the source the database's password as a file, where there is one."""
    kubernetes.use_secret_as_volume(task, secret_name=DATABASE, mount_path=SECRETS, optional=True)


def _trained(joined: dsl.PipelineTask, claim: str, **sections: str) -> dsl.PipelineTask:
    """Train. The launcher only waits; the cores and GPUs belong to the job that it submits."""
    task = train(
        training_set=joined.outputs["training_set"],
        data_version=joined.outputs["Output"],
        image=images.TORCH,
        **sections,
    )
    # Amounts set on this step would go to its job, which has its own: the namespace sizes the launcher.
    configure(task, hours=24)
    kubernetes.mount_pvc(task, pvc_name=claim, mount_path=SHARED)
    return kubernetes.add_pod_annotation(task, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false")


def _held(judged: dsl.PipelineTask, gate: str) -> None:
    """Say why a gate stopped the run, in a container: KFP 2.17 counts a group as complete only when one ends.

    A second ``dsl.If`` does what ``dsl.Else`` would, without one more group around both.
    """
    held = hold(verdict=judged.outputs["verdict"], gate=gate).set_display_name(f"held-by-{gate}")
    configure(held, cpu="500m", memory="1G", cached=False, store=False)


def _registered(
    trained: dsl.PipelineTask,
    validated: dsl.PipelineTask,
    evaluated: dsl.PipelineTask,
    *,
    registry: str,
    commit: str,
    cpu: Amount,
    memory: Amount,
) -> None:
    """Try the model as it will be served, and register it."""
    model, version = trained.outputs["model"], trained.outputs["model_version"]
    probed = probe(model=model, model_version=version)
    configure(probed, cpu=cpu, memory=memory, store=False)
    registered = register(
        model=model,
        model_version=version,
        data_verdict=validated.outputs["verdict"],
        model_verdict=evaluated.outputs["verdict"],
        trial=probed.outputs["trial"],
        registry=registry,
        commit=commit,
    )
    # Not cached: it looks the model up in the registry first, and reuses what it finds.
    configure(registered, cpu="500m", memory="2G", cached=False)


@dsl.pipeline(name="train-and-register", display_name="Train and register")
def train_and_register(
    source: str,
    feature_source: str,
    data: str,
    schema: str,
    validation: str,
    features: str,
    network: str,
    training: str,
    resources: str,
    evaluation: str,
    registry: str,
    claim: str,
    commit: str,
    baseline: str = "",
    date: str = "",
    ingest_cpu: str = "1",
    ingest_memory: str = "4G",
    validate_cpu: str = "1",
    validate_memory: str = "4G",
    join_cpu: str = "1",
    join_memory: str = "4G",
    score_cpu: str = "1",
    score_memory: str = "4G",
    evaluate_cpu: str = "1",
    evaluate_memory: str = "4G",
    probe_cpu: str = "1",
    probe_memory: str = "4G",
) -> None:
    """Train a model on pinned data, and register it if the data and the model pass their gates.

    Data that FAILs stops the run before training. Data on HOLD is trained on, and the registered version
    says so. Only a model whose evaluation is PASS is registered.

    Args:
        source: Files with the rows: a path, a folder or a glob; local or an object store's.
        feature_source: The offline files behind the features; their content is part of the version.
        data: Section ``data`` of the experiment file, as JSON.
        schema: Text of the reviewed TFDV schema.
        validation: Section ``validation``, as JSON.
        features: Section ``features``, as JSON.
        network: Section ``network``, as JSON.
        training: Section ``training``, as JSON.
        resources: Section ``resources``, as JSON.
        evaluation: Section ``evaluation``, as JSON.
        registry: Section ``registry``, as JSON.
        claim: PersistentVolumeClaim that the train step and its job share on a cluster: ``resources.claim``.
        commit: Git commit of the experiment, for the record.
        baseline: The accepted ``baseline.json`` of the model in production: a file or a URI; '' for none.
        date: Date that ``{date}`` in the source stands for, as 2026-01-31; '' for the day for which the run
            was scheduled, in UTC.
        ingest_cpu: Cores of the pod of ``ingest``: ``steps.ingest.cpu``. What follows is the same for others.
        ingest_memory: Memory of the pod of ``ingest``: ``steps.ingest.memory``.
        validate_cpu: Cores of ``validate``.
        validate_memory: Memory of ``validate``.
        join_cpu: Cores of ``join``.
        join_memory: Memory of ``join``.
        score_cpu: Cores of ``score``.
        score_memory: Memory of ``score``.
        evaluate_cpu: Cores of ``evaluate``.
        evaluate_memory: Memory of ``evaluate``.
        probe_cpu: Cores of ``probe``.
        probe_memory: Memory of ``probe``.
    """
    finish = configure(summarize(), cpu="500m", memory="1G", cached=False)
    with dsl.ExitHandler(finish, name="train-and-register"):
        # Only strings of these two are passed on: on a cluster, a step that took an artifact of a task that
        # is never cached would never be reused itself.
        resolved = _look(
            resolve(
                source=source,
                data=data,
                date=date,
                scheduled=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
                feature_source=feature_source,
                baseline=baseline,
            )
        )
        _read_outside(resolved)
        production_now = _look(locate(registry=registry))

        ingested = ingest(
            source=resolved.outputs["source"], source_version=resolved.outputs["version"], data=data
        )
        configure(ingested, cpu=ingest_cpu, memory=ingest_memory)
        _read_outside(ingested)
        snapshot, data_version = ingested.outputs["snapshot"], ingested.outputs["Output"]

        # The date is left out: it would judge unchanged data again every day.
        validated = validate(
            snapshot=snapshot,
            data_version=data_version,
            schema=schema,
            validation=validation,
            baseline=resolved.outputs["baseline"],
            baseline_version=resolved.outputs["baseline_version"],
            newest_since=resolved.outputs["newest_since"],
        )
        configure(validated, cpu=validate_cpu, memory=validate_memory)

        with dsl.If(validated.outputs["decision"] != "FAIL", "data-not-refused"):
            joined = join(
                entities=snapshot,
                data_version=data_version,
                features=features,
                features_version=resolved.outputs["features_version"],
                quarantine=validated.outputs["quarantine"],
                quarantine_version=validated.outputs["quarantine_version"],
            )
            configure(joined, cpu=join_cpu, memory=join_memory)

            trained = _trained(joined, claim, network=network, training=training, resources=resources)

            # Beside the training, not after it.
            scored = score(
                training_set=joined.outputs["training_set"],
                data_version=joined.outputs["Output"],
                evaluation=evaluation,
                registry=registry,
                model_version=production_now.outputs["model_version"],
                source=production_now.outputs["source"],
            )
            configure(scored, cpu=score_cpu, memory=score_memory, hours=4)

            evaluated = evaluate(
                predictions=trained.outputs["predictions"],
                predictions_version=trained.outputs["predictions_version"],
                evaluation=evaluation,
                baseline=scored.outputs["predictions"],
                baseline_version=scored.outputs["Output"],
                baseline_registered=production_now.outputs["registered"],
            )
            configure(evaluated, cpu=evaluate_cpu, memory=evaluate_memory)

            with dsl.If(evaluated.outputs["Output"] == "PASS", "model-passed"):
                _registered(
                    trained,
                    validated,
                    evaluated,
                    registry=registry,
                    commit=commit,
                    cpu=probe_cpu,
                    memory=probe_memory,
                )

            with dsl.If(evaluated.outputs["Output"] != "PASS", "model-held"):
                _held(evaluated, "evaluate")

        with dsl.If(validated.outputs["decision"] == "FAIL", "data-refused"):
            _held(validated, "validate")
