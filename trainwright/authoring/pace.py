"""Which parameters of our own components only say how fast to work, and so belong in no key of a result.

The rule is for the library's components to the letter: a step that runs other code may make something else
of the same words, so there all parameters count.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.authoring import catalog, spec
from trainwright.authoring.steps import Step
from trainwright.documents import canonical

PACE = {"ingest": ("data", "runner", "workers")}
"""By component: a parameter that holds a section, and the key in it that changes not one byte of the result.

tests/ingest/test_runner.py holds ``ingest`` to it: the same bytes by any number of workers.
"""


def decisive(step: Step, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a step's call, without what only says how fast it is to work.

    What cannot be read as JSON with that key stays as it is: a needless miss, never a wrong hit.
    """
    kept = dict(parameters)
    for verb, (parameter, part, key) in PACE.items():
        if _is_ours(step, verb):
            section = _object(kept.get(parameter))
            if key in _object(section.get(part)):
                kept[parameter] = canonical(
                    section | {part: {name: value for name, value in section[part].items() if name != key}}
                )
    return kept


def _is_ours(step: Step, verb: str) -> bool:
    """Say whether a step runs a component of this library, to the letter: command, source, arguments."""
    if step.container.get("args", [])[-1:] != [verb]:
        return False
    path = catalog.folder() / catalog.COMPONENTS / f"{verb}.yaml"
    return path.is_file() and step.container == _container(path, path.stat().st_mtime_ns)


@functools.cache
def _container(path: Path, _written_ns: int) -> Mapping[str, Any]:
    (step,) = spec.read(path).steps
    return step.container


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object, or the one that a text holds; an empty one for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return {}
    return value if isinstance(value, dict) else {}
