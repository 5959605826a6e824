"""Read and change registered models: list, show, history, register, promote."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trainwright.errors import InputError
from trainwright.experiment import PromotionRequest, Registry
from trainwright.local.run_folder import Request, Task, Tasks, require_run
from trainwright.local.run_index import Lineage
from trainwright.registry.listing import show_version
from trainwright.registry.promote import PromotionResult, promote
from trainwright.registry.register import Registration, register
from trainwright.service import runs
from trainwright.service.logged import find_logged, find_related
from trainwright.service.runs import VersionLineage
from trainwright.service.settings import Settings
from trainwright.tracking.server import open_client, persist, search_all
from trainwright.verdicts import Verdict

_ANY = "any"
"""A model's name where the section needs one and none is used."""

_EVIDENCE = (("train", "model"), ("join", "verdict"), ("evaluate", "verdict"), ("smoke_test", "trial"))
"""Steps and outputs with the model, both verdicts and the trial, which a registration checks."""


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """A registered model, with the version of each alias."""

    name: str
    aliases: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PromotionAnswer:
    """The result of a promotion request, with its verdict."""

    result: PromotionResult
    verdict: Verdict


def list_models(settings: Settings) -> list[ModelSummary]:
    """Return the registered models by name."""
    registry = settings.registry_of(_ANY)
    client = open_client(registry.tracking_uri)
    models = persist(lambda: [*search_all(client.search_registered_models)], registry.tracking_uri, 0)
    return [
        ModelSummary(name=model.name, aliases={name: str(version) for name, version in model.aliases.items()})
        for model in sorted(models, key=lambda model: model.name)
    ]


def trace(settings: Settings, start: str) -> VersionLineage:
    """Return the lineage of a run's result, a digest, or a registered version such as ``flight-delay/3``.

    MLflow knows the digests of a version that no run of this folder registered: of its model, or else of the
    data that it was trained on; and what the steps of the runs that it logged made from what.

    Raises:
        InputError: No run here read or made it.
    """
    try:
        return runs.trace(settings.runs_folder, start)
    except InputError:
        if not settings.registry:
            raise
        name, _, which = start.rpartition("/")
        tags = show_version(settings.registry_of(name), which).tags if name else {}
        run = find_logged(settings, start) if settings.kfp_host and "-" in start else None
        made = [run.version("model") or run.version("data")] if run else [start]
        digests = [tags[key] for key in ("model_digest", "training_data_digest") if key in tags] or made
        for digest in digests:
            with contextlib.suppress(InputError):
                return runs.trace(settings.runs_folder, digest)
        for digest in digests:
            if related := find_related(settings, digest):
                return runs.trace_in(Lineage(related), None, digest)
        raise


def register_run(settings: Settings, model: str, run: str, identity: str) -> Registration:
    """Register the model of a run, once, by the checks of the step ``register``.

    The author is the run's, or the caller if the run names none.

    Raises:
        InputError: The run did not reach its evidence, or a file of it was changed.
        DataRefused: The data was rejected.
        ModelRefused: The model did not pass.
    """
    folder = require_run(settings.runs_folder, run)
    tasks = {task.verb: task for task in Tasks.read(folder).tasks if task.finished}
    trained, data_verdict, model_verdict, trial = (_output(tasks, run, *place) for place in _EVIDENCE)
    arguments = Request.read(folder).arguments
    author = str(arguments.get("registry", {}).get("author", "")) or identity
    registry = settings.registry_of(model).model_copy(update={"author": author})
    version, commit = str(tasks["train"].parameters["model_version"]), str(arguments.get("commit", ""))
    with TemporaryDirectory() as scratch:
        out = Path(scratch)
        return register(
            trained, version, data_verdict, model_verdict, trial, registry, commit, out, out / "summary.md"
        )


def _output(tasks: Mapping[str, Task], run: str, step: str, name: str) -> Path:
    """Return the folder of an output of a run's step."""
    if step not in tasks or name not in tasks[step].outputs:
        raise InputError(
            f"run {run} has no {name} of {step}, so there is nothing to register",
            where="run",
            hint="Name a run of train_and_register whose evaluate and smoke-test have finished.",
        )
    return Path(tasks[step].outputs[name].uri)


def promote_version(settings: Settings, model: str, request: PromotionRequest) -> PromotionAnswer:
    """Move a version to its next stage by the policy, if it meets the requirements.

    Raises:
        TrainwrightError: As :func:`trainwright.registry.promote.promote`; a decision is no error.
    """
    registry: Registry = settings.registry_of(model)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy = settings.promotion_policy()
        result = promote(registry, policy, request, folder, folder / "summary.md")
        return PromotionAnswer(result=result, verdict=Verdict.read(folder))
