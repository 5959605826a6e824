"""The file of schedules and their fire times, validated before any call of the API."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, model_validator

from trainwright.authoring import arguments as experiments
from trainwright.authoring import catalog
from trainwright.authoring.submission import order, provenance, runs
from trainwright.authoring.submission.order import Package
from trainwright.errors import InputError
from trainwright.experiment import Section, Triggers

FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
_PART = r"([0-9]+|[A-Za-z]{3})"
_TERM = re.compile(rf"(\*|\?|{_PART}(-{_PART})?)(/[0-9]+)?")
_DAY, _HOUR = 24 * 60, 60
YEARS = 3
COMPARED = 400
"""Firings by which a translation is tried: more than a year of daily ones."""


def time_zone(name: str) -> ZoneInfo:
    """Return a time zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; write it as Europe/Berlin, or UTC") from None


def check_cron(cron: str) -> str:
    """Return a cron expression that both the controller and we read the same way.

    The controller reads cron with robfig/cron 1.2: six fields, seconds first; with five, the first is taken
    for the seconds, and ``10 10 * * *`` runs every hour.
    """
    fields = cron.split()
    if len(fields) != len(FIELDS):
        text = "six fields, seconds first: 0 30 2 * * * is 02:30 every day"
        raise ValueError(f"{len(fields)} fields; Kubeflow takes {text}")
    for name, field in zip(FIELDS, fields, strict=True):
        if not all(_TERM.fullmatch(term) for term in field.split(",")):
            raise ValueError(f"{name}: {field!r} cannot be read")
    if not re.fullmatch("[0-9]+", fields[0]):
        raise ValueError(f"second: {fields[0]!r} starts more than one run a minute; write one number")
    if re.search(r"\b7\b", fields[5]):
        raise ValueError("day of week: 7 is refused by the controller; Sunday is 0")
    try:
        CronSim(" ".join(fields).replace("?", "*"), datetime.now(UTC))
    except CronSimError as error:
        raise ValueError(f"{str(error).lower()} in {cron!r}") from None
    return " ".join(fields)


