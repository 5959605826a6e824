"""How long a training stands still when one of its processes, or all of it, is killed.

``python benchmarks/recovery.py [--kills N]`` runs a small training as a job of two processes, kills it at
random steps and ranks, every third time with the agent that looks after it, and measures from each kill to
the end of the first step after it. Every state after a kill is compared with that of the same training left
alone. The peer is torchrun as it comes, with its store shared between restarts (pytorch#135712), in jobs of
one kill each.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import publish

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".environments" / "torch" / "bin" / "python"
GOAL_S = 15.0
PATIENCE_S = 60.0

OURS = """
import dataclasses, json, sys
from pathlib import Path
from tests.train.kills import kill_often
report = kill_often(Path(sys.argv[1]), int(sys.argv[2]), seed=11)
print(json.dumps(dataclasses.asdict(report)))
"""


def ours(folder: Path, kills: int) -> tuple[list[float], list[str]]:
    """Return the seconds that each kill cost, and what was wrong afterwards."""
    command = [str(PYTHON), "-c", OURS, str(folder), str(kills)]
    variables = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return said["recovery_s"], said["wrong"]


def peer(folder: Path, rank: int) -> float | None:
    """Return the seconds that a kill cost under torchrun as it comes; None if it did not recover in time."""
    sys.path.insert(0, str(ROOT))
    options = {
        "home": str(folder / "home"),
        "notes": str(folder / "notes"),
        "steps": 40,
        "kills": [[15, rank]],
    }
    (folder / "notes").mkdir(parents=True)
    command = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [
        "--max-restarts=3",
        "-m",
        "tests.train.checkpointed",
        str(folder / "notes"),
        json.dumps(options),
    ]
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}
    process = subprocess.Popen(
        command,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    notes, end = folder / "notes", time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    killed = next(notes.glob("killed-*"), None)
    if killed is None:
        return None
    when = float(killed.read_text().split()[2])
    lines = [line.split() for line in (notes / "rank-0").read_text().splitlines()]
    stepped = [float(line[3]) - when for line in lines if line[0] == "stepped" and float(line[3]) > when]
    return stepped[0] if stepped and stepped[0] <= PATIENCE_S else None


def main() -> int:
    """Measure, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--peer", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-recovery-") as name:
        found, wrong = ours(Path(name) / "ours", given.kills)
        others = [peer(Path(name) / f"peer-{turn}", turn % 2) for turn in range(given.peer)]
    recovered = [seconds for seconds in others if seconds is not None]
    rows = [_row("ours", found, given.kills), _row("torchrun as it comes", recovered, given.peer)]
    in_time = sum(seconds <= GOAL_S for seconds in found)
    line = (
        f"recovery: {in_time} of {given.kills} kills cost at most {GOAL_S:g} s, {len(wrong)} states differ "
        f"(goal {given.kills} of {given.kills}, 0)"
    )
    met = in_time == given.kills and not wrong
    header = ("from the kill to the next step", "recovered", "median s", "most s")
    return publish("recovery", header, rows, line, met)


def _row(name: str, seconds: list[float], kills: int) -> list[str]:
    figures = [statistics.median(seconds), max(seconds)] if seconds else []
    return [name, f"{len(seconds)} of {kills}", *(f"{figure:.1f}" for figure in figures)]


if __name__ == "__main__":
    sys.exit(main())
