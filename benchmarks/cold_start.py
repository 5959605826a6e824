"""What stands before a step's work: the interpreter, kfp's executor, the imports; on request in a container.

For each step: from the start of the process, or of its container, to the first line of an interpreter; from
there to the first line of the component's body, started as kfp starts it; then what the body imports, in a
fresh process; and what it does after that, its reading and its work, as the record of the newest finished run
has it (``--runs``). The disk's caches are warm, as on a node that has run the image before. ``--containers``
asks the engine that ``DOCKER_HOST`` or docker's default names.
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
from trainwright.authoring import catalog, engines, images, runs
from trainwright.authoring.environments import python
from trainwright.authoring.steps import toolchain_of

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
INTERPRETER = ["python3", "-c", "import time; print('at', time.time(), flush=True)"]

Start = Callable[[str, Sequence[str]], str]


def here(toolchain: str, command: Sequence[str]) -> str:
    """Run a command in a toolchain's environment; return what it printed."""
    path = f"{python(toolchain).parent}:/usr/bin:/bin"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout


def contained() -> Start:
    """Return what runs a command in a container of a toolchain's image, as strictly as a run does."""
    client = engines.client()

    def start(toolchain: str, command: Sequence[str]) -> str:
        options = {"read_only": True, "cap_drop": ["ALL"], "tmpfs": {"/tmp": "mode=1777"}}  # noqa: S108
        container = client.containers.create(
            engines.identity(images.name(toolchain)), list(command), **options
        )
        try:
            container.start()
            return b"".join(container.logs(stream=True, follow=True)).decode()
        finally:
            container.remove(force=True)

    return start


def until_said(start: Start, toolchain: str, command: Sequence[str]) -> float:
    """Return the median of the seconds until a command's process says what time it is."""
    times = []
    for _ in range(REPEATS):
        begun = time.time()
        times.append(float(start(toolchain, command).split("at ")[1].split()[0]) - begun)
    return statistics.median(times)


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
        modules = sorted(set(re.findall(r"from (trainwright\.[\w.]+) import", path.read_text())))
        found[verb] = (toolchain_of(catalog.describe(path).image), modules)
    return found


def working(folder: Path) -> dict[str, float]:
    """Return the seconds that each step of the newest finished run worked, from its own record."""
    for run in sorted(folder.glob("*/" + runs.OWN), reverse=True):
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
    ways: dict[str, tuple[float, float]] = {}
    for verb, (toolchain, modules) in steps().items():
        if toolchain not in ways:
            ways[toolchain] = tuple(until_said(start, toolchain, way) for way in (INTERPRETER, USER_CODE))
        bare, body = ways[toolchain]
        longest = max(longest, body - bare)
        seconds = [bare, body - bare, importing(start, toolchain, modules), work.get(verb, 0.0)]
        rows.append([verb, toolchain, *(f"{value:.2f}" if value else "" for value in seconds)])
    return rows, longest


def main() -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--containers", action="store_true", help="in containers of the built images")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs with records lie")
    asked = parser.parse_args()
    rows, longest = measured(contained() if asked.containers else here, working(asked.runs))
    header = ["step", "toolchain", "interpreter s", "to the first line s", "its imports s", "its work s"]
    where = "in containers" if asked.containers else "without containers"
    name = "cold_start_in_containers" if asked.containers else "cold_start"
    line = f"{name}: user code {longest:.2f} s after the interpreter, {where} (goal {GOAL_S} s)"
    return publish(name, header, rows, line, longest <= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
