"""Prepare a submission: package, arguments, labels and key, all validated before any request."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from trainwright.authoring import arguments as experiments
from trainwright.authoring import catalog, credentials, parameters, pipeline_spec
from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import naming, provenance, runs, upload
from trainwright.authoring.submission.connection import Connection, Endpoint
from trainwright.authoring.submission.screen import SubmittedRun
from trainwright.authoring.submission.upload import Package
from trainwright.errors import InputError, TrainwrightError

MOST_BYTES = 500_000
"""Of arguments: etcd takes objects of 1.5 MB, and a workflow holds its arguments twice, and all its steps."""

_REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*/?")


@dataclass(frozen=True, kw_only=True)
class Order:
    """A run that is wanted, whole and checked.

    Attributes:
        package: The compiled pipeline.
        pipeline: The same, read.
        arguments: Its arguments.
        key: What a second submission finds the run by.
        name: Display name of the run.
        description: The sentence that its description begins with.
        labels: Where it comes from.
        experiment: Name of the experiment.
        service_account: Of its pods; empty for the installation's.
        beside: Whether it may go on beside another run of the same work for the same date.
        doubts: What is not wrong, and will hardly work.
    """

    package: Package
    pipeline: Pipeline
    arguments: Mapping[str, Any]
    key: str
    name: str
    description: str
    labels: Mapping[str, str]
    experiment: str
    service_account: str
    beside: bool = False
    doubts: tuple[str, ...] = ()


def prepared(  # noqa: PLR0913 - one argument an option
    pipeline: str,
    config: Path | None,
    params: Sequence[str],
    date: str,
    *,
    registry: str,
    labels: Sequence[str],
    key: str,
    data_version: str,
    experiment: str,
    service_account: str,
    place: Endpoint,
    beside: bool = False,
    name: str = "",
) -> Order:
    """Put together what is submitted; nothing is asked of the API.

    Raises:
        InputError: The pipeline, the experiment, an argument or a label is not right; an argument is missing
            or unknown, or carries a secret.
    """
    compiled = catalog.pipeline(pipeline)
    read = pipeline_spec.read(compiled)
    arguments = parameters.arguments(compiled, config, params, date)
    require_complete(read, arguments)
    credentials.require_none(arguments, where="an argument of the pipeline", plain=True)
    package = upload.package(read, prefixed(compiled, registry))
    folder = config.resolve().parent if config else Path.cwd()
    commit = experiments.commit(folder)
    known = provenance.labels(folder, commit, labels, data_version)
    made = provenance.key_of(package.digest, arguments, (place.host, place.namespace, experiment), commit)
    found = provenance.digest(key) if key else made
    return Order(
        package=package,
        pipeline=read,
        arguments=arguments,
        key=found,
        name=naming.checked(name) or naming.run(read.name, arguments, found, datetime.now(UTC)),
        description=naming.sentence(package.display_name or read.name, arguments, known),
        labels=known,
        experiment=experiment,
        service_account=service_account,
        beside=beside,
        doubts=doubts(read, arguments, registry),
    )


def doubts(pipeline: Pipeline, arguments: Mapping[str, Any], registry: str) -> tuple[str, ...]:
    """Return what is not wrong, and will hardly work on a cluster."""
    return (*_local_paths(arguments), *_no_registry(pipeline, registry), *_too_large(arguments))


def _too_large(arguments: Mapping[str, Any]) -> list[str]:
    size = len(json.dumps(dict(arguments)).encode())
    if size <= MOST_BYTES:
        return []
    return [f"the arguments take {size:,} bytes: a workflow of 1.5 MB, with all its steps, is refused"]


def prefixed(compiled: Path, registry: str) -> str:
    """Return compiled YAML with a registry in front of the images of this library.

    Raises:
        InputError: It is none: the pods would wait for ever for an image of that name.
    """
    if registry and not _REGISTRY.fullmatch(registry):
        hint = "Write it as HOST/TEAM, such as registry.example/team: no https://, no tag."
        raise InputError(f"{registry!r:.80} is no place of images", where="registry", hint=hint)
    return catalog.prefixed(compiled.read_text(), registry)


def _local_paths(arguments: Mapping[str, Any]) -> list[str]:
    text = "is a path of this machine: a step sees it only where its pod mounts the same"
    return [f"{name} {text}" for name in sorted(set(here(arguments)))]


def _no_registry(pipeline: Pipeline, registry: str) -> list[str]:
    hosts = {step.image.split("/", 1)[0] for step in pipeline.steps}
    bare = any("." not in host and ":" not in host and host != "localhost" for host in hosts)
    if registry or not bare:
        return []
    return ["the images name no registry, so nodes pull them from their default one: --registry HOST/TEAM"]


def require_complete(pipeline: Pipeline, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the pipeline does not have, and those that it needs and were not given.

    Raises:
        InputError: There are such; all are named.
    """
    known = pipeline.parameters
    needed = {name for name, entry in known.items() if not entry.get("isOptional")}
    problems = [f"unknown: {name}" for name in sorted(arguments.keys() - known.keys())]
    problems += [f"missing: {name}" for name in sorted(needed - arguments.keys())]
    if problems:
        hint = f"It takes {', '.join(sorted(known)) or 'none'}."
        raise InputError(
            "the arguments do not fit the pipeline\n" + "\n".join(f"  {line}" for line in problems),
            where=pipeline.name,
            hint=hint,
        )


