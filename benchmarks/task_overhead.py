"""What the local runner costs a task: ten components that do nothing, one after the other.

``python benchmarks/task_overhead.py [--repeats N]`` runs the same compiled pipeline in turn with our runner,
each task in the environment of its image, and with the peer: kfp.local's own SubprocessRunner without a
virtual environment, its fastest. Each run is a process of its own, with kfp imported before the clock starts.
Each task's input is the output of the one before, so none is like another. The third row is ours again,
unchanged: every task from the cache.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from kfp import compiler, dsl
from results import publish

from trainwright.authoring import images

TASKS = 10
GOAL_S = 0.25

OURS = """
import json, resource, sys, time
from pathlib import Path
import kfp.local
from trainwright.local import runner
start = time.perf_counter()
outcome = runner.run(Path(sys.argv[1]), {}, runs_folder=Path(sys.argv[2]))
seconds = time.perf_counter() - start
assert outcome.exit_code == 0, outcome
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([seconds, peak / 1024]))
"""

PEER = """
import contextlib, io, json, resource, sys, time, warnings
from kfp import components, local
pipeline = components.load_component_from_file(sys.argv[1])
warnings.simplefilter("ignore")
local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[2])
start = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    pipeline()
seconds = time.perf_counter() - start
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([seconds, peak / 1024]))
"""


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def nothing(text: str) -> str:
    return text + "."


@dsl.pipeline(name="ten")
def ten() -> None:
    text = "start"
    for _ in range(TASKS):
        text = nothing(text=text).output


def measure(code: str, compiled: Path, folder: Path) -> tuple[float, float]:
    """Run the pipeline in a process of its own; return seconds a task, and the peak memory in MiB."""
    command = [sys.executable, "-c", code, str(compiled), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds / TASKS, peak


def main() -> int:
    """Measure in turn, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "kfp.local": [], "ours, cached": []}
    with tempfile.TemporaryDirectory(prefix="trainwright-task-overhead-") as name:
        compiled = Path(name) / "ten.yaml"
        compiler.Compiler().compile(ten, str(compiled))
        for turn in range(repeats):
            folder = Path(name) / str(turn)
            found["ours"].append(measure(OURS, compiled, folder / "ours"))
            found["kfp.local"].append(measure(PEER, compiled, folder / "peer"))
            found["ours, cached"].append(measure(OURS, compiled, folder / "ours"))
    medians = {way: statistics.median(seconds for seconds, _ in rows) for way, rows in found.items()}
    rows = []
    for way, measured in found.items():
        times = [seconds for seconds, _ in measured]
        peak = max(memory for _, memory in measured)
        ratio = medians[way] / medians["kfp.local"]
        figures = (medians[way], min(times), max(times))
        rows.append([way, *(f"{figure:.3f}" for figure in figures), f"{ratio:.2f}", f"{peak:.0f}"])
    line = f"task_overhead: {medians['ours']:.3f} s a task (goal {GOAL_S} s)"
    header = ("ten no-op tasks in a row", "s a task", "least", "most", "ratio", "peak MiB")
    return publish("task_overhead", header, rows, line, medians["ours"] <= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
