"""What scripts and experiment files depend on: commands with their options, experiment keys, exit codes.

`interfaces.json` lists what version 0.1.0 had. Additions are free; a removal breaks a user, so it needs an
alias for one release and a line in the change log before its line here is changed.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from docs.site import reference
from trainwright import errors
from trainwright.cli import app
from trainwright.experiment import Data, Experiment, Steps

DATA = {"source": "x", "splits": {"train": {"fraction": 1}}}

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("interfaces.json").read_text())


def commands() -> dict[str, list[str]]:
    """List the options and arguments of every command."""
    root = typer.main.get_command(app.app)
    return {
        context.command_path: sorted(
            name
            for parameter in context.command.get_params(context)
            for name in (
                (*parameter.opts, *parameter.secondary_opts)
                if parameter.opts[0][0] == "-"
                else [parameter.name]
            )
        )
        for context in reference.commands(root, "trainwright")
    }


def experiment_keys(node: dict[str, Any], definitions: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted path of every key; `[mlp]` is a kind of a section, `*` a name the user chooses."""
    for part in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from experiment_keys(part, definitions, path)
    if "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[-1]]
    if kind := node.get("properties", {}).get("kind", {}).get("const"):
        path = f"{path}[{kind}]"
    for key, field in node.get("properties", {}).items():
        name = f"{path}.{key}".lstrip(".")
        yield name
        yield from experiment_keys(field, definitions, name)
    for part in (node.get("additionalProperties"), *node.get("patternProperties", {}).values()):
        if isinstance(part, dict):
            yield from experiment_keys(part, definitions, f"{path}.*")
    if isinstance(node.get("items"), dict):
        yield from experiment_keys(node["items"], definitions, path)


def missing(frozen: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    return [
        f"{name} {part}" for name, parts in frozen.items() for part in parts if part not in now.get(name, ())
    ]


def test_every_command_and_option_of_the_earlier_version_exists() -> None:
    assert missing(FROZEN["commands"], commands()) == []


def test_every_experiment_key_of_the_earlier_version_is_accepted() -> None:
    schema = Experiment.model_json_schema()
    known = {key.replace("steps.probe", "steps.smoke_test") for key in FROZEN["experiment_keys"]}
    known = {re.sub(r"^(data|validation)\.runner", r"\1.engine", key) for key in known}
    known -= {"data.engine.engine", "validation.engine.engine"}
    Data.check({**DATA, "runner": {"engine": "beam", "options": ["--runner=FlinkRunner"]}}, "the old name")
    known.remove("training.objective.kind")  # `data.label_kind` describes the target, once for all steps
    Steps.check({"probe": {"cpu": "1", "memory": "1G"}}, "the old name of a step")
    assert known - set(experiment_keys(schema, schema["$defs"])) == set()


def test_every_error_of_the_earlier_version_keeps_its_exit_code() -> None:
    assert {name: getattr(errors, name).code for name in FROZEN["exit_codes"]} == FROZEN["exit_codes"]
