"""The configuration of a training: parsed by the step, written to ``spec.json``, read by every process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts import ColumnKind, Snapshot
from trainwright.documents import Document, canonical
from trainwright.errors import InputError
from trainwright.experiment import Network, ResolvedTraining, read_network
from trainwright.experiment.training import Parallel

_PLACES_AND_SPEED = ("micro_batch", "compile", "recompute", "parallel", "feeding", "checkpoints", "tracking")
_NOT_DECISIVE = frozenset({*_PLACES_AND_SPEED, "predict", "guards"})
"""Settings of a training that may change on resume: they do not decide its result, except for rounding."""

_NOT_IN_MODEL: dict[str, bool | set[str]] = {
    "tracking": True,
    "checkpoints": True,
    "feeding": {"cache", "cache_gib", "prefetch"},
}
"""Settings about places and speed, which a model's manifest leaves out."""


@dataclass(frozen=True, kw_only=True)
class TrialMetrics(Document):
    """The output of a trial, in its attempt's folder: metrics by name, such as ``held_out_loss``."""

    FILE: ClassVar[str] = "metrics.json"
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Document):
    """The configuration of a training job. The sections are kept as JSON, and parsed on first use.

    Attributes:
        attempt: Name of the attempt, a number that rises; the completion marker repeats it.
        home: The job directory, shared by all attempts.
        training_set: Folder of the training-set snapshot, whose manifest has the digest ``data_version``.
        processes: Number of processes in the whole job.
        gpus: GPUs per node; 0 trains on the CPU.
        launched_by: The launcher and its environment, for the record.
        destination: Tracking server and run for live curves; empty if none.
        failed_report: Prefix in a store for the page of a failed training; empty if none.
        encoded: Folder of encoded samples that several trainings share; empty: in the job directory.
        trial: Measure the held-out rows instead of writing a model and predictions.
    """

    FILE: ClassVar[str] = "spec.json"
    attempt: str
    home: str
    training_set: str
    data_version: str
    network: dict[str, Any]
    training: dict[str, Any]
    processes: int
    gpus: int = 0
    launched_by: dict[str, str] = field(default_factory=dict)
    destination: dict[str, str] = field(default_factory=dict)
    failed_report: str = ""
    encoded: str = ""
    trial: bool = False

    @cached_property
    def model(self) -> Network:
        """The parsed section ``network``."""
        return read_network(self.network)

    @cached_property
    def settings(self) -> ResolvedTraining:
        """The parsed section ``training``."""
        return ResolvedTraining.check(self.training, "training")

    @property
    def job_directory(self) -> Path:
        """Folder that all attempts at the training share."""
        return Path(self.home)

    @property
    def encoded_folder(self) -> Path:
        """Folder of encoded samples and fitted transforms."""
        return Path(self.encoded or self.job_directory / "encoded")

    @property
    def decisive(self) -> dict[str, Any]:
        """Settings that decide the result: a training resumes the state of another with the same ones."""
        decisive = {key: value for key, value in self.training.items() if key not in _NOT_DECISIVE}
        early = self.settings.guards.early_stopping
        if early and early.share:
            # It decides which rows are trained on; the rest of the guards may change on resume.
            decisive["guards"] = {"early_stopping": {"share": early.share}}
        return {"data_version": self.data_version, "network": self.network, "training": decisive}

    @property
    def job_settings(self) -> dict[str, Any]:
        """Everything the processes depend on: an adopted job must have the same."""
        names = ("data_version", "network", "training", "processes", "gpus")
        trial = {"trial": True} if self.trial else {}
        return {name: getattr(self, name) for name in names} | trial

    def for_model(self, processes: int) -> dict[str, Any]:
        """Return the configuration as the model's manifest has it."""
        training = self.settings.model_dump(mode="json", exclude=_NOT_IN_MODEL)
        return {"network": self.model.model_dump(mode="json"), "training": training, "processes": processes}


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """Describe every entry of nested plain data that differs, with both values."""
    found: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{path}{key}.")
        elif canonical(old) != canonical(new):
            found.append(f"{path}{key} was {canonical(old):.60} and is {canonical(new):.60}")
    return found


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism; their product is the number of processes.

    Attributes:
        pipeline: Pipeline stages.
        replicate: Replicas of the model, which see different samples.
        shard: Processes that shard each replica's parameters, and see different samples.
        tensor: Processes that share each matrix, and see the same samples.
    """

    pipeline: int
    replicate: int
    shard: int
    tensor: int

    @property
    def parts(self) -> int:
        """Data-parallel processes: the number of shares that a batch is split into."""
        return self.replicate * self.shard


def degrees_of(parallel: Parallel, processes: int) -> Degrees:
    """Return the degrees of a training in so many processes; raise InputError if there are none."""
    rest = parallel.pipeline * parallel.shard * parallel.tensor
    factors = f"pipeline {parallel.pipeline} x shard {parallel.shard} x tensor {parallel.tensor}"
    if parallel.replicate is None and processes % rest:
        raise InputError(
            f"{factors} = {rest} does not divide {processes} processes",
            where="training.parallel",
            hint=f"Use {multiples_near(processes, rest)} processes (resources.nodes x resources.processes), "
            "or other degrees.",
        )
    replicate = parallel.replicate or processes // rest
    if replicate * rest != processes:
        raise InputError(
            f"replicate {replicate} x {factors} = {replicate * rest}, and there are {processes} processes",
            where="training.parallel",
            hint="Leave replicate out: it then fills the rest.",
        )
    return Degrees(parallel.pipeline, replicate, parallel.shard, parallel.tensor)


def multiples_near(size: int, divisor: int) -> str:
    """Name the multiples of a divisor just below and above a size."""
    below = size - size % divisor
    return " or ".join(str(near) for near in (below, -(-size // divisor) * divisor) if near)


def input_kinds(snapshot: Snapshot) -> dict[str, ColumnKind]:
    """Return the kind of each input column: every column but key, time and label.

    Strings and booleans are categories; timestamps and dates are times. A column of type ``null`` counts as a
    number that is always missing.

    Raises:
        InputError: A column has an unsupported type, or there is no input column.
    """
    columns = [column for column in snapshot.columns if column.name not in snapshot.roles.values()]
    kinds = {column.name: kind for column in columns if (kind := column.kind)}
    if unsupported := [f"{column.name} ({column.type})" for column in columns if column.name not in kinds]:
        raise InputError(
            f"the network cannot read these columns: {', '.join(unsupported)}",
            where="training set",
            hint="Leave them out of features.request or of the feature service, or turn them into numbers.",
        )
    if not kinds:
        raise InputError(
            f"no input columns: there are only {', '.join(column.name for column in snapshot.columns)}",
            where="training set",
            hint="Name columns in features.request, or features in the feature service.",
        )
    return kinds
