"""The arguments of a pipeline, from an experiment file and the command line."""

import datetime
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainwright import credentials
from trainwright.authoring import pipeline_spec
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.experiment import Experiment, Registry, RunSettings, Section
from trainwright.yaml_reader import read_yaml

MAX_BYTES = 1_000_000
"""An experiment file is a page of text; anything larger is a mistake."""

BASE = "base"
"""The key of an experiment file that names the file it extends."""

SQLITE = "sqlite:///"

LIFTED = {
    "source": ("data", "source"),
    "model_name": ("registry", "model"),
    "learning_rate": ("training", "learning_rate"),
    "epochs": ("training", "epochs"),
    "min_auc": ("evaluation", "min_auc"),
    "claim": ("resources", "claim"),
}
"""Keys that are parameters of ``train_and_register`` of their own, by the parameter's name."""

RENAMED = {f"probe_{amount}": f"smoke_test_{amount}" for amount in ("cpu", "memory")}
"""Old names of parameters, and today's (docs/decisions/0016-names-of-steps.md)."""

Config = Path | Mapping[str, Any]
"""An experiment: its file, or its content, whose relative paths are relative to the working directory."""

_REGISTRY_PATHS = ("tracking_uri", "audit", "signing_key", "trust", "hub_token_file")

_Section = TypeVar("_Section", bound=Section)


