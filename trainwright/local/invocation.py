"""One call of a step: convert kfp.local's call to a command, and read the step's outputs."""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.artifacts.metadata import metadata_of
from trainwright.authoring.pipeline_spec import PREFIX, Pipeline, Step
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.local.cache import Digests
from trainwright.local.kfp_local import Call
from trainwright.local.kfp_spec import filled_in, is_plain, whole
from trainwright.local.run_folder import LOG, Output

MAX_ARGUMENT = 131_072
"""Longest single argument of a process on Linux, in bytes, with its closing zero."""

EXTENSIONS = {"system.HTML": ".html", "system.Markdown": ".md"}
"""File name extension of an artifact, by its type."""

UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "_KFP_RUNTIME")
"""Environment variables of this process that would affect a step's Python."""

KEEP_WAITING = "trap : TERM INT HUP\n"
"""Makes the shell that kfp starts a step with wait while the step saves its state."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One call of a step, in a folder of its own; ``train.2`` is the third iteration of a loop.

    Attributes:
        variables: Environment variables that the pipeline sets.
        data: The executor input that the component receives.
    """

    step: Step
    name: str
    folder: Path
    command: tuple[str, ...]
    variables: Mapping[str, str]
    data: Mapping[str, Any]

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
        """Reject parameters that do not fit into a process argument together."""
        size = max(len(part.encode()) for part in self.command)
        if size >= MAX_ARGUMENT:
            values = self.data["inputs"]["parameterValues"]
            longest = max(values, key=lambda name: len(json.dumps(values[name])), default="")
            raise InputError(
                f"all parameters together are {size:,} bytes long; at most {MAX_ARGUMENT - 1:,} fit",
                where=f"parameter {longest}, the longest",
                hint="Pass a file or an artifact instead.",
            )


def _own_metadata(artifact: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return an artifact's metadata without the facts that its documents contain too."""
    metadata = dict(artifact.get("metadata", {}))
    try:
        repeated = metadata_of(path) if path.is_dir() else {}
    except InputError:
        repeated = {}
    return {name: said for name, said in metadata.items() if name not in repeated or repeated[name] != said}


def invocation(call: Call, pipeline: Pipeline, folder: Path, root: Path) -> Invocation:
    """Convert a call of kfp.local; names below ``root`` identify the step and the iteration of a loop."""
    place = call.command.index("--executor_input") + 1
    data = json.loads(call.command[place])
    parts = Path(data["outputs"]["outputFile"]).relative_to(root).parts[1:-1]
    step = pipeline.step(parts[-1])
    turns = [turn[1] for part in parts if (turn := re.search(r"-iteration-(\d+)$", part))]
    name = ".".join([step.name, *turns])
    # Fill in f-strings, and turn integral floats into integers, as KFP's launcher does on a cluster.
    inputs = data.setdefault("inputs", {})
    values = inputs.setdefault("parameterValues", {})
    inputs["parameterValues"] = {
        name: value if step.inputs.get(name) == "NUMBER_DOUBLE" else whole(filled_in(value, values))
        for name, value in values.items()
    }
    inputs["artifacts"] = whole(inputs.get("artifacts", {}))
    for output, group in data["outputs"].get("artifacts", {}).items():
        for artifact in group["artifacts"]:  # under names that a browser understands
            extension = EXTENSIONS.get(artifact["type"].get("schemaTitle", ""), "")
            artifact["uri"] = str(folder / name / f"{output}{extension}")
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
    )


