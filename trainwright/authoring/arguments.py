"""From an experiment file to the arguments of ``train_and_register``."""

import os
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trainwright.authoring import credentials
from trainwright.errors import InputError
from trainwright.experiment import Data, Experiment, Registry, Section

MAX_BYTES = 1_000_000
"""An experiment file is a page of text; anything larger is a mistake."""


BASE = "base"
"""The key of an experiment file that names the file it is laid over."""

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

Given = TypeVar("Given", bound=Section)


class _Loader(yaml.SafeLoader):
    """YAML without surprises: a key that stands twice, an alias or a foreign tag is an error."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:  # 2013-13-41 looks like a date, and is none
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Mark] = {}
        for key_node, _ in node.value:
            key, problem = self.construct_object(key_node, deep=True), ""
            if isinstance(key, list | dict | set):
                problem = "a list or a mapping is no key"
            elif key in seen:
                problem = f"key {key!r} stands twice, first on line {seen[key].line + 1}"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen[key] = key_node.start_mark
        return super().construct_mapping(node, deep)


def load(path: Path) -> Experiment:
    """Read and validate an experiment file, laid over its ``base`` if it names one.

    Raises:
        InputError: The file or its base is missing, is not YAML, carries a secret, or holds wrong keys or
            values; all are named.
    """
    hint = "examples/flights/flights.yaml is a complete one to start from."
    data, where = plain(path, "the experiment file", hint), str(path)
    if isinstance(data, dict) and BASE in data:
        base = _base_of(path, data.pop(BASE))
        data = _overlay(plain(base, "the base of the experiment file"), data)
        where = f"{path}, over {base.name}"
    return Experiment.check(data, where=where)


def _base_of(path: Path, name: object) -> Path:
    """Return the file that an experiment file is laid over.

    Raises:
        InputError: It is not the name of another file in the same folder.
    """
    if not isinstance(name, str) or name in {"", path.name} or name != Path(name).name:
        raise InputError(
            f"{BASE} is {name!r}; expected the name of another experiment file in the same folder",
            where=str(path),
            hint="Paths in both files are relative to this folder: move the file here.",
        )
    return path.with_name(name)


def _overlay(below: Any, above: Any) -> Any:
    """Return ``above`` laid over ``below``: mappings key by key, anything else (a list too) as a whole."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: _overlay(below.get(key), value) for key, value in above.items()}


