"""Settings of a pipeline's tasks: size, retries, time limit, caching, user, and access to object stores."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from kfp import dsl, kubernetes
from kfp.dsl import pipeline_channel

from trainwright.authoring import images

HOUR_S = 3600
RETRIES = 2

STORE = "trainwright-store"
"""A Secret with keys, and a ConfigMap with an endpoint and a region: a namespace may have them."""

STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Keys of the Secret, each named after the variable that it becomes: for ``s3://``."""

STORE_SETTINGS = {
    "AWS_ENDPOINT_URL_S3": "AWS_ENDPOINT_URL_S3",
    "AWS_REGION": "AWS_DEFAULT_REGION",
    "MINIO_ENDPOINT": "MINIO_ENDPOINT",
}
"""Keys of the ConfigMap, each with its variable; boto3 and Arrow both read the region from this one.

Every variable of every task lies eight times in the run's workflow, which has 1 MiB for all of them.
"""

KFP_STORE = "mlpipeline-minio-artifact"
"""The Secret that every installation of Kubeflow Pipelines keeps the keys of its own store in."""

KFP_STORE_KEYS = {"accesskey": "MINIO_ACCESS_KEY", "secretkey": "MINIO_SECRET_KEY"}
"""For ``minio://`` only, as in KFP's own launcher: a step that reads ``s3://`` by its role keeps it."""

SUMMARIZE = "trainwright-summarize"
"""The Secret of `summarize`: credentials that may write runs to MLflow, and the files that `run` names."""

SUMMARIZE_FOLDER = f"/var/run/secrets/{SUMMARIZE}"
"""Folder of its files: ``run.alerts.webhook_file`` and others."""

MLFLOW_KEYS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
"""Keys of a Secret with MLflow's credentials, each named after the variable that MLflow's client reads."""

Amount: TypeAlias = "str | pipeline_channel.PipelineParameterChannel"
"""An amount of cores or memory: a constant, or a parameter of the pipeline."""


def configure(
    task: dsl.PipelineTask,
    *,
    cpu: Amount = "",
    memory: Amount = "",
    hours: int = 1,
    cached: bool = True,
    store: bool = True,
) -> dsl.PipelineTask:
    """Set the size, retries, time limit, caching, user and store access of a task.

    Caching is set here, because the client's override does not reach tasks inside an exit handler.

    Args:
        task: The task.
        cpu: Cores, as ``500m`` or a parameter of the pipeline; '' for what the namespace's defaults say.
        memory: Memory, as ``2G`` or a parameter of the pipeline; '' as above.
        hours: Time limit of one attempt.
        cached: Whether the task may be served from the cache.
        store: Whether the task itself reads or writes an object store, beyond what KFP's launcher copies.
    """
    with _named_as_caller():
        if cpu:
            task.set_cpu_request(cpu).set_cpu_limit(cpu)
        if memory:
            task.set_memory_request(memory).set_memory_limit(memory)
    # kfp (2.17) does not declare parameters of sizes on the groups around a task; registering them does.
    task.register_pipeline_channels([amount for amount in (cpu, memory) if not isinstance(amount, str)])
    # Argo counts backoff_max_duration from the start of the first attempt, so it has to hold them all.
    longest = f"{(RETRIES + 1) * hours + 1}h"
    task.set_retry(RETRIES, backoff_duration="30s", backoff_factor=2.0, backoff_max_duration=longest)
    task.set_caching_options(cached)
    kubernetes.set_timeout(task, hours * HOUR_S)
    kubernetes.set_security_context(task, images.USER, images.USER, run_as_non_root=True)
    return grant_store(task) if store else task


@contextmanager
def _named_as_caller() -> Iterator[None]:
    """Give kfp (2.17) the name of its caller, for an error message.

    For each amount it reads the source of every frame to find it: two thirds of the time of compiling.
    """
    stack = inspect.stack
    inspect.stack = lambda *_: [(None, "", 0, configure.__name__)] * 2
    try:
        yield
    finally:
        inspect.stack = stack


def grant_mlflow(task: dsl.PipelineTask, secret: str) -> dsl.PipelineTask:
    """Give one task MLflow's credentials from a Secret, if the namespace has it.

    Tasks that write to MLflow name another Secret than those that read: kfp (2.17) has no service account of
    a task, so a Secret of its own is what keeps the credentials of one step out of the others.
    """
    return kubernetes.use_secret_as_env(task, secret, {key: key for key in MLFLOW_KEYS}, optional=True)


def grant_run_end(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """Give `summarize` the keys of its Secret as files, if the namespace has it."""
    return kubernetes.use_secret_as_volume(task, SUMMARIZE, mount_path=SUMMARIZE_FOLDER, optional=True)


def grant_store(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """Give a task the keys, endpoint and region of object stores, from whichever objects the namespace has.

    Every reference is optional: with workload identity there is none of them, and the SDK's own chain holds.
    Each variable comes from one object only. KFP sends them as a strategic merge patch, in which a second
    reference of the same name replaces the first, also where its object does not exist.
    """
    kubernetes.use_secret_as_env(task, KFP_STORE, dict(KFP_STORE_KEYS), optional=True)
    kubernetes.use_secret_as_env(task, STORE, {key: key for key in STORE_KEYS}, optional=True)
    kubernetes.use_config_map_as_env(task, STORE, dict(STORE_SETTINGS), optional=True)
    return task
