"""One call of a step: what kfp.local hands over, made into what is run, and what comes back."""

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
from trainwright.artifacts.facts import facts_of
from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.pipeline_spec import Pipeline, Step
from trainwright.local.cache import Digests
from trainwright.local.kfp_local import Call, Container
from trainwright.local.kfp_spec import filled_in, is_plain, whole
from trainwright.local.run_folder import LOG, Output

MAX_ARGUMENT = 131_072
"""Longest single argument of a process on Linux, in bytes, with its closing zero."""

ENDINGS = {"system.HTML": ".html", "system.Markdown": ".md"}
"""What the name of an artifact's file ends with, by the artifact's type."""

UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "_KFP_RUNTIME")
"""Variables of this process that would reach into the environment of a step."""

KEEP_WAITING = "trap : TERM INT HUP\n"
"""Lets the shell that kfp starts a step with wait for a step that is saving its state."""


def _own_metadata(artifact: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the metadata of an artifact without what its own documents say as well."""
    metadata = dict(artifact.get("metadata", {}))
    try:
        repeated = facts_of(path) if path.is_dir() else {}
    except errors.InputError:
        repeated = {}
    return {name: said for name, said in metadata.items() if name not in repeated or repeated[name] != said}


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One call of a step, ready to be run.

    Attributes:
        step: The step.
        name: Name of this call; ``train.2`` is the third turn of a loop.
        folder: Where its log and its artifacts go.
        command: What to run.
        variables: Variables that the pipeline sets.
        data: The executor input, as the component gets it.
        container: What its container is started with, where it runs in one.
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
        """The file with all that it writes."""
        return self.folder / LOG

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of its declared parameters."""
        values: Mapping[str, Any] = self.data.get("inputs", {}).get("parameterValues", {})
        return {name: value for name, value in values.items() if name in self.step.inputs}

    @property
    def executor_output(self) -> Path:
        """Where kfp reads its outputs."""
        return Path(self.data["outputs"]["outputFile"])

    def input_digests(self, digests: Digests) -> dict[str, Any] | None:
        """Return type, metadata and content digest of each input artifact; None if one lies elsewhere.

        An artifact without a file, such as metrics, is its metadata. Facts that repeat the artifact's own
        documents do not count: they name what it was made from, which the content leaves out on purpose.
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
        """Refuse parameters that do not fit into an argument of a process.

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
    """Make a call of kfp.local into what is run.

    Args:
        call: What kfp.local hands over.
        pipeline: The pipeline, which knows the step.
        folder: The run's folder.
        root: Folder of kfp's own files, which says which step and which turn of a loop this is.
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
    """Fill in f-strings, and make whole numbers integers again, as a cluster's launcher has them."""
    inputs = data.setdefault("inputs", {})
    values = inputs.setdefault("parameterValues", {})
    inputs["parameterValues"] = {
        name: value if step.inputs.get(name) == "NUMBER_DOUBLE" else whole(filled_in(value, values))
        for name, value in values.items()
    }
    inputs["artifacts"] = whole(inputs.get("artifacts", {}))


def _places(data: Mapping[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield every output artifact and where it goes: a name that a person, and a browser, understands."""
    for name, group in data["outputs"].get("artifacts", {}).items():
        for artifact in group["artifacts"]:
            yield artifact, folder / (name + ENDINGS.get(artifact["type"].get("schemaTitle", ""), ""))


def variables(python: Path, given: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Return the environment variables of a step: ours, with its toolchain first on the path.

    ``python3`` in a command, a parameter or a path is never rewritten; the path decides what it is. Neither
    the folder we run in nor our own Python's settings reach into the step's imports.

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
    """Read what a step has given back: its executor output, and parameters that it wrote to files.

    Raises:
        InputError: An output would be misread by kfp.local.
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
    """Put the outputs of a reused result where kfp reads them."""
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
"""By component: a parameter that holds a section, and the key in it that changes not one byte of the result.

tests/ingest/test_runner.py holds ``ingest`` to it: the same bytes by any number of workers.
"""


def decisive(step: Step, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a step's call, without what only says how fast it is to work.

    A value without that key stays as it is: a needless miss, never a wrong hit.
    """
    kept = dict(parameters)
    for verb, (parameter, part, key) in PACE.items():
        if _is_ours(step, verb):
            section = _object(kept.get(parameter))
            if key in _object(section.get(part)):
                rest = {name: value for name, value in section[part].items() if name != key}
                kept[parameter] = section | {part: rest}
    return kept


def _is_ours(step: Step, verb: str) -> bool:
    """Say whether a step runs a component of this library, to the letter: command, source, arguments."""
    if step.container.get("args", [])[-1:] != [verb]:
        return False
    path = catalog.folder() / catalog.COMPONENTS / f"{verb}.yaml"
    return path.is_file() and step.container == _container(path, path.stat().st_mtime_ns)


@functools.cache
def _container(path: Path, _written_ns: int) -> Mapping[str, Any]:
    (step,) = pipeline_spec.read(path).steps
    return step.container


def _object(value: Any) -> dict[str, Any]:
    """Return a value that is a JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}