def plain(path: Path, kind: str, hint: str = "") -> Any:
    """Read a YAML file of ours as plain data; what it holds is not checked yet.

    Args:
        path: The file.
        kind: What it is, in words, such as ``the experiment file``.
        hint: What to do if it is not there.

    Raises:
        InputError: The file is missing, is not YAML, or carries a secret.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {kind}: {error.strerror}", where=str(path), hint=hint) from None
    if len(text) > MAX_BYTES:
        name = kind.removeprefix("the ")
        raise InputError(f"{len(text)} bytes is no {name} (at most {MAX_BYTES})", where=str(path))
    try:
        data = _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:  # its own text shows the line, and with it what may be a secret
        mark = error.problem_mark
        place = f", on line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        tab = "Indent with blanks: YAML takes no tabs." if "'\\t'" in (error.problem or "") else ""
        raise InputError(f"not valid YAML: {error.problem}{place}", where=str(path), hint=tab) from None
    except yaml.reader.ReaderError as error:  # a byte that is no UTF-8, or an invalid character
        place = f"{error.reason} at byte {error.position:,}"
        raise InputError(f"not valid YAML: {place}", where=str(path), hint="Save it as UTF-8.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not valid YAML: {error}", where=str(path)) from None
    if data is None:
        raise InputError("the file is empty", where=str(path), hint=hint)
    credentials.require_none(data, where=str(path))  # before any value is shown
    return data


def read(path: Path) -> dict[str, Any]:
    """Return the pipeline's arguments: each section as a JSON object with the keys that the file sets.

    Relative paths in the file are relative to the file, and absolute in the arguments.

    Raises:
        InputError: As :func:`load`; or a file that the experiment names is missing.
    """
    experiment = load(path)
    folder = path.resolve().parent
    features = _placed(experiment.features, ("repository", "source"), folder)
    registry = _placed(experiment.registry, ("tracking_uri", "audit"), folder)
    validation = _placed(experiment.validation, ("baseline", "statistics_store"), folder)
    data = _placed_data(experiment.data, folder)
    sections = {
        "data": data,
        "validation": validation,
        "features": features,
        "network": experiment.network,
        "training": experiment.training,
        "resources": experiment.resources,
        "evaluation": experiment.evaluation,
        "registry": registry,
        "promotion": experiment.promotion,
    }
    return {
        **{name: section.to_parameter(as_written=True) for name, section in sections.items()},
        "schema": _schema(experiment.schema_file, folder, path),
        "claim": experiment.resources.claim,
        "commit": commit(folder),
        **experiment.steps.parameters(),
    }


def lifted(arguments: dict[str, Any], parameters: Collection[str]) -> dict[str, Any]:
    """Move keys that a pipeline has as parameters of their own out of the sections: each value has one place.

    Args:
        arguments: As :func:`read` returns them.
        parameters: Names of the pipeline's parameters.
    """
    result = dict(arguments)
    for name, (section, key) in LIFTED.items():
        fixed = name == "epochs" and result.get(section, {}).get("steps")  # the steps end the training
        if name in parameters and result.get(section, {}).get(key) is not None and not fixed:
            result[section] = dict(result[section])
            result[name] = result[section].pop(key)
    return result


def read_materialize(path: Path) -> dict[str, Any]:
    """Return the arguments of ``materialize_features``; none if the file has no such section.

    Relative paths in the file are relative to the file.

    Raises:
        InputError: As :func:`load`.
    """
    section = load(path).materialize
    if section is None:
        return {}
    placed = _placed(section, ("repository", "source", "state"), path.resolve().parent)
    return {"feature_source": placed.source, "materialize_section": placed.to_parameter(as_written=True)}


def read_promotion(path: Path) -> str:
    """Return the section ``promotion`` of an experiment file, as the text of a JSON object.

    Raises:
        InputError: As :func:`load`.
    """
    return load(path).promotion.to_json()


def read_registry(name: str, path: Path | None, audit: str, uri: str) -> str:
    """Return the section ``registry`` for a model, as the text of a JSON object.

    Args:
        name: The registered model.
        path: Experiment file; relative paths in it are relative to it.
        audit: In place of the file's.
        uri: MLflow's address, in place of the file's.

    Raises:
        InputError: As :func:`load`; or there is neither a file nor an address.
    """
    here = Path.cwd()
    given = {"tracking_uri": _absolute(uri, here)} if uri else {}
    given |= {"audit": _absolute(audit, here)} if audit else {}
    if path is not None:
        placed = _placed(load(path).registry, ("tracking_uri", "audit"), path.resolve().parent)
        given = placed.model_dump(mode="json") | given
    elif not uri:
        raise InputError(
            "nothing says where the model is registered",
            where="command line",
            hint="Name the experiment file (--config), or MLflow's address (--uri) and the audit (--audit).",
        )
    credentials.require_none(given, where="command line")
    return Registry.check(given | {"model": name}, "registry").to_json()


def _placed_data(data: Data, folder: Path) -> Data:
    """Make every path in the section ``data`` absolute, also in the sections inside."""
    quality = _placed(data.quality, ("previous",), folder)
    sql = _placed(data.sql, ("password_file",), folder) if data.sql else None
    return _placed(data, ("source", "store", "remember"), folder, quality=quality, sql=sql)


def _placed(section: Given, names: Sequence[str], folder: Path, **more: Any) -> Given:
    """Make the paths in a section absolute; those that are absent stay so."""
    named = {name: getattr(section, name) for name in names}
    places = {name: _absolute(path, folder) for name, path in named.items() if path}
    return section.model_copy(update=places | more)


def _absolute(uri: str, folder: Path) -> str:
    """Make a path absolute, relative to the experiment file; also the file of an embedded SQLite database."""
    if uri.startswith(SQLITE):
        return SQLITE + os.path.abspath(folder / uri.removeprefix(SQLITE))
    return uri if "://" in uri else os.path.abspath(folder / uri)


def _schema(name: str, folder: Path, named_in: Path) -> str:
    """Return the absolute path or the URI of the schema; a file of this machine must be readable text."""
    place = _absolute(name, folder)
    if "://" in place:
        return place
    try:
        Path(place).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"schema_file cannot be read: {error}",
            where=str(named_in),
            hint="Make a first one with `trainwright schema infer`, review it, and commit it.",
        ) from None
    return place


def commit(folder: Path) -> str:
    """Return the git commit of a folder, with ``-dirty`` for uncommitted changes; ``none`` outside git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.strip()
