"""What stands before a step's work: the interpreter, kfp's executor, the imports; on request in a container.

For each step: from the request to a shell, that is, the start of the process or of its container; from the
shell to the first line of an interpreter; how much later than that the first line of the component's body is,
started as kfp starts it; then what the body imports, in a fresh process; and what it does after that, its
reading and its work, as the record of the newest finished run has it (``--runs``). A shell says when it
begins: what starting a container takes varies by more than the rest, and is in the first figure alone. The
disk's caches are warm, as on a node that has run the image before. ``--containers`` asks the engine that
``DOCKER_HOST`` or docker's default names.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from results import publish

from trainwright.artifacts import Record
from trainwright.authoring import catalog, images, pipeline_spec
from trainwright.authoring.environments import python
from trainwright.local import containers, run_folder

GOAL_S = 0.5
REPEATS = 5
BODY = "import time\n\ndef step():\n    print('at', time.time(), flush=True)\n"
SOURCE = (
    'program_path=$(mktemp -d)\nprintf "%s" "$0" > "$program_path/ephemeral_component.py"\n'
    "_KFP_RUNTIME=true python3 -m kfp.dsl.executor_main --component_module_path "
    '"$program_path/ephemeral_component.py" "$@"\n'
)
"""How kfp starts a component, as every compiled pipeline has it."""

EMPTY = json.dumps({"inputs": {}, "outputs": {"outputFile": "/tmp/out/executor_output.json"}})  # noqa: S108
USER_CODE = ["sh", "-ec", SOURCE, BODY, "--executor_input", EMPTY, "--function_to_execute", "step"]
SHELL = ["sh", "-c", 'date "+begun %s.%N"; exec "$@"', "sh"]
"""Says when it begins, and becomes the command."""

INTERPRETER = ["python3", "-c", "import time; print('at', time.time(), flush=True)"]

Start = Callable[[str, Sequence[str]], str]


def here(toolchain: str, command: Sequence[str]) -> str:
    """Run a command in a toolchain's environment; return what it printed."""
    path = f"{python(toolchain).parent}:/usr/bin:/bin"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout


def contained() -> Start:
    """Return what runs a command in a container of a toolchain's image, as strictly as a run does."""
    client = containers.client()

    def start(toolchain: str, command: Sequence[str]) -> str:
        options = {"read_only": True, "cap_drop": ["ALL"], "tmpfs": {"/tmp": "mode=1777"}}  # noqa: S108
        container = client.containers.create(
            containers.identity(images.name(toolchain)), list(command), **options
        )
        try:
            container.start()
            return b"".join(container.logs(stream=True, follow=True)).decode()
        finally:
            container.remove(force=True)

    return start


def until_said(start: Start, toolchain: str, command: Sequence[str]) -> tuple[float, float]:
    """Return the median seconds until a shell begins, and from there until its command says the time."""
    shell, said = [], []
    for _ in range(REPEATS):
        asked = time.time()
        words = start(toolchain, [*SHELL, *command]).split()
        begun, at = (float(words[words.index(mark) + 1]) for mark in ("begun", "at"))
        shell.append(begun - asked)
        said.append(at - begun)
    return statistics.median(shell), statistics.median(said)


def importing(start: Start, toolchain: str, modules: Sequence[str]) -> float:
    """Return the median of the seconds that importing takes, in processes of their own."""
    lines = "".join(f"import {module}\n" for module in modules)
    code = f"import time\nstart = time.time()\n{lines}print('at', time.time() - start)"
    times = [float(start(toolchain, ["python3", "-c", code]).split("at ")[1]) for _ in range(3)]
    return statistics.median(times)


def steps() -> dict[str, tuple[str, list[str]]]:
    """Return the toolchain of each component, and the modules that its body imports."""
    found = {}
    for verb in catalog.names():
        path = catalog.component(verb)
        text = re.sub(r"\\\n\s*\\?", "", path.read_text())  # YAML breaks long lines
        modules = sorted(set(re.findall(r"from (trainwright\.[\w.]+) import", text)))
        found[verb] = (pipeline_spec.read(path).steps[0].toolchain, modules)
    return found


def working(folder: Path) -> dict[str, float]:
    """Return the seconds that each step of the newest finished run worked, from its own record."""
    for run in sorted(folder.glob("*/" + run_folder.OWN), reverse=True):
        found: dict[str, float] = {}
        for path in run.parent.glob(f"*/*/{Record.FILE}"):
            record = Record.read(path.parent)
            found[record.step] = max(record.seconds, found.get(record.step, 0.0))
        if "register" in found:
            return found
    return {}


def measured(start: Start, work: dict[str, float]) -> tuple[list[list[Any]], float]:
    """Return one row a step, and the longest way from a bare interpreter to the first line of a body."""
    rows, longest = [], 0.0
    ways: dict[str, tuple[float, float, float]] = {}
    for verb, (toolchain, modules) in steps().items():
        if toolchain not in ways:
            (shell, bare), (_, body) = (until_said(start, toolchain, way) for way in (INTERPRETER, USER_CODE))
            ways[toolchain] = shell, bare, body - bare
        longest = max(longest, ways[toolchain][2])
        seconds = [*ways[toolchain], importing(start, toolchain, modules), work.get(verb, 0.0)]
        rows.append([verb, toolchain, *(f"{value:.2f}" if value else "" for value in seconds)])
    return rows, longest


def main() -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--containers", action="store_true", help="in containers of the built images")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs with records lie")
    asked = parser.parse_args()
    rows, longest = measured(contained() if asked.containers else here, working(asked.runs))
    header = ["step", "toolchain", "start s", "interpreter s", "first line s", "its imports s", "its work s"]
    where = "in containers" if asked.containers else "without containers"
    name = "cold_start_in_containers" if asked.containers else "cold_start"
    line = f"{name}: user code {longest:.2f} s after the interpreter, {where} (goal {GOAL_S} s)"
    return publish(name, header, rows, line, longest <= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
