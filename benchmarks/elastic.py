"""How long an elastic training stands still when it loses a quarter of its processes.

``python benchmarks/elastic.py`` trains in 32 processes on 4 machines as pods of an elastic PyTorchJob do: an
agent for each machine, torchrun's c10d rendezvous with the settings of the job's manifest, gloo. Then one
machine is killed with its 8 processes, and the other 24 continue from the last checkpoint. The goal is that
the first new step ends within 5 minutes. The start of all 32 processes is measured beside it: what a restart
costs without elasticity, once there is another machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from results import publish

ROOT = Path(__file__).resolve().parents[1]
TORCH = ROOT / ".environments" / "torch" / "bin" / "python"
GOAL_S, MACHINES = 300.0, 4

RUN = """
import json, os, signal, sys, time
from pathlib import Path
from tests.ports import free_port
from tests.train import elastic
from tests.train.problems import ROWS, flights, write
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory

root, each = Path(sys.argv[1]), int(sys.argv[2])
write(root / "set", {name: flights(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())})
elastic.SECTIONS["resources"] = {"processes": 4 * each, "cpu": 4}
elastic.SECTIONS["training"] |= {"steps": 100_000, "batch_size": 4 * 8 * each}
folder, port = elastic.attempt(root / "set", root / "job"), free_port()
points = lambda: TrainingHistory.read(root / "job" / HISTORY_FILE).points
began = time.time()
kinds = {"processes": each, "last_call_s": 30}
machines = [elastic.machine(folder, port, hosts=not index, **kinds) for index in range(4)]
with elastic.killed_at_the_end(machines):
    elastic.await_that(lambda: max(elastic.sizes(root / "job"), default=0) >= 20, machines, 900)
    first = min(point.time_ms for point in points())
    killed = time.time()
    os.killpg(machines[3].pid, signal.SIGKILL)
    elastic.await_that(lambda: 3 * each in elastic.sizes(root / "job").values(), machines, 900)
    agreed = max(path.stat().st_mtime for path in (folder / "errors").glob("round-*"))
again = min(point.time_ms / 1000 for point in points() if point.time_ms / 1000 > agreed)
print(json.dumps({"start": first / 1000 - began, "agreed": agreed - killed, "step": again - killed}))
"""


def main() -> int:
    """Measure, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--processes", type=int, default=8, help="on each of the four machines")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-elastic-") as name:
        command = [str(TORCH), "-c", RUN, name, str(given.processes)]
        variables = {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, env=os.environ | variables, check=True, stdout=subprocess.PIPE, text=True
        )
    found = json.loads(done.stdout.splitlines()[-1])
    whole, fewer = MACHINES * given.processes, (MACHINES - 1) * given.processes
    rows = [
        ["loss noticed, machines agreed (30 s of it last call)", f"{found['agreed']:.0f} s"],
        [
            f"then {fewer} processes imported, restored, and ended a step",
            f"{found['step'] - found['agreed']:.0f} s",
        ],
        [f"from the kill to the next step, {fewer} processes", f"{found['step']:.0f} s"],
        [f"from the start of the agents to the first step, {whole} processes", f"{found['start']:.0f} s"],
    ]
    line = (
        f"elastic: {whole} to {fewer} processes in {found['step']:.0f} s (goal {GOAL_S:.0f} s), "
        f"a start of {whole} takes {found['start']:.0f} s"
    )
    return publish("elastic", ("a machine of four is killed", "time"), rows, line, found["step"] <= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
