"""The arguments of a pipeline, put together from an experiment file and from the command line."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwright.authoring import pipeline_spec
from trainwright.errors import InputError

RENAMED = {f"probe_{amount}": f"smoke_test_{amount}" for amount in ("cpu", "memory")}
"""Old names of parameters, and today's (docs/decisions/0016-names-of-steps.md)."""


def arguments(compiled: Path, config: Path | None, params: Sequence[str], date: str = "") -> dict[str, Any]:
    """Put together a pipeline's arguments: what it takes of the experiment, and single parameters.

    Args:
        compiled: The compiled pipeline.
        config: The experiment file; None for none.
        params: Texts ``NAME=VALUE``; they win over the experiment.
        date: Date that ``{date}`` in a source stands for; empty for today.

    Raises:
        InputError: The file or a parameter is not right.
    """
    parameters = pipeline_spec.read(compiled).parameters
    found: dict[str, Any] = {}
    if config:
        from trainwright.authoring import arguments as experiments

        given = experiments.read(config)
        if "materialize_section" in parameters:
            given |= experiments.read_materialize(config)
        given = experiments.lifted(given, parameters)
        found = {name: value for name, value in given.items() if name in parameters}
    for text in [*params, *_dated(compiled, date)]:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--param {text!r} is not NAME=VALUE", hint="For example --param epochs=3.")
        name = RENAMED.get(name, name)
        found[name] = _value(name, value, parameters.get(name, {}).get("parameterType", "STRING"))
    return found


def _dated(compiled: Path, date: str) -> list[str]:
    """Return the date as a parameter of the pipeline; nothing if none was given."""
    if not date:
        return []
    if "date" not in pipeline_spec.read(compiled).parameters:
        raise InputError(f"{compiled.stem} has no parameter date", where="--date")
    try:
        return [f"date={datetime.date.fromisoformat(date).isoformat()}"]
    except ValueError:
        raise InputError(
            f"expected a date, found {date!r}", where="--date", hint="Write it as 2026-01-31."
        ) from None


def _value(name: str, text: str, kind: str) -> Any:
    """Read the text of a parameter as its type; what is not a text is written as in JSON."""
    if kind == "STRING":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise InputError(f"{text!r} is no {kind} (written as in JSON)", where=f"--param {name}") from None
