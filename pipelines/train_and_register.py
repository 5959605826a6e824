"""The main job: from a source of rows to a registered model."""

from collections.abc import Mapping
from typing import Any

from kfp import dsl, kubernetes

from components.configure.component import configure
from components.evaluate.component import evaluate
from components.get_production_model.component import get_production_model
from components.hold.component import hold
from components.ingest.component import ingest
from components.join.component import join
from components.register.component import register
from components.resolve.component import resolve
from components.score.component import score
from components.smoke_test.component import smoke_test
from components.summarize.component import summarize
from components.train.component import train
from components.tune.component import tune
from components.validate.component import validate
from trainwright.authoring import images, tasks

SHARED = "/shared"
"""Where the train step and the pods of its job see the volume that they share: ``resources.mount``."""

DATABASE = "trainwright-database"
SECRETS = "/var/run/secrets/trainwright"
"""A Secret, if the namespace has it, and the folder of its files: ``data.sql.password_file`` lies there."""

KEY, KEY_FOLDER = "trainwright-register", "/var/run/secrets/trainwright-audit"
"""The Secret of ``register``: MLflow's credentials, and the key that signs its notes, with its folder."""

MLFLOW = "trainwright-mlflow"
"""The Secret with credentials that may read MLflow, for the steps that look what is in production."""


WEEK = 7 * 24
"""Hours that a search may take in one attempt; the next one continues the study."""


def _look(task: dsl.PipelineTask, *, store: bool) -> dsl.PipelineTask:
    """Set up a task that looks at what is outside: never cached, for that may have changed since."""
    return tasks.configure(task, cpu="500m", memory="1G", cached=False, store=store)


def _read_outside(task: dsl.PipelineTask) -> None:
    """Give a task that reads the source the database's password as a file, where there is one."""
    kubernetes.use_secret_as_volume(task, secret_name=DATABASE, mount_path=SECRETS, optional=True)


