"""Checks the whole configuration of a run before any work, and gives each step the keys that it reads."""

import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from trainwright.artifacts import Listing, TargetKind
from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError, PermissionRefused
from trainwright.experiment import (
    Experiment,
    Features,
    LanguageModel,
    Prices,
    SeverityRule,
    Suppression,
    Validation,
)
from trainwright.experiment.data import EVERY, FEATURES, SERVED, is_reserved
from trainwright.storage import parse_commit, take_listing
from trainwright.tracking import Stopwatch

FILE = "experiment.json"
"""The effective configuration: all sections with their overrides and every default."""

TUNING = "tuning"
"""The section that only a pipeline with `tune` has."""

SECTIONS = ("data", "validation", "features", "network", "training", "resources", "evaluation", "registry")
SERVER = {"model", "tracking_uri", "retry_s"}
"""Keys of ``registry`` that say which model and where: all that a step reads that only looks at it."""

WHERE = "the parameters of this run"
CLAIM = "trainwright-shared"
ELSEWHERE = "parameter source"
"""What sections name as a source for the steps: the location is a parameter of its own."""


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Parameters that replace one key of a section each; empty or 0 leaves the section's value.

    Attributes:
        source: ``data.source``.
        schema: ``schema_file``.
        model_name: ``registry.model``.
        learning_rate: ``training.learning_rate``; of trees, ``network.learning_rate``.
        epochs: ``training.epochs``.
        min_auc: ``evaluation.min_auc``.
        claim: ``resources.claim``, which the pipeline mounts.
    """

    source: str = ""
    schema: str = ""
    model_name: str = ""
    learning_rate: float = 0
    epochs: int = 0
    min_auc: float = 0
    claim: str = ""


class Configuration(NamedTuple):
    """The part of a validated configuration that each step reads; the outputs of the component.

    A key that only one step reads is in the part of that step alone, so that a change of it leaves the cached
    results of the others valid.
    """

    source: str
    schema: str
    bootstrap_schema: bool
    feature_source: str
    baseline: str
    serving: str
    split: str
    engine: dict[str, Any]
    columns: dict[str, list[str]]
    data: dict[str, Any]
    validation: dict[str, Any]
    features: dict[str, Any]
    network: dict[str, Any]
    training: dict[str, Any]
    resources: dict[str, Any]
    evaluation: dict[str, Any]
    registry: dict[str, Any]
    server: dict[str, Any]
    tuning: dict[str, Any]
    budget: dict[str, Any]

    @classmethod
    def of(cls, experiment: Experiment, pipeline: str = "") -> Self:
        """Divide an experiment among the steps.

        Raises:
            PermissionRefused: Its jobs can cost more than the run may.
        """
        log = experiment.validation.serving_log
        parts = {name: getattr(experiment, name) for name in SECTIONS} | {
            # The location is an output of its own: the same rows elsewhere have the same data version.
            "data": experiment.data.model_copy(update={"source": ELSEWHERE}),
            "validation": experiment.validation.model_copy(
                update={
                    "kinds": _kinds(experiment),
                    "baseline": "",
                    "serving_log": log.model_copy(update={"source": ELSEWHERE}) if log else None,
                }
            ),
            "features": experiment.features.model_copy(update=_for_join(experiment)),
        }
        return cls(
            source=experiment.data.source,
            schema=experiment.schema_file or "",
            bootstrap_schema=experiment.validation.on_missing_schema == "bootstrap",
            feature_source=experiment.features.source or "",
            baseline=experiment.validation.baseline,
            serving=log.source if log else "",
            split=experiment.evaluation.split,
            engine=experiment.evaluation.engine.to_parameter(),
            columns=columns_of_rows(experiment),
            server=experiment.registry.model_dump(mode="json", include=SERVER),
            tuning=_for_tune(experiment),
            budget=check_budget(experiment, pipeline),
            **{name: section.to_parameter() for name, section in parts.items()},
        )


def _kinds(experiment: Experiment) -> tuple[TargetKind, ...]:
    """Return the kinds of label that have all requested metrics; () for all, or where it is configured.

    `validate` rejects another kind as soon as `ingest` has seen the label. The metrics are left out: a change
    of one would run `validate`, and so the training, again.
    """
    kinds: tuple[TargetKind, ...] = ("binary", "multiclass", "regression")
    fitting = tuple(kind for kind in kinds if not experiment.undefined_for(kind))
    return () if experiment.target_kind or fitting == kinds else fitting


def _for_join(experiment: Experiment) -> dict[str, tuple[str, ...]]:
    """Return what `join` has to know of other sections, before the training.

    That is the columns of slices, which may be missing, and of several columns of text the one to learn.
    """
    columns = [*experiment.features.needed, *experiment.evaluation.columns]
    found = {"needed": tuple(dict.fromkeys(columns))}
    if isinstance(experiment.network, LanguageModel):
        found |= {"request": (experiment.network.column,), "exclude": ()}
    return found


def _for_tune(experiment: Experiment) -> dict[str, Any]:
    """Return the section of a search, with the price of its trials."""
    tuning, run = experiment.tuning, experiment.run
    if tuning and run.prices and tuning.job_hour is None:
        tuning = tuning.model_copy(update={"job_hour": run.prices.job_hour(experiment.resources)})
    return tuning.to_parameter() if tuning else {}


def configure(
    sections: Mapping[str, Mapping[str, Any]], overrides: Overrides, folder: Path, pipeline: str = ""
) -> Configuration:
    """Put the sections and their overrides together, and check all of it at once.

    Args:
        sections: Sections of the experiment file by name.
        overrides: Parameters that replace single keys.
        folder: Folder for ``experiment.json`` and the step's record.
        pipeline: Name of the pipeline, which a budget may be for.

    Raises:
        InputError: Any key is missing, unknown or wrong, or an override does not apply; all are named.
        PermissionRefused: The jobs can cost more than the run may.
    """
    watch = Stopwatch()
    merged, problems = _merged(sections, overrides)
    try:
        experiment = Experiment.check(merged, WHERE)
    except InputError as error:
        problems = [*error.what.splitlines()[1:], *problems]
    if problems:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        raise InputError(
            f"found {count}\n" + "\n".join(problems),
            where=WHERE,
            hint="Each name is SECTION.KEY: set the key in that section (docs/experiment.md).",
        )
    configuration = Configuration.of(experiment, pipeline)
    folder.mkdir(parents=True, exist_ok=True)
    named = {*SECTIONS, "schema_file", *(sections.keys() & {TUNING})}
    effective = experiment.model_dump(mode="json", include=named)
    (folder / FILE).write_text(json.dumps(effective, indent=1, sort_keys=True) + "\n")
    headline = f"model {experiment.registry.model}, {experiment.network.kind}"
    watch.record(folder, "configure", headline, outputs={"configuration": digest_text(canonical(effective))})
    return configuration


def _merged(
    sections: Mapping[str, Mapping[str, Any]], overrides: Overrides
) -> tuple[dict[str, Any], list[str]]:
    """Return the experiment as plain data, and the overrides that do not apply."""
    merged: dict[str, Any] = {name: dict(section) for name, section in sections.items()}
    problems: list[str] = []
    trees = merged["network"].get("kind") == "trees"
    for section, key, value in (
        ("data", "source", overrides.source),
        ("registry", "model", overrides.model_name),
        ("network" if trees else "training", "learning_rate", overrides.learning_rate),
        ("training", "epochs", overrides.epochs),
        ("evaluation", "min_auc", overrides.min_auc),
    ):
        if value:
            merged[section][key] = value
    if overrides.epochs and trees:
        problems.append(f"  epochs: {overrides.epochs} does not apply to trees; set network.rounds")
    if overrides.epochs and merged["training"].get("steps"):
        problems.append(
            f"  epochs: {overrides.epochs} does not apply: training.steps {merged['training']['steps']:g} "
            "ends the training; remove one"
        )
    if overrides.schema:
        merged["schema_file"] = overrides.schema
    named = merged["resources"].setdefault("claim", overrides.claim or CLAIM)
    if overrides.claim and named != overrides.claim:
        problems.append(
            f"  resources.claim: {named!r} is not the parameter claim, {overrides.claim!r}, that the "
            "pipeline mounts; set the parameter"
        )
    return merged, problems


def columns_of_rows(experiment: Experiment) -> dict[str, list[str]]:
    """Return the columns that the source has to have, by the keys that name them.

    A feature service may bring the columns of an evaluation; `join` checks them then. Rules on findings may
    name a column that is missing. Under `SERVED` are columns of the serving log. `EVERY` stands for all
    columns that no other key of `features` leaves out.
    """
    data, validation, features = experiment.data, experiment.validation, experiment.features
    roles = {"key": data.key, "time": data.time, "label": data.label, "split_by": data.split_by}
    named = {f"data.{role}": [name] for role, name in roles.items() if name}
    named |= {
        "data.disjoint": list(data.disjoint),
        "data.quality.max_missing": list(data.quality.max_missing),
        "validation.drift": list(validation.drift),
        "validation.ignore": list(validation.ignore),
        "features.request": list(features.request),
        "features.known_after": list(features.known_after),
        "features.exclude": list(features.exclude),
    }
    if isinstance(experiment.network, LanguageModel):
        named["network.text" if experiment.network.text else "network.tokens"] = [experiment.network.column]
    elif not (features.service or features.request):
        named[FEATURES] = [EVERY]
    if (log := validation.serving_log) and log.format == "auto":
        named[SERVED] = list(log.columns.values())
    if not features.service:
        evaluation = experiment.evaluation
        named |= {
            "features.needed": list(features.needed),
            "features.limits.max_missing": list(features.limits.max_missing),
            "evaluation.slices": list(evaluation.slices),
            "evaluation.crosses": list(itertools.chain.from_iterable(evaluation.crosses)),
            "evaluation.fairness.by": list(evaluation.fairness.by) if evaluation.fairness else [],
            "evaluation.cluster": [evaluation.cluster] if evaluation.cluster else [],
        }
    return {key: names for key, names in named.items() if names}


SHOWN = ",.4g"


def check_budget(experiment: Experiment, pipeline: str) -> dict[str, Any]:
    """Check the hard limit of the run; return what `get_production_model` checks: the shared ones.

    Args:
        experiment: The configuration.
        pipeline: Name of the pipeline.

    Returns:
        ``most``: the most that its jobs can cost. ``currency``. ``budgets``: the shared ones with a hard
        limit that cover the run. Empty without any.

    Raises:
        PermissionRefused: The jobs can cost more than the run may.
        InputError: The GPUs have no price, or the run would not be logged where shared budgets are summed.
    """
    run, hard = experiment.run, experiment.run.budget.hard
    prices = run.priced(experiment.training.tracking.gpu_hour)
    if prices is None:
        return {}
    most = most_cost(experiment, prices)
    if hard is not None and most > hard:
        raise PermissionRefused(
            f"the jobs can cost {most:{SHOWN}} {prices.currency}, and the run may cost {hard:{SHOWN}}",
            where="run.budget.hard",
            hint="Lower resources.timeout_s, the size of the job or tuning.cost, or have the budget raised.",
        )
    values = {"pipeline": pipeline, "model": experiment.registry.model} | {
        name: getattr(run, name) for name in ("owner", "cost_centre")
    }
    shared = [budget for budget in prices.budgets if budget.hard is not None and budget.covers(values)]
    if shared and not run.mlflow:
        raise InputError(
            f"run.mlflow is false, and the budget of {shared[0]} is summed over the runs in MLflow",
            where="run.mlflow",
            hint="Remove it.",
        )
    if not shared:
        return {}
    budgets = [budget.to_parameter() for budget in shared]
    return {"most": most, "currency": prices.currency, "budgets": budgets}


def most_cost(experiment: Experiment, prices: Prices) -> float:
    """Return the most that the training job and a search can cost, each job within ``timeout_s``, once."""
    resources, tuning = experiment.resources, experiment.tuning
    hour = prices.job_hour(resources)
    job = hour * resources.timeout_s / 3600
    if tuning is None:
        return job
    limits = [tuning.trials * job]
    limits += [tuning.cost] if tuning.cost else []
    limits += [tuning.hours * tuning.parallel * hour] if tuning.hours else []
    confirm = tuning.confirm
    confirmed = (confirm.top + 1) * confirm.seeds if confirm.top else 0
    return min(limits) + (confirmed + 1) * job


_log = logging.getLogger("trainwright.configure")


def check_service(configuration: Configuration) -> Configuration:
    """Return the configuration with the joined features that its rules about data name.

    `join` opens the service again, for it may have changed. On a cluster this step has no keys of an object
    store: a repository or offline files there that need them are left to `join`.

    Raises:
        InputError: The repository, the registry, the service, a view or an offline file is missing or wrong.
        DependencyError: The registry is there but cannot be read.
    """
    features = Features.parse(configuration.features, "parameter features")
    rules = Validation.parse(configuration.validation, "parameter validation")
    entries: list[SeverityRule | Suppression] = [*rules.severity, *rules.suppressions]
    named = dict.fromkeys(entry.column for entry in entries if entry.column)
    try:
        known = _features(features)
    except PermissionRefused as refused:
        _log.warning("join checks the feature service: this step may not read it (%s)", refused.what)
        known = list(named)
    joined = [name for name in named if name in known]
    return configuration._replace(
        validation=configuration.validation | ({"joined": joined} if joined else {})
    )


def _features(section: Features) -> list[str]:
    """Return the features of the service, once `join` is known to be able to open it; none without one."""
    if not (section.service and section.source and section.repository):
        return []
    from trainwright.featurestore import checked_out, is_remote, open_service

    listing = Listing(source="", files=())
    if is_remote(section.repository) and not parse_commit(section.repository):
        listing = take_listing(section.source)
    with checked_out(section.repository, listing) as checkout:
        folder = str(checkout.folder)
        found = open_service(folder, section.service, fetched=checkout.fetched, digests=False).features
    if taken := [name for name in found if is_reserved(name)]:
        raise InputError(
            f"features have names of columns of the predictions: {', '.join(taken)}",
            where=f"feature service {section.service!r}",
            hint="Rename them in their view.",
        )
    return found
