"""Kills at random steps and ranks, and what the training is afterwards.

``python -m tests.train.kills --count 200``, in the environment torch, is the nightly form. Every state that
is gone on from, and the last, must be the one that an undisturbed training has at that step:
weights, optimizer, the samples that come next, and what else is saved.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.train.checkpointed import Note, Options, job, live, notes

EVERY = 10
FARTHEST = 25
"""Most steps between a start and its kill."""

WHOLE = 3
"""Usually, every third kill takes the whole job with it."""

ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Report:
    """What a training came to that was killed again and again.

    Attributes:
        wrong: What is not as in the undisturbed training.
        lost: Steps that each kill cost.
        recovery_s: Seconds from each kill to the first step after it.
    """

    wrong: list[str]
    lost: list[int]
    recovery_s: list[float]


def kill_often(
    folder: Path, count: int, seed: int, *, forked: bool = False, processes: int = 2, whole: int = WHOLE
) -> Report:
    """Train with kills at random, and compare with the same training left alone.

    Args:
        folder: An empty folder.
        count: How many kills.
        seed: Of the steps and ranks.
        forked: Start each life from a fork server, which takes a tenth of the time; else the agent of a job
            starts them, and is killed itself at some of the kills.
        processes: How many.
        whole: Every so many kills, one takes the whole job with it.
    """
    draw = random.Random(seed)  # noqa: S311
    kills = [[draw.randint(1, FARTHEST), draw.randrange(processes)] for _ in range(count)]
    for index in range(whole - 1, count, whole) if not forked else ():
        kills[index][1] = -1
    steps = EVERY * (count + 2)
    alone = Options(str(folder / "alone" / "home"), str(folder / "alone" / "notes"), steps, EVERY)
    assert live(alone, processes) == [0] * processes
    killed = Options(str(folder / "home"), str(folder / "notes"), steps, EVERY, kills)
    for attempt in range(count + 1):
        if forked:
            done = not any(live(killed, processes, grace_s=0.2))
        else:
            command = job(killed, f"{attempt:04}", restarts=count, processes=processes)
            done = subprocess.run(command, env=os.environ | ENVIRONMENT, check=False).returncode == 0
        if done:
            break
    return compare(folder / "alone" / "notes", folder / "notes", processes)


def compare(alone: Path, killed: Path, processes: int) -> Report:
    """Compare what the processes of two trainings noted."""
    expected = {note.step: note.digest for note in notes(alone) if note.what != "stepped"}
    wrong, seen = [], notes(killed)
    for rank in range(processes):
        wrong += [
            f"rank {rank} {note.what} step {note.step} with another state"
            for note in notes(killed, rank)
            if note.what != "stepped" and note.digest != expected[note.step]
        ]
    if max(note.step for note in seen) != max(expected):
        wrong.append(f"ended at step {max(note.step for note in seen)}")
    lost, recovery = [], []
    for path in sorted(killed.glob("killed-*")):
        step, _, when = path.read_text().split()
        resumed = _after(seen, "resumed", float(when))
        lost.append(int(step) - resumed.step)
        recovery.append(_after(seen, "stepped", float(when)).time - float(when))
    return Report(wrong, lost, recovery)


def _after(seen: list[Note], what: str, when: float) -> Note:
    return next(note for note in seen if note.what == what and note.time > when)


def main() -> int:
    """Kill as often as asked for, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-kills-") as name:
        report = kill_often(Path(name), given.count, given.seed)
    slowest = max(report.recovery_s)
    sys.stdout.write(
        "\n".join(
            [
                *report.wrong,
                f"{len(report.lost)} kills, {len(report.wrong)} states differ; steps lost: at most "
                f"{max(report.lost)} at a save every {EVERY}; {slowest:.1f} s to the next step at most",
            ]
        )
        + "\n"
    )
    return 1 if report.wrong or len(report.lost) != given.count else 0


if __name__ == "__main__":
    sys.exit(main())