def _submitting(task: dsl.PipelineTask, claim: str, *, hours: int) -> dsl.PipelineTask:
    """Set up a step that submits jobs and waits; the cores and GPUs belong to the jobs."""
    # Amounts set on this step would go to its jobs, which have their own: the namespace sizes the launcher.
    tasks.configure(task, hours=hours)
    kubernetes.mount_pvc(task, pvc_name=claim, mount_path=SHARED)
    return kubernetes.add_pod_annotation(task, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false")


def _trained(
    joined: dsl.PipelineTask, configured: dsl.PipelineTask, claim: str, *, tuned: bool
) -> dsl.PipelineTask:
    """Train, with the configured hyperparameters or with those that a search finds."""
    data = {"training_set": joined.outputs["training_set"], "data_version": joined.outputs["Output"]}
    sections = {name: configured.outputs[name] for name in ("network", "training", "resources")}
    if tuned:
        searched = tune(**data, **sections, image=images.TORCH, tuning=configured.outputs["tuning"])
        _submitting(searched, claim, hours=WEEK)
        sections |= {name: searched.outputs[name] for name in ("network", "training")}
    return _submitting(train(**data, **sections, image=images.TORCH), claim, hours=24)


def _held(judged: dsl.PipelineTask, gate: str) -> None:
    """Say why a gate stopped the run, in a container: KFP 2.17 counts a group as complete only when one ends.

    A second ``dsl.If`` does what ``dsl.Else`` would, without one more group around both.
    """
    held = hold(verdict=judged.outputs["verdict"], gate=gate).set_display_name(f"held-by-{gate}")
    tasks.configure(held, cpu="500m", memory="1G", cached=False, store=False)


def _registered(
    trained: dsl.PipelineTask,
    joined: dsl.PipelineTask,
    evaluated: dsl.PipelineTask,
    *,
    registry: object,
    commit: str,
    cpu: tasks.Amount,
    memory: tasks.Amount,
) -> None:
    """Try the model as it will be served, and register it."""
    model, version = trained.outputs["model"], trained.outputs["model_version"]
    tested = smoke_test(model=model, model_version=version)
    tasks.configure(tested, cpu=cpu, memory=memory, store=False)
    registered = register(
        model=model,
        model_version=version,
        data_verdict=joined.outputs["verdict"],
        model_verdict=evaluated.outputs["verdict"],
        trial=tested.outputs["trial"],
        registry=registry,
        commit=commit,
        pipeline_run=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    # Not cached: it looks the model up in the registry first, and reuses what it finds.
    tasks.configure(registered, cpu="500m", memory="2G", cached=False)
    tasks.grant_mlflow(registered, KEY)
    kubernetes.use_secret_as_volume(registered, secret_name=KEY, mount_path=KEY_FOLDER, optional=True)


def add_steps(name: str, given: Mapping[str, Any]) -> None:
    """Add every step of a job, by the parameters of its pipeline.

    Args:
        name: Name of the pipeline.
        given: Its parameters by name. With ``tuning``, a search of hyperparameters precedes the training.
    """
    scheduled = dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
    finish = summarize(section=given["run"], registry=given["registry"], scheduled=scheduled)
    tasks.configure(finish, cpu="500m", memory="1G", cached=False)
    tasks.grant_mlflow(tasks.grant_run_end(finish), tasks.SUMMARIZE)
    with dsl.ExitHandler(finish, name=name):
        configured = configure(
            data=given["data"],
            features=given["features"],
            registry=given["registry"],
            validation=given["validation"],
            network=given["network"],
            training=given["training"],
            resources=given["resources"],
            evaluation=given["evaluation"],
            source=given["source"],
            schema=given["schema"],
            model_name=given["model_name"],
            learning_rate=given["learning_rate"],
            epochs=given["epochs"],
            min_auc=given["min_auc"],
            claim=given["claim"],
            run=given["run"],
            pipeline=name,
            **{key: given[key] for key in ("tuning",) if key in given},
        )
        # Never cached: it looks up the Feast service, whose registry may have changed.
        tasks.configure(configured, cpu="500m", memory="1G", cached=False, store=False)
        section = configured.outputs

        # Only strings of these two are passed on: on a cluster, a step that took an artifact of a task that
        # is never cached would never be reused itself.
        resolved = _look(
            resolve(
                source=section["source"],
                data=section["data"],
                columns=section["columns"],
                date=given["date"],
                scheduled=scheduled,
                feature_source=section["feature_source"],
                baseline=section["baseline"],
                serving=section["serving"],
                schema=section["schema"],
                bootstrap_schema=section["bootstrap_schema"],
            ),
            store=True,
        )
        _read_outside(resolved)
        production_now = _look(
            get_production_model(registry=section["server"], budget=section["budget"]), store=False
        )
        tasks.grant_mlflow(production_now, MLFLOW)

        ingested = ingest(
            source=resolved.outputs["source"],
            source_version=resolved.outputs["version"],
            data=section["data"],
        )
        tasks.configure(ingested, cpu=given["ingest_cpu"], memory=given["ingest_memory"])
        _read_outside(ingested)
        snapshot, data_version = ingested.outputs["snapshot"], ingested.outputs["Output"]

        # The date is left out: it would judge unchanged data again every day.
        validated = validate(
            snapshot=snapshot,
            data_version=data_version,
            schema=resolved.outputs["schema"],
            schema_version=resolved.outputs["schema_version"],
            validation=section["validation"],
            baseline=resolved.outputs["baseline"],
            baseline_version=resolved.outputs["baseline_version"],
            newest_since=resolved.outputs["newest_since"],
        )
        tasks.configure(validated, cpu=given["validate_cpu"], memory=given["validate_memory"])

        with dsl.If(validated.outputs["proceed"] == "yes", "data-not-refused"):
            joined = join(
                entities=snapshot,
                data_version=data_version,
                features=section["features"],
                features_version=resolved.outputs["features_version"],
                quarantine=validated.outputs["quarantine"],
                quarantine_version=validated.outputs["quarantine_version"],
                data_verdict=validated.outputs["verdict"],
                validation=section["validation"],
                references=resolved.outputs["references"],
            )
            tasks.configure(joined, cpu=given["join_cpu"], memory=given["join_memory"])

            trained = _trained(joined, configured, given["claim"], tuned="tuning" in given)

            # Beside the training, not after it. Its inputs make the whole group wait for
            # get_production_model, so no training is submitted beyond a budget.
            scored = score(
                training_set=joined.outputs["training_set"],
                data_version=joined.outputs["Output"],
                split=section["split"],
                engine=section["engine"],
                registry=section["server"],
                model_version=production_now.outputs["model_version"],
                source=production_now.outputs["source"],
            )
            tasks.configure(scored, cpu=given["score_cpu"], memory=given["score_memory"], hours=4)
            tasks.grant_mlflow(scored, MLFLOW)

            evaluated = evaluate(
                predictions=trained.outputs["predictions"],
                predictions_version=trained.outputs["predictions_version"],
                evaluation=section["evaluation"],
                baseline=scored.outputs["predictions"],
                baseline_version=scored.outputs["Output"],
                baseline_registered=production_now.outputs["registered"],
            )
            tasks.configure(
                evaluated, cpu=given["evaluate_cpu"], memory=given["evaluate_memory"], store=False
            )

            with dsl.If(evaluated.outputs["Output"] == "PASS", "model-passed"):
                _registered(
                    trained,
                    joined,
                    evaluated,
                    registry=section["registry"],
                    commit=given["commit"],
                    cpu=given["smoke_test_cpu"],
                    memory=given["smoke_test_memory"],
                )

            with dsl.If(evaluated.outputs["Output"] != "PASS", "model-held"):
                _held(evaluated, "evaluate")

        with dsl.If(validated.outputs["proceed"] != "yes", "data-refused"):
            _held(validated, "validate")


@dsl.pipeline(name="train-and-register", display_name="Train and register")
def train_and_register(
    source: str = "",
    schema: str = "",
    model_name: str = "",
    learning_rate: float = 0.0,
    epochs: int = 0,
    min_auc: float = 0.0,
    date: str = "",
    data: dict = {},  # noqa: B006 - a default of a pipeline's form
    features: dict = {},  # noqa: B006
    registry: dict = {},  # noqa: B006
    validation: dict = {},  # noqa: B006
    network: dict = {},  # noqa: B006
    training: dict = {},  # noqa: B006
    resources: dict = {},  # noqa: B006
    evaluation: dict = {},  # noqa: B006
    run: dict = {},  # noqa: B006
    claim: str = "trainwright-shared",
    commit: str = "none",
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
    smoke_test_cpu: str = "1",
    smoke_test_memory: str = "4G",
) -> None:
    """Train a model on pinned data, and register it if the data and the model pass their gates.

    Only ``data`` and ``registry`` are needed: without a schema ``validate`` infers one, and without a feature
    service the columns of the rows are the features. Data that FAILs stops the run before training. Data on
    HOLD is trained on, and the registered version says so, unless ``validation.on_data_hold`` is ``stop``.
    Only a model whose evaluation is PASS is registered.

    Args:
        source: Rows: a path, a folder or a glob, local or in an object store; '' for ``data.source``.
        schema: Reviewed TFDV schema, ``schema.pbtxt``: a path or a URI (``schema_file``); '' to infer one.
        model_name: Name of the registered model; '' for ``registry.model``.
        learning_rate: Peak learning rate; 0 for the section's.
        epochs: Passes over the training split; 0 for ``training.epochs``.
        min_auc: Smallest accepted AUC of the model; 0 for ``evaluation.min_auc``.
        date: Date that ``{date}`` in the source stands for, as 2026-01-31; '' for the day for which the run
            was scheduled, in UTC.
        data: Section ``data`` of the experiment file. Empty sections have the defaults of all their keys.
        features: Section ``features``; empty for all columns of the rows, without a feature store.
        registry: Section ``registry``.
        validation: Section ``validation``.
        network: Section ``network``.
        training: Section ``training``.
        resources: Section ``resources``.
        evaluation: Section ``evaluation``.
        run: Section ``run``.
        claim: PersistentVolumeClaim that the train step and its job share on a cluster: ``resources.claim``.
        commit: Git commit of the experiment, for the record.
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
        smoke_test_cpu: Cores of ``smoke_test``.
        smoke_test_memory: Memory of ``smoke_test``.
    """
    add_steps("train-and-register", locals())
