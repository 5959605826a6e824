"""What following jobs on a cluster costs, and whether anything is missed: against the stand-in API server.

``python benchmarks/launcher_watch.py [--jobs N] [--idle SECONDS] [--skip-kill]`` measures

- what a launcher adds to the two calls that submission takes: from its start to the job that is seen to run;
- the memory and the processor that its process takes while the job runs and nothing happens;
- jobs that are followed at once, each of which ends at a moment of its own, half of them gone a second later:
  how many ends were missed. The peer looks as kubeflow-training's ``wait_for_job_conditions`` does: every 15
  seconds, at the job alone, and gives up at the first call that fails;
- from SIGTERM to the request that deletes the job: a step that is terminated has about a second;
- from the kill of a worker's pod to the first step after it, in a job of two nodes that really trains.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from results import publish

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".environments" / "launcher" / "bin" / "python"
JOBS, IDLE_S = 200, 30.0
ADDED_S, MEMORY_MIB, CPU_SHARE, RECOVERY_S, STOP_S = 1.0, 150.0, 0.01, 15.0, 0.5


def ask(what: str, *arguments: object) -> dict[str, float]:
    """Run one measurement in a process of its own under the launcher's environment."""
    command = [str(PYTHON), "-m", "benchmarks.steps.launcher_watch", what, *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Measure, print the table, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-launcher-") as name:
        folders = [Path(name) / str(number) for number in range(2 * given.repeats + given.kills + 4)]
        for folder in folders:
            folder.mkdir()
        started = [ask("start", folders.pop()) for _ in range(given.repeats)]
        idle = ask("idle", folders.pop(), given.idle)
        many = ask("many", folders.pop(), given.jobs)
        peer = ask("peer", folders.pop(), given.jobs)
        stops = [ask("stop", folders.pop())["seconds"] for _ in range(given.repeats)]
        kills = [ask("kill", folders.pop())["seconds"] for _ in range(given.kills)]
    added = statistics.median(entry["added_s"] for entry in started)
    rows = [
        ["submission to running, beyond the API's own time", f"{added:.2f} s", f"{ADDED_S:g} s"],
        ["memory while it waits", f"{idle['memory_mib']:.0f} MiB", f"{MEMORY_MIB:g} MiB"],
        ["share of a core while it waits", f"{idle['cpu']:.2%}", f"{CPU_SHARE:.0%}"],
        [f"ends missed of {given.jobs} jobs at once", f"{many['missed']:.0f}", "0"],
        ["the same, polled every 15 s", f"{peer['missed']:.0f}", ""],
        ["end of a job to its being known, most", f"{many['latest_s']:.2f} s", ""],
        ["the same, polled every 15 s", f"{peer['latest_s']:.2f} s", ""],
        ["SIGTERM to the deletion of the job, most", f"{max(stops):.2f} s", f"{STOP_S:g} s"],
        ["kill of a worker to the next step, most", f"{max(kills):.1f} s", f"{RECOVERY_S:g} s"],
    ]
    met = (
        added <= ADDED_S
        and idle["memory_mib"] <= MEMORY_MIB
        and idle["cpu"] <= CPU_SHARE
        and many["missed"] == 0
        and max(stops) <= STOP_S
        and max(kills) <= RECOVERY_S
    )
    line = (
        f"launcher_watch: {added:.2f} s to running, {idle['memory_mib']:.0f} MiB, "
        f"{idle['cpu']:.2%} of a core, "
        f"{many['missed']:.0f} of {given.jobs} ends missed, {max(stops):.2f} s from SIGTERM to the deletion, "
        f"{max(kills):.1f} s from a kill to the next step "
        f"(goal {ADDED_S:g} s, {MEMORY_MIB:g} MiB, {CPU_SHARE:.0%}, 0, {STOP_S:g} s, {RECOVERY_S:g} s)"
    )
    return publish("launcher_watch", ("a launcher on a cluster", "measured", "goal"), rows, line, met)


if __name__ == "__main__":
    sys.exit(main())
