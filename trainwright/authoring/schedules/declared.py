"""The file of schedules, checked whole before the API is asked anything."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainwright.authoring import arguments as experiments
from trainwright.authoring import catalog, credentials, parameters, pipeline_spec
from trainwright.authoring.schedules import timing
from trainwright.authoring.submission import order, provenance, runs, upload
from trainwright.authoring.submission.upload import Package
from trainwright.errors import InputError
from trainwright.experiment import Section

Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
SHOWN = 5
_PLACEHOLDER = re.compile(r"\[\[(ScheduledTime|CurrentTime|RunUUID|Index)\b[^\]]*\]\]|\{\{\$\..*?\}\}")


class Schedule(Section):
    """One recurring run. It has a cron expression or an interval."""

    pipeline: str = Field(description="Name of a compiled pipeline, or a path to one, relative to the file.")
    config: str = Field("", description="Experiment file, relative to the file of schedules.")
    params: dict[str, str] = Field(
        default_factory=dict,
        description="Single arguments, as --param has them; the same for every run.",
    )
    cron: str = Field("", description="Six fields: second, minute, hour, day of month, month, day of week.")
    zone: str = Field("", description="Zone of the cron expression, such as Europe/Berlin; required with it.")
    interval_s: Annotated[int, Field(ge=60)] | None = Field(None, description="Seconds between two starts.")
    experiment: str = Field("schedules", description="Where its runs are listed.")
    service_account: str = Field("", description="Whose rights the steps have; the installation's if empty.")
    registry: str = Field("", description="HOST/TEAM put in front of every image.")
    catch_up: bool = Field(False, description="Whether times that were missed are made up for, one by one.")
    max_concurrency: Annotated[int, Field(ge=1, le=10)] = Field(
        1, description="Runs that may go on at a time."
    )
    enabled: bool = Field(True, description="False: it is there, and does not fire.")

    @model_validator(mode="after")
    def _one_trigger(self) -> Self:
        if bool(self.cron) == (self.interval_s is not None):
            raise ValueError("needs either cron or interval_s")
        if bool(self.cron) != bool(self.zone):
            raise ValueError("cron and zone go together")
        if self.cron:
            timing.checked(self.cron)
            timing.zone(self.zone)
        return self


class Schedules(Section):
    """The file of schedules."""

    schema_version: Literal[1] = Field(description="1.")
    owner: Word = Field(description="Marks what this file makes; nothing else is ever touched.")
    cluster_zone: str = Field(
        "UTC", description="Zone in which the installation reads cron: its CRON_SCHEDULE_TIMEZONE."
    )
    schedules: dict[Word, Schedule] = Field(description="Each by its name.")

    @model_validator(mode="after")
    def _translatable(self) -> Self:
        cluster = timing.zone(self.cluster_zone)
        for name, schedule in self.schedules.items():
            if schedule.cron:
                try:
                    timing.translated(timing.checked(schedule.cron), timing.zone(schedule.zone), cluster)
                except ValueError as error:
                    raise ValueError(f"schedule {name}: {error}") from None
        return self


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A schedule as it is to be on the cluster.

    Attributes:
        name: Its name.
        schedule: As declared.
        package: Its compiled pipeline.
        arguments: Of every run.
        cron: The expression in the cluster's zone; empty for an interval.
        cluster_zone: That zone.
        labels: Where it comes from.
        doubts: What is not wrong, and will hardly work.
    """

    name: str
    schedule: Schedule
    package: Package
    arguments: Mapping[str, Any]
    cron: str
    cluster_zone: str
    labels: Mapping[str, str]
    doubts: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Digits that change with anything the cluster would do otherwise."""
        content = {
            "package": self.package.digest,
            "arguments": {key: value for key, value in self.arguments.items() if key not in runs.RECORDED},
            "cron": self.cron,
            "interval_s": self.schedule.interval_s,
            "settings": [
                self.schedule.experiment,
                self.schedule.service_account,
                self.schedule.catch_up,
                self.schedule.max_concurrency,
            ],
        }
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[: provenance.KEY_DIGITS]

    def next_after(
        self, moment: datetime, count: int = SHOWN, begun: datetime | None = None
    ) -> list[datetime]:
        """Return the next times at which it fires, cron in the zone that it was declared in.

        Args:
            moment: After which.
            count: How many.
            begun: When it was made, from which an interval is counted; None for that moment.
        """
        if self.schedule.interval_s:
            return list(islice(timing.every(self.schedule.interval_s, moment, begun), count))
        shown = timing.zone(self.schedule.zone)
        found = timing.firings(self.cron, timing.zone(self.cluster_zone), moment)
        return [time.astimezone(shown) for time in islice(found, count)]


def load(path: Path) -> Schedules:
    """Read and check a file of schedules.

    Raises:
        InputError: It is missing, is no YAML, carries a secret, or holds wrong keys or values; all are named.
    """
    return Schedules.check(experiments.plain(path, "the file of schedules"), where=str(path))


def wanted(path: Path) -> tuple[str, list[Wanted]]:
    """Return the owner that a file names, and every schedule in it as it is to be.

    Raises:
        InputError: As :func:`load`; or a pipeline, an experiment or an argument is not right.
    """
    file = load(path)
    folder = path.resolve().parent
    commit = experiments.commit(folder)
    labels = provenance.labels(folder, commit)
    return file.owner, [_wanted(name, file, folder, labels) for name in file.schedules]


def _wanted(name: str, file: Schedules, folder: Path, labels: Mapping[str, str]) -> Wanted:
    schedule = file.schedules[name]
    given_path = schedule.pipeline.endswith((".yaml", ".yml"))
    compiled = catalog.pipeline(str(folder / schedule.pipeline) if given_path else schedule.pipeline)
    read = pipeline_spec.read(compiled)
    params = [f"{key}={value}" for key, value in schedule.params.items()]
    try:
        arguments = parameters.arguments(
            compiled, folder / schedule.config if schedule.config else None, params
        )
        order.require_complete(read, arguments)
        _require_written_out(arguments)
        credentials.require_none(arguments, where="an argument", plain=True)
        text = order.prefixed(compiled, schedule.registry)
    except InputError as error:
        raise InputError(f"schedule {name}: {error.what}", where=error.where, hint=error.hint) from None
    return Wanted(
        name=name,
        schedule=schedule,
        package=upload.package(read, text),
        arguments=arguments,
        cron=_on_cluster(schedule, file.cluster_zone),
        cluster_zone=file.cluster_zone,
        labels={key: labels[key] for key in ("commit", "branch", "dirty") if key in labels},
        doubts=order.doubts(read, arguments, schedule.registry),
    )


def _require_written_out(arguments: Mapping[str, Any]) -> None:
    """Refuse a placeholder: Kubeflow fills it in for pipelines of its first version only.

    The controller of KFP 2.17 changes the parameters of the workflow, and those of a pipeline stand elsewhere
    in it (kubeflow/pipelines#12494): every run would get ``[[ScheduledTime]]`` as it is.
    """
    for name, value in arguments.items():
        if found := _PLACEHOLDER.search(value if isinstance(value, str) else ""):
            raise InputError(
                f"{name} holds {found[0]}, which Kubeflow hands to the steps as it is",
                where="params",
                hint="Leave the date out: each run takes the day in UTC on which its first step starts.",
            )


def _on_cluster(schedule: Schedule, cluster_zone: str) -> str:
    """Return the cron expression in the cluster's zone; empty for an interval."""
    if not schedule.cron:
        return ""
    cron = timing.checked(schedule.cron)
    return timing.translated(cron, timing.zone(schedule.zone), timing.zone(cluster_zone))
