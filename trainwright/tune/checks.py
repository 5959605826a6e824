"""Check a search before its first trial, and report all errors together."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainwright import credentials
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, Network, Resources, Training, Tuning, read_network
from trainwright.launch.launcher import resolve_launcher
from trainwright.train.config import degrees_of
from trainwright.train.defaults import resolve_training
from trainwright.train.submit import TrainRequest, check_trial
from trainwright.tune.space import SearchSpace

_WHERE = "parameters of tune"
_DEFINED_FOR = {
    "held_out_auc": {"binary"},
    "held_out_accuracy": {"binary", "multiclass"},
    "held_out_rmse": {"regression"},
}
"""Kinds of target that define a metric; every kind has the losses."""

_SAME_FOR_ALL = ("tracking", "checkpoints", "feeding")
"""Settings of a training that may change when a study continues: they do not decide a trial's value."""

_PartT = TypeVar("_PartT")


@dataclass(frozen=True)
class SearchPlan:
    """A checked search.

    Attributes:
        tuning: The section.
        space: The search space over the base configuration.
        resources: Compute of a trial.
        request: The training of the default configuration.
        launcher: Name of the launcher.
        job_hour: Price of an hour of a trial's job; None if unknown.
    """

    tuning: Tuning
    space: SearchSpace
    resources: Resources
    request: TrainRequest
    launcher: str
    job_hour: float | None

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that all trials of a study share; others make another study."""
        tuning = self.tuning.model_dump(mode="json", include={"space", "metric", "sampler", "pruner", "seed"})
        training = {name: value for name, value in self.space.training.items() if name not in _SAME_FOR_ALL}
        return {
            "data_version": self.request.data_version,
            "network": dict(self.space.network),
            "training": training,
            **tuning,
        }

    def sections(self, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the sections ``network`` and ``training`` of a configuration, as `train` takes them."""
        network, training = self.space.sections(params)
        return read_network(network).to_parameter(), Training.check(training, "training").to_parameter()


def check_search(request: TrainRequest, tuning: Any) -> SearchPlan:
    """Parse and check all parameters of a search.

    Args:
        request: The training of the default configuration.
        tuning: The section.

    Raises:
        InputError: A section, the search space or the metric is wrong; all errors are reported together.
        DataRefused: A split of the training set is empty.
    """
    sections = {"tuning": tuning, "network": request.network, "training": request.training}
    credentials.require_none(sections, where=_WHERE, plain=True)
    problems: list[str] = []

    def attempt(part: Callable[[], _PartT]) -> _PartT | None:
        try:
            return part()
        except InputError as error:
            problems.append(f"{error.where}: {error.what}" if error.where else error.what)
            return None

    section = attempt(lambda: Tuning.parse(tuning, "tuning"))
    network = attempt(lambda: read_network(request.network))
    training = attempt(lambda: Training.parse(request.training, "training"))
    resources = attempt(lambda: Resources.parse(request.resources, "resources"))
    if not (section and network and training and resources):
        raise _rejected(problems)
    snapshot = Snapshot.open(request.training_set, request.data_version)
    problems += _mismatches(section, network, training, resources, snapshot)
    plain = network.to_parameter(), training.to_parameter()
    space = attempt(lambda: SearchSpace.of(section, *plain))
    if space:
        problems += _rejected_trainings(request, space)
    if problems or not space:
        raise _rejected(problems)
    request = dataclasses.replace(request, network=plain[0], training=plain[1])
    launcher = resolve_launcher(resources.launcher)
    return SearchPlan(section, space, resources, request, launcher, job_hour_of(section, training, resources))


def job_hour_of(tuning: Tuning, training: Training, resources: Resources) -> float | None:
    """Return the price of an hour of a trial's job, by the search or by the GPU hour; None if unknown."""
    gpu_hour = training.tracking.gpu_hour
    if tuning.job_hour is not None or gpu_hour is None:
        return tuning.job_hour
    return gpu_hour * resources.gpus * resources.nodes


def _rejected(problems: list[str]) -> InputError:
    unique = list(dict.fromkeys(problems))
    hint = "Correct the keys (docs/tuning.md); no trial was started."
    return InputError("\n".join(unique), where=_WHERE, hint=hint)


def _mismatches(
    tuning: Tuning, network: Network, training: Training, resources: Resources, snapshot: Snapshot
) -> Iterator[str]:
    """Yield what the metric, the pruner and the budget need and the other sections do not have."""
    metric, pruned = tuning.metric, tuning.pruner.kind != "none"
    text = isinstance(network, LanguageModel)
    kind = "language_model" if text else snapshot.target.kind
    if metric in _DEFINED_FOR and kind not in _DEFINED_FOR[metric]:
        defined = ", ".join(sorted(_DEFINED_FOR[metric]))
        yield f"tuning.metric: {metric} is defined for {defined}, and the target is {kind}; use held_out_loss"
    kinds = [
        network.kind,
        *(tuning.space["network.kind"].choice or () if "network.kind" in tuning.space else ()),
    ]
    if pruned and "auto" in kinds:
        yield "tuning.pruner.kind: network.kind auto has no rungs; set none, or mlp or trees as the kind"
    if tuning.study and not tuning.storage and resolve_launcher(resources.launcher) == "local":
        yield f"tuning.storage: study {tuning.study!r} needs a folder for named studies on this machine"
    if tuning.cost is not None and job_hour_of(tuning, training, resources) is None:
        yield f"tuning.cost: {tuning.cost:g} needs prices, run.prices"
    if metric != "train_loss" or pruned:
        processes = resources.nodes * resources.processes
        resolved = resolve_training(
            training, network, snapshot, degrees_of(training.parallel, processes).parts
        )
        if resolved.guards.early_stopping is None:
            needed = f"metric is {metric}" if metric != "train_loss" else "rungs compare their loss"
            where = "training.guards.early_stopping"
            yield f"{where}: no rows are held out, and {needed}; set a share or a split"


def _rejected_trainings(request: TrainRequest, space: SearchSpace) -> Iterator[str]:
    """Yield what the default, both ends of each range, and each choice cannot be trained with."""
    ends = (params for key in space.tuning.space for params in space.ends(key))
    for params in ({}, *ends):
        network, training = space.sections(params)
        try:
            check_trial(dataclasses.replace(request, network=network, training=training))
        except InputError as error:
            with_value = ", ".join(f"{key} {value}" for key, value in params.items()) or "the default"
            yield f"{error.where}: {error.what} (with {with_value})"


def study_folder(plan: SearchPlan, output: Path, digest: str) -> Path:
    """Return the folder of the study: under its name, beside the step's output, or on the shared volume."""
    tuning, on_cluster = plan.tuning, plan.launcher != "local"
    shared = Path(plan.resources.mount) / "trainwright" / "studies"
    if tuning.study:
        return Path(tuning.storage or shared) / tuning.study
    return shared / digest if on_cluster else output.absolute().with_name(f".{output.name}.job-{digest}")