def of_pipeline(
    compiled: Path,
    config: Config | None,
    params: Sequence[str],
    date: str = "",
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a pipeline's arguments: what it takes of the experiment, and single parameters.

    Args:
        compiled: The compiled pipeline.
        config: The experiment; None for none.
        params: Texts ``NAME=VALUE``; they win over the experiment.
        date: Date that ``{date}`` in a source stands for; empty for today.
        changes: Sections or keys of the experiment, merged over it.

    Raises:
        InputError: The file or a parameter is invalid.
    """
    credentials.require_none(named_values(params), where="--param", plain=True)  # before one is shown
    parameters = pipeline_spec.read(compiled).parameters
    found: dict[str, Any] = {}
    if config:
        values = read(config, changes)
        if "materialize_section" in parameters:
            values |= read_materialize(config, changes)
        found = {name: value for name, value in lifted(values, parameters).items() if name in parameters}
    for text in params:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--param {text!r} is not NAME=VALUE", hint="For example --param epochs=3.")
        name = RENAMED.get(name, name)
        kind = parameters.get(name, {}).get("parameterType", "STRING")
        try:
            found[name] = value if kind == "STRING" else read_json(value)
        except ValueError:
            raise InputError(
                f"{value!r} is no {kind} (written as in JSON)", where=f"--param {name}"
            ) from None
    if date:
        if "date" not in parameters:
            raise InputError(f"{compiled.stem} has no parameter date", where="--date")
        try:
            found["date"] = datetime.date.fromisoformat(date).isoformat()
        except ValueError:
            raise InputError(
                f"expected a date, found {date!r}", where="--date", hint="Write it as 2026-01-31."
            ) from None
    return found


def named_values(texts: Sequence[str]) -> list[dict[str, str] | str]:
    """Return texts ``NAME=VALUE`` as mappings of one name, for the search for secrets; others as they are."""
    parts = [text.partition("=") for text in texts]
    return [
        {name: value} if equals and name.replace("-", "_").isidentifier() else name + equals + value
        for name, equals, value in parts
    ]


def load(config: Config, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read and validate an experiment, merged over the ``base`` that its file may name.

    Args:
        config: The experiment.
        changes: Sections or keys, merged over it.

    Raises:
        InputError: The file or its base is missing, is not YAML, carries a secret, or holds wrong keys or
            values; all are named.
    """
    data, where = _read_file(config) if isinstance(config, Path) else (dict(config), "config")
    if changes:
        data = _merged(data, dict(changes))
    if isinstance(data, dict) and isinstance(run := data.get("run"), dict):
        data["run"] = _with_prices(run, _folder(config))
    credentials.require_none(data, where=where)
    return Experiment.check(data, where=where)


def _with_prices(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replace the name of a price file by its content: steps on a cluster cannot read it."""
    if not isinstance(name := run.get("prices"), str):
        return run
    return run | {"prices": plain(folder / name, "the price file of run.prices", "See docs/cost.md.")}


def _read_file(path: Path) -> tuple[Any, str]:
    """Return the content of an experiment file over its base, and both names for an error."""
    hint = "examples/flights/flights.yaml is a complete one to start from."
    data, where = plain(path, "the experiment file", hint), str(path)
    if isinstance(data, dict) and BASE in data:
        name = data.pop(BASE)
        if not isinstance(name, str) or name in {"", path.name} or name != Path(name).name:
            raise InputError(
                f"{BASE} is {name!r}; expected the name of another experiment file in the same folder",
                where=str(path),
                hint="Paths in both files are relative to this folder: move the file here.",
            )
        below, where = plain(path.with_name(name), "the base of the experiment file"), f"{path}, over {name}"
        if isinstance(below, dict) and BASE in below:
            raise InputError(
                f"{name} is itself over {below[BASE]!r:.80}; only one level of {BASE} is read",
                where=where,
                hint=f"Let {path.name} name {below[BASE]!r:.80}, and copy the keys of {name} into it.",
            )
        data = _merged(below, data)
    return data, where


def _merged(below: Any, above: Any) -> Any:
    """Merge mappings key by key; anything else of ``above``, a list too, replaces ``below``."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: _merged(below.get(key), value) for key, value in above.items()}


def plain(path: Path, kind: str, hint: str = "") -> Any:
    """Read a YAML file of ours as plain, unchecked data.

    Args:
        path: The file.
        kind: The file in words, such as ``the experiment file``.
        hint: The next step if it is missing.
    """
    try:
        data = read_yaml(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {kind}: {error.strerror}", where=str(path), hint=hint) from None
    if data is None:
        raise InputError("the file is empty", where=str(path), hint=hint)
    credentials.require_none(data, where=str(path))  # before any value is shown
    return data


def read(config: Config, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an experiment as arguments: each section as a JSON object with the keys that the file sets.

    Relative paths in the file are relative to the file, and absolute in the arguments.
    """
    experiment, folder = load(config, changes), _folder(config)
    data = experiment.data
    sql = _absolute_paths(data.sql, ("password_file",), folder) if data.sql else None
    data_steps = data, experiment.validation, experiment.evaluation
    engines = [_absolute_paths(one.engine, ("store",), folder) for one in data_steps]
    inner = {
        "quality": _absolute_paths(data.quality, ("previous",), folder),
        "sql": sql,
        "engine": engines[0],
    }
    data = _absolute_paths(data, ("source", "store", "remember"), folder).model_copy(update=inner)
    validation = _absolute_paths(experiment.validation, ("baseline", "statistics_store"), folder)
    log = validation.serving_log
    log = _absolute_paths(log, ("source",), folder) if log else None
    sections = {
        "data": data,
        "validation": validation.model_copy(update={"serving_log": log, "engine": engines[1]}),
        "features": _absolute_paths(experiment.features, ("repository", "source"), folder),
        "network": experiment.network,
        "training": experiment.training,
        "resources": experiment.job_resources,
        "evaluation": experiment.evaluation.model_copy(update={"engine": engines[2]}),
        "registry": _absolute_paths(experiment.registry, _REGISTRY_PATHS, folder),
        "promotion": experiment.promotion,
        "run": _absolute_run(experiment.run, folder),
    }
    if experiment.serving:
        sections["serving"] = _absolute_paths(experiment.serving, ("log",), folder)
    if experiment.tuning:
        sections["tuning"] = _absolute_paths(experiment.tuning, ("storage",), folder)
    return {
        **{name: section.to_parameter(as_written=True) for name, section in sections.items()},
        "schema": _schema(experiment, config),
        "claim": experiment.resources.claim,
        "commit": commit(folder),
        **experiment.steps.parameters(),
    }


def _absolute_run(run: RunSettings, folder: Path) -> RunSettings:
    """Make the paths of targets and secrets absolute."""
    changed: dict[str, Any] = {}
    if run.alerts:
        changed["alerts"] = tuple(_absolute_paths(alert, ("webhook_file",), folder) for alert in run.alerts)
    if run.smtp:
        changed["smtp"] = _absolute_paths(run.smtp, ("password_file",), folder)
    run = _absolute_paths(run, ("openlineage", "openlineage_token_file"), folder)
    return run.model_copy(update=changed)


def _schema(experiment: Experiment, config: Config) -> str:
    """Return the place of the schema; empty without one. A first run may write it there."""
    if not experiment.schema_file:
        return ""
    schema = absolute(experiment.schema_file, _folder(config))
    is_written = experiment.validation.on_missing_schema == "bootstrap" and not os.path.lexists(schema)
    if "://" not in schema and not is_written:
        try:
            Path(schema).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"schema_file cannot be read: {error}",
                where=str(config) if isinstance(config, Path) else "config",
                hint="Make one with `trainwright schema infer` and review it. Without schema_file a run "
                "infers one and does not register its model.",
            ) from None
    return schema


def lifted(arguments: dict[str, Any], parameters: Collection[str]) -> dict[str, Any]:
    """Move keys that are also parameters of the pipeline out of their sections: each value has one place."""
    result = dict(arguments)
    for name, (section, key) in LIFTED.items():
        fixed = name == "epochs" and result.get(section, {}).get("steps")  # the steps end the training
        if name in parameters and result.get(section, {}).get(key) is not None and not fixed:
            result[section] = dict(result[section])
            result[name] = result[section].pop(key)
    return result


def _folder(config: Config) -> Path:
    """Return the folder that relative paths of an experiment start from."""
    return config.resolve().parent if isinstance(config, Path) else Path.cwd()


def read_materialize(config: Config, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of ``materialize_features``; none if the experiment has no such section."""
    section = load(config, changes).materialize
    if section is None:
        return {}
    section = _absolute_paths(section, ("repository", "source", "state"), _folder(config))
    return {"feature_source": section.source, "materialize_section": section.to_parameter(as_written=True)}


def read_promotion(path: Path) -> str:
    """Return the section ``promotion`` of an experiment file, as JSON."""
    return load(path).promotion.to_json()


def read_registry(name: str, path: Path | None, audit: str, uri: str) -> str:
    """Return the section ``registry`` for a model, as JSON.

    Args:
        name: The registered model.
        path: Experiment file; relative paths in it are relative to it.
        audit: Replaces the file's.
        uri: MLflow's address, replaces the file's.

    Raises:
        InputError: As :func:`load`; or there is neither a file nor an address.
    """
    here = Path.cwd()
    options = {"tracking_uri": absolute(uri, here)} if uri else {}
    options |= {"audit": absolute(audit, here)} if audit else {}
    if path is not None:
        registry = _absolute_paths(load(path).registry, _REGISTRY_PATHS, path.resolve().parent)
        options = registry.model_dump(mode="json") | options
    elif not uri:
        raise InputError(
            "nothing says where the model is registered",
            where="command line",
            hint="Name the experiment file (--config), or MLflow's address (--uri) and the audit (--audit).",
        )
    credentials.require_none(options, where="command line")
    return Registry.check(options | {"model": name}, "registry").to_json()


def read_text_form(path: Path) -> str:
    """Return the keys of ``data`` that say how text files are read, ``csv`` and ``missing``, as JSON.

    Args:
        path: Experiment file.

    Raises:
        InputError: As :func:`load`.
    """
    return load(path).data.model_dump_json(include={"csv", "missing"})


def _absolute_paths(section: _Section, names: Sequence[str], folder: Path) -> _Section:
    """Make the paths in a section absolute; those that are absent stay so."""
    paths = {name: absolute(path, folder) for name in names if (path := getattr(section, name))}
    return section.model_copy(update=paths)


def absolute(uri: str, folder: Path) -> str:
    """Make a path absolute, relative to the experiment file; also the file of an embedded SQLite database."""
    if uri.startswith(SQLITE):
        return SQLITE + os.path.abspath(folder / uri.removeprefix(SQLITE))
    return uri if "://" in uri else os.path.abspath(folder / uri)


def commit(folder: Path) -> str:
    """Return the git commit of a folder, with ``-dirty`` for uncommitted changes; ``none`` outside git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.strip()