def placed(api: Connection, order: Order, warn: Callable[[str], None]) -> SubmittedRun:
    """Upload the package, submit the run, and say what is there now.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    for text in order.doubts:
        warn(text)
    experiment_id = runs.experiment(api, order.experiment)
    version = upload.uploaded(api, order.package, order.labels)
    submission = runs.Submission(
        name=order.name,
        description=order.description,
        version=version,
        arguments=order.arguments,
        key=order.key,
        labels=order.labels,
        service_account=order.service_account,
        beside=order.beside,
    )
    run, fresh = runs.submitted(api, experiment_id, submission)
    return SubmittedRun(
        pipeline=order.package.name,
        run_id=run.run_id,
        link=api.place.link(run.run_id),
        key=order.key,
        fresh=fresh,
        found="" if fresh else "found by its key, not submitted again",
        uploaded=version.fresh,
        labels=order.labels,
    )


def here(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of arguments that hold a path which lies on this machine; sections are looked into."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from here(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str) and value.startswith("{"):
        try:
            inside = json.loads(value)
        except ValueError:
            return
        yield from here(inside, name)
    elif isinstance(value, str) and value.startswith(("/", "sqlite:////")) and "\n" not in value:
        path = value.removeprefix("sqlite:///")
        parent = os.path.dirname(path)
        if os.path.exists(path) or (parent != "/" and os.path.exists(parent)):
            yield name


def pipeline_of(api: Connection, run: Any) -> Pipeline | None:
    """Return the pipeline of a run, as the API has it; None if it does not tell."""
    reference = run.pipeline_version_reference
    document: Mapping[str, Any] = run.pipeline_spec if isinstance(run.pipeline_spec, dict) else {}
    if reference and reference.pipeline_version_id:
        document = upload.spec_of(api, reference.pipeline_id, reference.pipeline_version_id)
    platform = document.get("platform_spec", {})
    document = document.get("pipeline_spec", document)
    try:
        return pipeline_spec.parse(document, platform)
    except (KeyError, TypeError, AttributeError, TrainwrightError, yaml.YAMLError):
        return None


def seen(api: Connection, run: Any, pipeline: Pipeline | None, found: str = "") -> SubmittedRun:
    """Describe a run that is there, and why it was not started just now; empty if it was."""
    labels = provenance.read(run.description)
    return SubmittedRun(
        pipeline=pipeline.name if pipeline else str(run.display_name),
        run_id=run.run_id,
        link=api.place.link(run.run_id),
        key=labels.pop("key", ""),
        fresh=not found,
        found=found,
        labels=labels,
    )
