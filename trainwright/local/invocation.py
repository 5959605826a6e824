"""One call of a step: convert kfp.local's call to a command, and read the step's outputs."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainwright import errors
from trainwright.artifacts.metadata import metadata_of
from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.pipeline_spec import Pipeline, Step
from trainwright.local.cache import Digests
from trainwright.local.kfp_local import Call, Container
from trainwright.local.kfp_spec import filled_in, is_plain, whole
from trainwright.local.run_folder import LOG, Output

MAX_ARGUMENT = 131_072
"""Longest single argument of a process on Linux, in bytes, with its closing zero."""

ENDINGS = {"system.HTML": ".html", "system.Markdown": ".md"}
"""File name extension of an artifact, by its type."""

UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "_KFP_RUNTIME")
"""Environment variables of this process that would affect a step's Python."""

KEEP_WAITING = "trap : TERM INT HUP\n"
"""Makes the shell that kfp starts a step with wait while the step saves its state."""


def _own_metadata(artifact: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return an artifact's metadata without the facts that its documents contain too."""
    metadata = dict(artifact.get("metadata", {}))
    try:
        repeated = metadata_of(path) if path.is_dir() else {}
    except errors.InputError:
        repeated = {}
    return {name: said for name, said in metadata.items() if name not in repeated or repeated[name] != said}


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One call of a step.

    Attributes:
        step: The step.
        name: Name of this call; ``train.2`` is the third iteration of a loop.
        folder: Folder of its log and its artifacts.
        command: Its command line.
        variables: Environment variables that the pipeline sets.
        data: The executor input that the component receives.
        container: Volumes and options of its container, if it runs in one.
    """

    step: Step
    name: str
    folder: Path
    command: tuple[str, ...]
    variables: Mapping[str, str]
    data: Mapping[str, Any]
    container: Container = field(default_factory=Container)

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder / LOG

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of its declared parameters."""
        values: Mapping[str, Any] = self.data.get("inputs", {}).get("parameterValues", {})
        return {name: value for name, value in values.items() if name in self.step.inputs}

    @property
    def executor_output(self) -> Path:
        """The file from which kfp reads its outputs."""
        return Path(self.data["outputs"]["outputFile"])

    def input_digests(self, digests: Digests) -> dict[str, Any] | None:
        """Return type, metadata and content digest of each input artifact; None if one is elsewhere.

        An artifact without a file, such as metrics, is its metadata. Facts from the artifact's own documents
        are left out: they name its origin, which the content deliberately does not.
        """
        found: dict[str, Any] = {}
        for name, group in self.data.get("inputs", {}).get("artifacts", {}).items():
            rows = found[name] = []
            for artifact in group.get("artifacts", []):
                path = Path(artifact["uri"])
                if not path.is_absolute():
                    return None
                content = digests.artifact(path) if path.exists() else ""
                rows.append([artifact.get("type", {}), _own_metadata(artifact, path), content])
        return found

    def require_short(self) -> None:
        """Reject parameters that do not fit into a process argument.

        Raises:
            InputError: They are too long together.
        """
        size = max(len(part.encode()) for part in self.command)
        if size >= MAX_ARGUMENT:
            values = self.data["inputs"]["parameterValues"]
            longest = max(values, key=lambda name: len(json.dumps(values[name])), default="")
            raise errors.InputError(
                f"all parameters together are {size:,} bytes long; at most {MAX_ARGUMENT - 1:,} fit",
                where=f"parameter {longest}, the longest",
                hint="Pass a file or an artifact instead.",
            )


def invocation(call: Call, pipeline: Pipeline, folder: Path, root: Path) -> Invocation:
    """Convert a call of kfp.local.

    Args:
        call: The call.
        pipeline: The pipeline of the step.
        folder: The run's folder.
        root: Folder of kfp's files, whose names identify the step and the iteration of a loop.
    """
    place = call.command.index("--executor_input") + 1
    data = json.loads(call.command[place])
    parts = Path(data["outputs"]["outputFile"]).relative_to(root).parts[1:-1]
    step = pipeline.step(parts[-1])
    name = ".".join(
        [step.name, *(turn[1] for part in parts if (turn := re.search(r"-iteration-(\d+)$", part)))]
    )
    _restore_values(data, step)
    for artifact, path in _places(data, folder / name):
        artifact["uri"] = str(path)
    command = list(call.command)
    command[place] = json.dumps(data)
    if command[:2] == ["sh", "-ec"]:
        command[2] = KEEP_WAITING + command[2]
    return Invocation(
        step=step,
        name=name,
        folder=folder / name,
        command=tuple(command),
        variables=call.variables,
        data=data,
        container=call.container,
    )


def _restore_values(data: dict[str, Any], step: Step) -> None:
    """Fill in f-strings and turn integral floats into integers, as KFP's launcher does on a cluster."""
    inputs = data.setdefault("inputs", {})
    values = inputs.setdefault("parameterValues", {})
    inputs["parameterValues"] = {
        name: value if step.inputs.get(name) == "NUMBER_DOUBLE" else whole(filled_in(value, values))
        for name, value in values.items()
    }
    inputs["artifacts"] = whole(inputs.get("artifacts", {}))


def _places(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield every output artifact and its path, whose name a person and a browser understand."""
    for name, group in data["outputs"].get("artifacts", {}).items():
        for artifact in group["artifacts"]:
            yield artifact, folder / (name + ENDINGS.get(artifact["type"].get("schemaTitle", ""), ""))


def variables(python: Path, given: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Return the environment variables of a step: ours, with its toolchain first on the path.

    ``python3`` in a command is never rewritten; the path decides which one it is. Neither the working
    directory nor settings of our own Python affect the step's imports.

    Args:
        python: Interpreter of its toolchain.
        given: Variables that the pipeline sets; they win.
        scratch: Folder for its temporary files.
    """
    prefix = python.parent.parent
    own = {name: value for name, value in os.environ.items() if name not in UNSET}
    return own | {
        "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(prefix),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "TMPDIR": scratch,
        **given,
    }


def read_output(call: Invocation) -> dict[str, Any]:
    """Read the executor output of a step, and the parameters that it wrote to files.

    Raises:
        InputError: kfp.local would misread an output.
    """
    written = call.executor_output.read_text() if call.executor_output.exists() else "{}"
    executor = json.loads(written, parse_constant=partial(_refuse, call))
    places = call.data["outputs"].get("parameters", {})
    files: dict[str, str] = {}
    for name, place in places.items():
        with contextlib.suppress(FileNotFoundError):
            files[name] = Path(place["outputFile"]).read_text()
    for name, value in {**files, **executor.get("parameterValues", {})}.items():
        if "{{$" in json.dumps(value):
            raise errors.InputError("holds {{$, which kfp would replace", where=f"{call.name}, output {name}")
        if name in call.step.judged and not is_plain(value):
            raise errors.InputError(
                f"a condition reads {value!r:.80}, which is not a plain word",
                where=f"{call.name}, output {name}",
                hint="Return a word such as PASS or HOLD, and put the text into an artifact.",
            )
    return {"executor": executor, "files": files}


def _refuse(call: Invocation, number: str) -> None:
    raise errors.InputError(
        f"an output or a metric is {number}: Kubeflow reads JSON, which has no such number",
        where=call.name,
        hint="Leave a figure out that could not be computed.",
    )


def write_output(call: Invocation, output: Mapping[str, Any]) -> None:
    """Write the outputs of a cached result where kfp reads them."""
    call.executor_output.parent.mkdir(parents=True, exist_ok=True)
    call.executor_output.write_text(json.dumps(output["executor"]))
    for name, text in output["files"].items():
        place = Path(call.data["outputs"]["parameters"][name]["outputFile"])
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def artifacts(call: Invocation, output: Mapping[str, Any]) -> dict[str, Output]:
    """Return the artifacts of a step by name, with the types that the pipeline declares."""
    declared = call.data["outputs"].get("artifacts", {})
    found: dict[str, Output] = {}
    for name, group in output["executor"].get("artifacts", {}).items():
        for artifact in group.get("artifacts", []):
            kind = declared.get(name, {}).get("artifacts", [{}])[0].get("type", {})
            found[name] = Output(
                type=kind.get("schemaTitle", ""),
                uri=artifact["uri"],
                metadata=whole(artifact.get("metadata", {})),
            )
    return found


PACE = {"ingest": ("data", "runner", "workers")}
"""By component: a section parameter and its key that affects only speed, not one byte of the result.

tests/ingest/test_runner.py checks it for ``ingest``: the same bytes with any number of workers.
"""


def decisive(step: Step, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's parameters without those that affect only its speed.

    A parameter that is not such JSON stays: that costs a cache miss, never a wrong hit.
    """
    kept = dict(parameters)
    for verb, (parameter, part, key) in PACE.items():
        if _is_ours(step, verb):
            section = _object(kept.get(parameter))
            if key in _object(section.get(part)):
                rest = {name: value for name, value in section[part].items() if name != key}
                others = {name: value for name, value in section.items() if name != part}
                kept[parameter] = others | ({part: rest} if rest else {})  # as if the default were left out
    return kept


def _is_ours(step: Step, verb: str) -> bool:
    """Return whether a step runs exactly a component of this library: command, source, arguments."""
    if step.container.get("args", [])[-1:] != [verb]:
        return False
    path = catalog.folder() / catalog.COMPONENTS / f"{verb}.yaml"
    return path.is_file() and _without_prose(step.container) == _container(path, path.stat().st_mtime_ns)


@functools.cache
def _container(path: Path, _written_ns: int) -> Mapping[str, Any]:
    (step,) = pipeline_spec.read(path).steps
    return _without_prose(step.container)


def _without_prose(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a container without the docstring of its function, which compiled pipelines leave out."""
    *command, source = container.get("command", [""])
    return {**container, "command": [*command, pipeline_spec.without_docstring(source)]}


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object, parsed if it is a string; empty for anything else."""
    return value if isinstance(value, dict) else {}