def firings(cron: str, where: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the moments at which a cron expression fires after a moment, in its zone.

    A time that a change of the clocks skips does not fire, and one that it repeats fires twice: that is what
    the controller does.
    """
    yield from CronSim(cron.replace("?", "*"), after.astimezone(where))


def every(interval_s: int, after: datetime, begun: datetime | None = None) -> Iterator[datetime]:
    """Yield the moments after another one at which an interval fires."""
    step = timedelta(seconds=interval_s)
    begun = begun or after
    moment = begun + max((after - begun) // step, 0) * step
    while True:
        moment += step
        yield moment


def translated(cron: str, wanted: ZoneInfo, cluster: ZoneInfo) -> str:
    """Return the expression that fires in the cluster's zone when the given one fires in the wanted zone.

    The controller has one zone for the whole installation: ``CRON_SCHEDULE_TIMEZONE``.
    """
    if wanted.key == cluster.key:
        return cron
    start = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(hours=12 * number) for number in range(YEARS * 2 * 365)]
    shifts = {_minutes(moment, wanted) - _minutes(moment, cluster) for moment in moments}
    if len(shifts) > 1:
        raise ValueError(
            f"the clocks of {wanted.key} and of the cluster ({cluster.key}) do not change together, and a "
            f"recurring run has no zone of its own; write the time in {cluster.key}"
        )
    found = _shifted(cron, shifts.pop())
    pairs = (firings(cron, wanted, start), firings(found, cluster, start)) if found else ()
    same = pairs and all(a == b for a, b in islice(zip(*pairs, strict=False), COMPARED))
    if not same:
        text = f"{cron!r} in {wanted.key} cannot be written in {cluster.key}, the cluster's zone"
        raise ValueError(f"{text}; write the time in {cluster.key}")
    return found


def _minutes(moment: datetime, where: ZoneInfo) -> int:
    offset = moment.astimezone(where).utcoffset() or timedelta()
    return int(offset.total_seconds()) // 60


def _shifted(cron: str, minutes: int) -> str:
    """Write an expression so many minutes earlier; empty if it cannot be written as one."""
    fields = cron.replace("?", "*").split()
    read = CronSim(" ".join(fields), datetime.now(UTC))
    times = {hour * _HOUR + minute - minutes for hour in read.hours for minute in read.minutes}
    within = {time % _DAY for time in times}
    hours, mins = {time // _HOUR for time in within}, {time % _HOUR for time in within}
    days = {time // _DAY for time in times}
    if len(hours) * len(mins) != len(within):
        return ""
    if days != {0} and fields[3:] != ["*", "*", "*"]:
        if len(days) > 1 or fields[3:5] != ["*", "*"]:
            return ""
        moved = {(int(day) + min(days)) % 7 for day in read.weekdays if isinstance(day, int)}
        fields[5] = _written(moved, 7)
    return " ".join([fields[0], _written(mins, 60), _written(hours, 24), *fields[3:]])


def _written(values: set[int], count: int) -> str:
    return "*" if len(values) == count else ",".join(map(str, sorted(values)))


Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
TIMES = 5
RECONCILER = "retrain"
"""The pipeline that a schedule with triggers runs instead of its own."""

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
    triggers: Triggers | None = Field(None, description="Conditions; without, every time starts a run.")

    @model_validator(mode="after")
    def _one_trigger(self) -> Self:
        if bool(self.cron) == (self.interval_s is not None):
            raise ValueError("needs either cron or interval_s")
        if bool(self.cron) != bool(self.zone):
            raise ValueError("cron and zone go together")
        if self.cron:
            check_cron(self.cron)
            time_zone(self.zone)
        return self

    def cron_in(self, cluster_zone: str) -> str:
        """Return the cron expression in the cluster's zone."""
        cron = check_cron(self.cron)
        return translated(cron, time_zone(self.zone), time_zone(cluster_zone))


class Schedules(Section):
    """The file of schedules."""

    schema_version: Literal[1] = Field(description="1.")
    owner: Word = Field(description="Marks what this file makes; nothing else is ever touched.")
    cluster_zone: str = Field(
        "UTC", description="Zone in which the installation reads cron: its CRON_SCHEDULE_TIMEZONE."
    )
    kubeflow: str = Field(
        "http://ml-pipeline.kubeflow.svc.cluster.local:8888",
        description="Address of the API for the steps of the cluster, which start runs of triggers.",
    )
    schedules: dict[Word, Schedule] = Field(description="Each by its name.")

    @model_validator(mode="after")
    def _translatable(self) -> Self:
        time_zone(self.cluster_zone)
        for name, schedule in self.schedules.items():
            if schedule.cron:
                try:
                    schedule.cron_in(self.cluster_zone)
                except ValueError as error:
                    raise ValueError(f"schedule {name}: {error}") from None
        return self


@dataclass(frozen=True, kw_only=True)
class DeclaredSchedule:
    """A validated schedule."""

    name: str
    schedule: Schedule  # its entry in the file
    package: Package
    arguments: Mapping[str, Any]  # of every run
    cron: str  # the expression in the cluster's zone; empty for an interval
    cluster_zone: str
    labels: Mapping[str, str]
    warnings: tuple[str, ...] = ()  # what will hardly work on a cluster
    starts: Package | None = None  # of a schedule with triggers: what the reconciler starts
    compiled: Path  # of the pipeline that the schedule names

    @property
    def key(self) -> str:
        """Digest of everything that decides what the cluster does."""
        content = {
            "package": self.package.digest,
            "arguments": _unrecorded(self.arguments),
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
        self, moment: datetime, count: int = TIMES, begun: datetime | None = None
    ) -> list[datetime]:
        """Return the next times at which it fires, cron in the zone of its declaration.

        Args:
            moment: After which.
            count: How many.
            begun: When it was created, from which an interval is counted; None for ``moment``.
        """
        if self.schedule.interval_s:
            return list(islice(every(self.schedule.interval_s, moment, begun), count))
        zone = time_zone(self.schedule.zone)
        found = firings(self.cron, time_zone(self.cluster_zone), moment)
        return [time.astimezone(zone) for time in islice(found, count)]


def _unrecorded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without those that are only a record, also those of a pipeline to start."""
    found = {key: value for key, value in arguments.items() if key not in runs.RECORDED}
    if isinstance(target := found.get("target"), Mapping):
        found["target"] = {**target, "arguments": _unrecorded(target["arguments"])}
    return found


def read(path: Path) -> tuple[str, list[DeclaredSchedule]]:
    """Read and validate a file of schedules: its owner, and every schedule."""
    file = Schedules.check(experiments.plain(path, "the file of schedules"), where=str(path))
    folder = path.resolve().parent
    known = provenance.labels(folder, experiments.commit(folder))
    labels = {key: value for key, value in known.items() if key in {"commit", "branch", "dirty"}}
    return file.owner, [_declared(name, file, folder, labels) for name in file.schedules]


def _declared(name: str, file: Schedules, folder: Path, labels: Mapping[str, str]) -> DeclaredSchedule:
    schedule = file.schedules[name]
    is_path = schedule.pipeline.endswith((".yaml", ".yml"))
    compiled = catalog.pipeline(str(folder / schedule.pipeline) if is_path else schedule.pipeline)
    params = [f"{key}={value}" for key, value in schedule.params.items()]
    try:
        config = folder / schedule.config if schedule.config else None
        arguments = experiments.of_pipeline(compiled, config, params)
        package = order.checked_package(compiled, arguments, schedule.registry)
        _require_no_placeholder(arguments)
        starts = None
        if schedule.triggers:
            starts, arguments = (
                package,
                _reconciler_arguments(f"{file.owner}/{name}", file, schedule, package, arguments),
            )
            package = order.checked_package(catalog.pipeline(RECONCILER), arguments, schedule.registry)
    except InputError as error:
        raise InputError(f"schedule {name}: {error.what}", where=error.where, hint=error.hint) from None
    return DeclaredSchedule(
        name=name,
        schedule=schedule,
        package=package,
        arguments=arguments,
        cron=schedule.cron and schedule.cron_in(file.cluster_zone),
        cluster_zone=file.cluster_zone,
        labels=labels,
        warnings=order.warnings(package.pipeline, arguments, schedule.registry),
        starts=starts,
        compiled=compiled,
    )


def _reconciler_arguments(
    trigger: str, file: Schedules, schedule: Schedule, package: Package, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the pipeline that looks at the conditions and starts another one.

    Raises:
        InputError: That pipeline cannot record the reason of a start, or has no source or no model.
    """
    registry, data = dict(arguments.get("registry", {})), dict(arguments.get("data", {}))
    registry["model"] = arguments.get("model_name") or registry.get("model", "")
    data["source"] = arguments.get("source") or data.get("source", "")
    needed = {"registry.model": registry["model"], "data.source": data["source"]}
    needed |= {"a parameter run": "run" in package.pipeline.parameters}
    if missing := [name for name, there in needed.items() if not there]:
        raise InputError(
            f"triggers need {', '.join(missing)}",
            where="triggers",
            hint="Name an experiment file (config), and a pipeline such as train_and_register.",
        )
    target = {
        "trigger": trigger, "pipeline": package.name, "version": package.digest, "arguments": dict(arguments),
    }  # fmt: skip
    return {
        **(_drift_arguments(arguments, data) if schedule.triggers and schedule.triggers.drift else {}),
        "triggers": schedule.triggers.to_parameter(as_written=True) if schedule.triggers else {},
        "target": target,
        "source": data["source"],
        "data": data,
        "registry": registry,
        "kubeflow": file.kubeflow,
        **{name: arguments[name] for name in ("run", "date") if arguments.get(name)},
    }


def _drift_arguments(arguments: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what compares the serving log with the baseline, in the columns that the model gets."""
    validation, features = dict(arguments.get("validation", {})), arguments.get("features", {})
    places = {
        "serving": validation.get("serving_log", {}).get("source"),
        "baseline": validation.get("baseline"),
    }
    if missing := [name for name, there in places.items() if not there]:
        raise InputError(
            f"drift needs validation.serving_log and validation.baseline; missing: {', '.join(missing)}",
            where="triggers.drift",
            hint="`trainwright baseline accept RUN --to FILE` makes a baseline.",
        )
    outside = [data.get(role) for role in ("label", "key", "time")]
    outside += [*features.get("known_after", ()), *features.get("exclude", ())]
    validation["ignore"] = [*validation.get("ignore", ()), *filter(None, outside)]
    return {**places, "validation": validation, "features": features}


def _require_no_placeholder(arguments: Mapping[str, Any]) -> None:
    """Reject a placeholder: Kubeflow replaces it for pipelines of its first version only.

    The controller of KFP 2.17 changes the parameters of the workflow, and those of a pipeline stand elsewhere
    in it (kubeflow/pipelines#12494): every run would get ``[[ScheduledTime]]`` as text.
    """
    for name, value in arguments.items():
        if found := _PLACEHOLDER.search(value if isinstance(value, str) else ""):
            raise InputError(
                f"{name} holds {found[0]}, which Kubeflow hands to the steps as it is",
                where="params",
                hint="Leave the date out: each run takes the day in UTC on which its first step starts.",
            )
