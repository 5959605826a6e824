"""The components and pipelines of this library, as compiled: by name, ready for anybody's pipeline.

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
    """One input or output: its name, its type, its default as text, what it means."""

    name: str
    type: str
    default: str = ""
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a component or a pipeline is, from its compiled YAML.

    Attributes:
        name: As compiled.
        description: What its docstring says it does.
        image: Image of a component; empty for a pipeline.
        inputs: What it takes.
        outputs: What it gives.
    """

    name: str
    description: str
    image: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def folder() -> Path:
    """Return where the compiled YAML lies: in the wheel, or in the repository."""
    package = Path(trainwright.__file__).resolve().parent
    inside = package / "_compiled"
    return inside if inside.is_dir() else package.parent / "compiled"


@functools.cache
def _index(path: Path) -> dict[str, Any]:
    return interfaces.read(path)


def index() -> dict[str, Any]:
    """Return what ``compiled/index.json`` says of every component and pipeline; empty before it is made."""
    path = folder() / interfaces.FILE
    return _index(path) if path.exists() else {kind: {} for kind in interfaces.KINDS}


def judged_by(name: str) -> str:
    """Return what a component judges, ``data`` or ``model``; empty for one that judges nothing."""
    return str(index()[COMPONENTS].get(name, {}).get("judges", ""))


def names() -> tuple[str, ...]:
    """Return the names of all components."""
    return _names(COMPONENTS)


def pipelines() -> tuple[str, ...]:
    """Return the names of all pipelines."""
    return _names(PIPELINES)


def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (folder() / kind).glob("*.yaml")))


def component(name: str) -> Path:
    """Return the compiled YAML of a component.

    Raises:
        InputError: There is no component of that name.
    """
    return _path(COMPONENTS, name)


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
        name: The verb; ``VERB@VERSION`` refuses any other version of the library.
        registry: ``HOST/TEAM`` that a cluster pulls its image from; a local run does without.
        sha256: Digest that its compiled YAML must have; empty to take it as it is in the index.

    Raises:
        InputError: There is no component of that name (close ones are named), it is of another version, or
            its YAML is not the one that the index or the caller names.
    """
    from kfp import components

    return components.load_component_from_text(prefixed(verified(name, sha256), registry))


def verified(name: str, sha256: str = "") -> str:
    """Return the compiled YAML of a component, after a look that it is the one that is meant.

    Raises:
        InputError: As :func:`load`.
    """
    verb, at, version = name.partition("@")
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
    """Put a registry in front of every image of this library in compiled YAML; none if it is empty."""
    return _IMAGE.sub(f"{registry.rstrip('/')}/trainwright/", text) if registry else text


def describe(path: Path) -> Description:
    """Read what a compiled component or pipeline takes and gives.

    Raises:
        InputError: There is no such file, or it is not compiled YAML.
    """
    try:
        return described(path.read_text(), str(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def described(text: str, where: str) -> Description:
    """Read what compiled YAML takes and gives, from its text.

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
    """Read a component's docstring from its source: kfp keeps only what it says of inputs."""
    for source in command:
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.parse(source).body:
                if isinstance(node, ast.FunctionDef):
                    return docstring_parser.parse(ast.get_docstring(node) or "")
    return docstring_parser.Docstring()


def _line(text: str | None) -> str:
    """Write a description on one line, as Markdown."""
    return " ".join((text or "").replace("``", "`").split())


def _returned(doc: docstring_parser.Docstring, names: list[str]) -> dict[str, str]:
    """Say what is returned: one value as a whole; several as ``name: what it is``, one after the other."""
    head, rest = (doc.returns.type_name, doc.returns.description) if doc.returns else ("", "")
    text = ": ".join(part for part in (head, rest) if part)  # what stands before a colon is taken for a type
    if "Output" in names:
        return {"Output": text}
    _, *parts = re.split(rf"(?:^|\s)({'|'.join(map(re.escape, names))}):\s", text) if names else [text]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _ports(definitions: dict[str, Any], said: Mapping[str, str]) -> list[Port]:
    """Return inputs or outputs, in the order in which the docstring has them."""
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