def component_call(
    pipeline: Pipeline, parameters: Mapping[str, Any], artifacts: Mapping[str, Path], root: Path
) -> Call:
    """Return the call of a component's only step, as kfp.local would make it if it could take artifacts."""
    [step] = pipeline.steps
    definition = pipeline.document["components"][f"{PREFIX}{step.name}"]
    declared = definition.get("inputDefinitions", {}).get("artifacts", {})
    folder = root / "component" / step.name
    data = {
        "inputs": {
            "parameterValues": dict(parameters),
            "artifacts": {
                name: _artifacts(name, declared[name]["artifactType"], path)
                for name, path in artifacts.items()
            },
        },
        "outputs": {
            "parameters": {
                name: {"outputFile": str(folder / name)} for name in step.outputs.get("parameters", {})
            },
            "artifacts": {
                name: _artifacts(name, entry["artifactType"], folder / name)
                for name, entry in step.outputs.get("artifacts", {}).items()
            },
            "outputFile": str(folder / "executor_output.json"),
        },
    }
    words = [*step.container["command"], *step.container["args"]]
    variables = {entry["name"]: entry["value"] for entry in step.container.get("env", [])}
    return Call(
        command=tuple(json.dumps(data) if word == "{{$}}" else word for word in words), variables=variables
    )


def _artifacts(name: str, kind: Mapping[str, str], path: Path) -> dict[str, Any]:
    return {"artifacts": [{"name": name, "type": dict(kind), "uri": str(path), "metadata": {}}]}


def variables(python: Path, configured: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Return the environment variables of a step: ours, with its toolchain first on the path.

    ``python3`` in a command is never rewritten; the path decides which one it is. Neither the working
    directory nor settings of our own Python affect the step's imports. Those that the pipeline sets win.
    """
    prefix = python.parent.parent
    own = {name: value for name, value in os.environ.items() if name not in UNSET}
    return own | {
        "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(prefix),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "TMPDIR": scratch,
        **configured,
    }


def read_output(call: Invocation) -> dict[str, Any]:
    """Read the executor output of a step, and the parameters that it wrote to files."""
    files: dict[str, str] = {}
    try:
        executor = read_json(call.executor_output) if call.executor_output.exists() else {}
        for name, place in call.data["outputs"].get("parameters", {}).items():
            with contextlib.suppress(FileNotFoundError):
                files[name] = Path(place["outputFile"]).read_text()
    except ValueError as error:
        raise InputError(
            f"an output or a metric is not what Kubeflow reads: {getattr(error, 'what', error)}",
            where=call.name,
            hint="Leave a figure out that could not be computed.",
        ) from None
    _check_parameters(call, {**files, **executor.get("parameterValues", {})})
    return {"executor": executor, "files": files}


def _check_parameters(call: Invocation, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if "{{$" in json.dumps(value):
            raise InputError("holds {{$, which kfp would replace", where=f"{call.name}, output {name}")
        if name in call.step.judged and not is_plain(value):
            raise InputError(
                f"a condition reads {value!r:.80}, which is not a plain word",
                where=f"{call.name}, output {name}",
                hint="Return a word such as PASS or HOLD, and put the text into an artifact.",
            )


def _check_cached(call: Invocation, output: Mapping[str, Any]) -> None:
    """Reject a cached output that this step cannot have written; one may be forged."""
    declared, folder = call.data["outputs"], os.path.realpath(call.folder)
    try:
        executor, files = output["executor"], output["files"]
        values, groups = executor.get("parameterValues", {}), executor.get("artifacts", {})
        _check_parameters(call, {**files, **values})
        uris = [artifact["uri"] for group in groups.values() for artifact in group["artifacts"]]
        wrong = sorted({*files, *values} - declared.get("parameters", {}).keys())
        wrong += sorted(groups.keys() - declared.get("artifacts", {}).keys())
        wrong += [text for text in files.values() if not isinstance(text, str)]
        local = [uri.removeprefix("file://") for uri in uris]
        wrong += [uri for uri in local if "://" not in uri and not _is_below(folder, uri)]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError("it has another form than a step's output", where=call.name) from None
    if wrong:
        raise InputError(f"it has {wrong[0]!r:.200}, which is no output of the step", where=call.name)


def _is_below(folder: str, path: str) -> bool:
    """Tell whether a path, with its links followed, is a folder or below it."""
    return os.path.commonpath([folder, os.path.realpath(path)]) == folder


def write_output(call: Invocation, output: Mapping[str, Any]) -> None:
    """Write the outputs of a cached result where kfp reads them; reject what is no output of this step."""
    _check_cached(call, output)
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
