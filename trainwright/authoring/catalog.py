"""The compiled components and pipelines of this library, by name, for use in any pipeline.

::

    from trainwright.authoring import catalog

    validate = catalog.load("validate")
    validate = catalog.load("validate@0.1.0", sha256="5f3a…")  # exactly this one, or an error
"""

import ast
import difflib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainwright
from trainwright.authoring import interfaces
from trainwright.errors import InputError
from trainwright.yaml_reader import read_yaml_documents

if TYPE_CHECKING:
    from kfp.dsl import BaseComponent

COMPONENTS, PIPELINES = "components", "pipelines"

_IMAGE = re.compile(r"(?<![\w./-])trainwright/(?=[a-z]+:\d)")
"""An image of this library, wherever it stands in compiled YAML."""


def folder() -> Path:
    """Return the folder of the compiled YAML: in the wheel, or in the repository."""
    package = Path(trainwright.__file__).resolve().parent
    inside = package / "_compiled"
    return inside if inside.is_dir() else package.parent / "compiled"


@functools.cache
def _index(path: Path) -> dict[str, Any]:
    return interfaces.read(path)


def index() -> dict[str, Any]:
    """Return ``compiled/index.json``; empty before it is generated."""
    path = folder() / interfaces.FILE
    return _index(path) if path.exists() else {kind: {} for kind in interfaces.KINDS}


def judged_by(name: str) -> str:
    """Return what a component judges, ``data`` or ``model``; empty if it is not a gate."""
    return str(index()[COMPONENTS].get(name, {}).get("judges", ""))


RENAMED = {"locate": "get_production_model", "probe": "smoke_test"}
"""Old names of components, and today's (docs/decisions/0016-names-of-steps.md)."""


def names(kind: str = COMPONENTS) -> tuple[str, ...]:
    """Return the names of all components."""
    return tuple(sorted(path.stem for path in (folder() / kind).glob("*.yaml")))


def pipelines() -> tuple[str, ...]:
    """Return the names of all pipelines."""
    return names(PIPELINES)


def component(name: str) -> Path:
    """Return the compiled YAML of a component; names in :data:`RENAMED` are found until the next release.

    Raises:
        InputError: There is no component of that name.
    """
    return _path(COMPONENTS, RENAMED.get(name, name))


def pipeline(name: str) -> Path:
    """Return the compiled YAML of a pipeline: by its name, or the path of any compiled YAML.

    Raises:
        InputError: There is no pipeline of that name.
    """
    return Path(name) if name.endswith((".yaml", ".yml")) else _path(PIPELINES, name)


def _path(kind: str, name: str) -> Path:
    known = names(kind)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(known) or 'none'}."
        raise InputError(f"there is no {kind.removesuffix('s')} {name!r}", where=str(folder()), hint=advice)
    return folder() / kind / f"{name}.yaml"


def load(name: str, registry: str = "", *, sha256: str = "") -> "BaseComponent":
    """Return a component, to be called in a KFP pipeline.

    Args:
        name: The verb; ``VERB@VERSION`` rejects any other version of the library.
        registry: ``HOST/TEAM`` from which a cluster pulls the image; a local run needs none.
        sha256: Expected digest of the compiled YAML; empty for the one in the index.

    Raises:
        InputError: The component does not exist (similar names are listed), has another version, or its YAML
            has another digest.
    """
    from kfp import components

    called, at, version = name.partition("@")
    verb = RENAMED.get(called, called)
    path = component(verb)
    if at and version != trainwright.__version__:
        raise InputError(
            f"{verb}@{version} is asked for, and this library is {trainwright.__version__}",
            where=name,
            hint=f"Install trainwright=={version}, or ask for {verb}@{trainwright.__version__}.",
        )
    text = path.read_text()
    found = interfaces.digest(text)
    listed = str(index()[COMPONENTS].get(verb, {}).get("sha256", ""))
    for expected, who in ((sha256, "the caller names"), (listed, "the index lists")):
        if expected and expected != found:
            raise InputError(
                f"{verb} has the SHA-256 {found}, {who} {expected}",
                where=str(path),
                hint="Install the library again, or look at what changed: trainwright interface-diff.",
            )
    return components.load_component_from_text(prefixed(text, registry))


def prefixed(text: str, registry: str) -> str:
    """Prefix every image of this library in compiled YAML with a registry, unless it is empty."""
    return _IMAGE.sub(f"{registry.rstrip('/')}/trainwright/", text) if registry else text


def summary(path: Path) -> str:
    """Return the first line of the description of a compiled component or pipeline."""
    spec = read_yaml_documents(path)[0]
    text = spec["pipelineInfo"].get("description", "")
    if not text:  # KFP keeps the docstring of a component in its source alone
        [executor] = spec["deploymentSpec"]["executors"].values()
        functions = ast.parse(executor["container"]["command"][-1]).body
        text = next(ast.get_docstring(node) for node in functions if isinstance(node, ast.FunctionDef)) or ""
    return str(text).strip().split("\n", 1)[0]
