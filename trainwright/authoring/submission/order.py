"""Prepare a submission: package, arguments, labels and key, all validated before any request."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright import credentials
from trainwright.authoring import arguments as experiments
from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import provenance
from trainwright.authoring.submission.connection import Endpoint
from trainwright.documents import read_json
from trainwright.errors import InputError

MOST_BYTES = 500_000
"""Of arguments: etcd takes objects of 1.5 MB, and a workflow holds its arguments twice, and all its steps."""

_REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*/?")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A compiled pipeline to upload: its text, and the same parsed."""

    pipeline: Pipeline
    text: str

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self.pipeline.name

    @property
    def display_name(self) -> str:
        """The pipeline's name in the UI, as its author wrote it."""
        return str(self.pipeline.document["pipelineInfo"].get("displayName") or self.name)

    @property
    def description(self) -> str:
        """The pipeline's description in one line."""
        return " ".join(str(self.pipeline.document["pipelineInfo"].get("description", "")).split())

    @property
    def digest(self) -> str:
        """SHA-256 of the YAML: the name of its version."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Order:
    """A validated submission."""

    package: Package
    arguments: Mapping[str, Any]
    key: str  # a second submission with it finds the run of the first
    name: str
    labels: Mapping[str, str]
    experiment: str
    service_account: str  # of its pods; empty for the installation's
    beside: bool = False  # whether it may run beside another run of the same work for the same date
    warnings: tuple[str, ...] = ()  # what will hardly work on a cluster

    @property
    def description(self) -> str:
        """Description of the run, with its key and labels."""
        sentence = provenance.sentence(self.package.display_name, self.arguments, self.labels)
        return provenance.description(self.key, self.labels, sentence)


def prepared(  # noqa: PLR0913 - one argument an option
    pipeline: str,
    config: experiments.Config | None,
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
    """Return a validated submission, before any call of the API."""
    options = {
        "label": experiments.named_values(labels), "name": name, "key": key, "registry": registry,
        "data-version": data_version, "experiment": experiment, "service-account": service_account,
    }  # fmt: skip
    credentials.require_none(options, where="an option", plain=True)
    compiled = catalog.pipeline(pipeline)
    arguments = experiments.of_pipeline(compiled, config, params, date)
    package = checked_package(compiled, arguments, registry)
    folder = config.resolve().parent if isinstance(config, Path) else Path.cwd()
    commit = experiments.commit(folder)
    where = (place.host, place.namespace, experiment)
    found = provenance.digest(key) if key else provenance.key_of(package.digest, arguments, where, commit)
    return Order(
        package=package,
        arguments=arguments,
        key=found,
        name=provenance.run_name(name, package.name, arguments, found, datetime.now(UTC)),
        labels=provenance.labels(folder, commit, labels, data_version),
        experiment=experiment,
        service_account=service_account,
        beside=beside,
        warnings=warnings(package.pipeline, arguments, registry),
    )


def checked_package(compiled: Path, arguments: Mapping[str, Any], registry: str) -> Package:
    """Return a compiled pipeline, with a registry in front of its images, that takes these arguments."""
    pipeline = pipeline_spec.read(compiled)
    known = pipeline.parameters
    needed = {name for name, entry in known.items() if not entry.get("isOptional")}
    problems = [f"unknown: {name}" for name in sorted(arguments.keys() - known.keys())]
    problems += [f"missing: {name}" for name in sorted(needed - arguments.keys())]
    if problems:
        raise InputError(
            "the arguments do not fit the pipeline\n" + "\n".join(f"  {line}" for line in problems),
            where=pipeline.name,
            hint=f"It takes {', '.join(sorted(known)) or 'none'}.",
        )
    credentials.require_none(arguments, where="an argument of the pipeline", plain=True)
    if registry and not _REGISTRY.fullmatch(registry):
        hint = "Write it as HOST/TEAM, such as registry.example/team: no https://, no tag."
        raise InputError(f"{registry!r:.80} is no place of images", where="registry", hint=hint)
    return Package(pipeline=pipeline, text=catalog.prefixed(compiled.read_text(), registry))


def warnings(pipeline: Pipeline, arguments: Mapping[str, Any], registry: str) -> tuple[str, ...]:
    """Return what is valid, and will hardly work on a cluster."""
    text = "is a path of this machine: a step sees it only where its pod mounts the same"
    found = [f"{name} {text}" for name in sorted(set(local_paths(arguments)))]
    hosts = {step.image.split("/", 1)[0] for step in pipeline.steps}
    if not registry and any("." not in host and ":" not in host and host != "localhost" for host in hosts):
        found.append(
            "the images name no registry, so nodes pull them from their default one: --registry HOST/TEAM"
        )
    if (size := len(json.dumps(dict(arguments)).encode())) > MOST_BYTES:
        found.append(
            f"the arguments take {size:,} bytes: a workflow of 1.5 MB, with all its steps, is refused"
        )
    return tuple(found)


def local_paths(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of arguments with a path that exists on this machine; sections are searched too."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from local_paths(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str) and value.startswith("{"):
        try:
            inside = read_json(value)
        except ValueError:
            return
        yield from local_paths(inside, name)
    elif isinstance(value, str) and value.startswith(("/", "sqlite:////")) and "\n" not in value:
        path = value.removeprefix("sqlite:///")
        parent = os.path.dirname(path)
        if os.path.exists(path) or (parent != "/" and os.path.exists(parent)):
            yield name
