"""The compiled components and pipelines of this library, by name, for use in any pipeline.

::

    from trainwright.authoring import catalog

    validate = catalog.load("validate")
    validate = catalog.load("validate@0.1.0", sha256="5f3a…")  # exactly this one, or an error
"""

import ast
import contextlib
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docstring_parser
import yaml

import trainwright
from trainwright.authoring import interfaces
from trainwright.errors import InputError

if TYPE_CHECKING:
    from kfp.dsl import BaseComponent

COMPONENTS, PIPELINES = "components", "pipelines"

_IMAGE = re.compile(r"(?<![\w./-])trainwright/(?=[a-z]+:\d)")
"""An image of this library, wherever it stands in compiled YAML."""

TYPES = {
    "STRING": "str",
    "NUMBER_INTEGER": "int",
    "NUMBER_DOUBLE": "float",
    "BOOLEAN": "bool",
    "LIST": "list",
    "STRUCT": "dict",
    "TASK_FINAL_STATUS": "PipelineTaskFinalStatus",
}
"""What a compiled type is called in the source."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """One input or output: name, type, default as text, description."""

    name: str
    type: str
    default: str = ""
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The interface of a compiled component or pipeline.

    Attributes:
        name: As compiled.
        description: Its docstring.
        image: Image of a component; empty for a pipeline.
        inputs: Its inputs.
        outputs: Its outputs.
    """

    name: str
    description: str
    image: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


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


def names() -> tuple[str, ...]:
    """Return the names of all components."""
    return _names(COMPONENTS)


def pipelines() -> tuple[str, ...]:
    """Return the names of all pipelines."""
    return _names(PIPELINES)


def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (folder() / kind).glob("*.yaml")))


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
    known = _names(kind)
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

    return components.load_component_from_text(prefixed(verified(name, sha256), registry))


def verified(name: str, sha256: str = "") -> str:
    """Return the compiled YAML of a component after comparing version and digest.

    Raises:
        InputError: As :func:`load`.
    """
    said, at, version = name.partition("@")
    verb = RENAMED.get(said, said)
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
    for wanted, who in ((sha256, "the caller names"), (listed, "the index lists")):
        if wanted and wanted != found:
            raise InputError(
                f"{verb} has the SHA-256 {found}, {who} {wanted}",
                where=str(path),
                hint="Install the library again, or look at what changed: trainwright interface-diff.",
            )
    return text


def prefixed(text: str, registry: str) -> str:
    """Prefix every image of this library in compiled YAML with a registry, unless it is empty."""
    return _IMAGE.sub(f"{registry.rstrip('/')}/trainwright/", text) if registry else text


def describe(path: Path) -> Description:
    """Return the interface of a compiled component or pipeline.

    Raises:
        InputError: The file does not exist, or is not compiled YAML.
    """
    try:
        return described(path.read_text(), str(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def described(text: str, where: str) -> Description:
    """Return the interface in a text of compiled YAML.

    Raises:
        InputError: It is not compiled YAML.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    spec = next(yaml.load_all(text, loader), None)
    if not isinstance(spec, dict) or "root" not in spec:
        raise InputError("not a compiled component or pipeline", where=where)
    executors = list(spec["deploymentSpec"]["executors"].values())
    container = executors[0].get("container", {}) if len(executors) == 1 else {}
    root, info = spec["root"], spec["pipelineInfo"]
    doc, made = _docstring(container.get("command", [])), root.get("outputDefinitions", {})
    said = {entry.arg_name: entry.description or "" for entry in doc.params}
    return Description(
        name=info["name"],
        description=info.get("description") or doc.short_description or "",
        image=container.get("image", ""),
        inputs=tuple(_ports(root.get("inputDefinitions", {}), said)),
        outputs=tuple(_ports(made, said | _returned(doc, list(made.get("parameters", {}))))),
    )


def _docstring(command: list[str]) -> docstring_parser.Docstring:
    """Return a component's docstring from its source; kfp keeps only the descriptions of inputs."""
    for source in command:
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.parse(source).body:
                if isinstance(node, ast.FunctionDef):
                    return docstring_parser.parse(ast.get_docstring(node) or "")
    return docstring_parser.Docstring()


def _line(text: str | None) -> str:
    """Return a description as one line of Markdown."""
    return " ".join((text or "").replace("``", "`").split())


def _returned(doc: docstring_parser.Docstring, names: list[str]) -> dict[str, str]:
    """Parse the section Returns: one value, or several as ``name: description``."""
    head, rest = (doc.returns.type_name, doc.returns.description) if doc.returns else ("", "")
    text = ": ".join(part for part in (head, rest) if part)  # what stands before a colon is taken for a type
    if "Output" in names:
        return {"Output": text}
    _, *parts = re.split(rf"(?:^|\s)({'|'.join(map(re.escape, names))}):\s", text) if names else [text]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _ports(definitions: dict[str, Any], said: Mapping[str, str]) -> list[Port]:
    """Return inputs or outputs in the order of the docstring."""
    ports = []
    for kind in ("artifacts", "parameters"):
        for name, entry in definitions.get(kind, {}).items():
            default = entry.get("defaultValue")
            if entry.get("parameterType") == "NUMBER_INTEGER" and default is not None:
                default = int(default)
            title = entry.get("artifactType", {}).get("schemaTitle", "").removeprefix("system.")
            ports.append(
                Port(
                    name=name,
                    type=title or TYPES.get(entry["parameterType"], entry["parameterType"]),
                    default="" if default is None else repr(default),
                    description=_line(said.get(name) or entry.get("description")),
                )
            )
    order = list(said)
    return sorted(ports, key=lambda port: order.index(port.name) if port.name in said else len(order))
