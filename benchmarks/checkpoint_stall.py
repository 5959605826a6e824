"""What a checkpoint costs a training that saves every 100 steps.

``python benchmarks/checkpoint_stall.py [--blocks N]`` trains one network in two processes, in blocks of 100
steps: without a save; with ours at its beginning, which goes on beside the steps; and with torch's plain
``dcp.save``, which the steps wait for. Blocks of the three kinds take turns in one run, so that whatever else
the machine does falls on all of them.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import publish

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".environments" / "torch" / "bin" / "python"
EVERY, BATCH, FEATURES, HIDDEN = 100, 4096, 14, (1024, 512)
GOAL = 0.02
KINDS = ("no save", "ours", "dcp.save")


def worker(folder: Path, blocks: int, size: int) -> None:
    """Train in one of the processes; the first one prints seconds a block and seconds of standstill."""
    import torch
    from torch.distributed import checkpoint as dcp

    from trainwright.experiment import ResolvedTraining
    from trainwright.experiment.training import Checkpointing
    from trainwright.train.checkpoint import Checkpointer
    from trainwright.train.checkpoint.state import TrainState, tensors_of
    from trainwright.train.feeding.loader import Batch
    from trainwright.train.process_group import process_group
    from trainwright.train.step import Stepper

    torch.set_num_threads(1)
    with process_group(0) as group:
        each = size // group.size
        x = torch.randn(each, FEATURES)
        batch = Batch((x,), x.sum(1), torch.ones(each), torch.arange(each))
        training = ResolvedTraining(epochs=1, batch_size=size, learning_rate=1e-3)
        stepper = Stepper(_module(), _Squared(), training, group)
        state = TrainState(stepper.module, stepper.optimizer)
        kept = Checkpointer(Checkpointing(every_steps=EVERY), folder / "home", "0001", {}, group)
        kept.resume(state)
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for block in range(3 * blocks + 3):
            kind = KINDS[block % 3]
            torch.distributed.barrier()
            start, stall = time.perf_counter(), 0.0
            if kind == "ours":
                before = kept.stall_s
                kept.after_step(state, 0.0, last=False)
                stall = kept.stall_s - before
            if kind == "dcp.save":
                dcp.save(tensors_of(state), checkpoint_id=folder / "plain" / str(block))
                stall = time.perf_counter() - start
            for _ in range(EVERY):
                stepper.apply(stepper.gradients(batch, size, stop=False), 1e-3)
                state.step += 1
            if block >= 3:  # the first three warm up
                found[kind].append((time.perf_counter() - start, stall))
            if kind == "no save":
                state.step += EVERY - state.step % EVERY
            shutil.rmtree(folder / "plain", ignore_errors=True)
        kept.after_step(state, 0.0, last=True)
        total = sum(value.nbytes for value in tensors_of(state).values())
    if os.environ["RANK"] == "0":
        print(json.dumps({"found": found, "bytes": total}), flush=True)


def _module() -> Any:
    from torch import nn

    widths = (FEATURES, *HIDDEN)
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1), nn.Flatten(0))


class _Squared:
    """The architecture of a network that is there already, as far as training needs one."""

    def loss(self, output: Any, target: Any) -> Any:
        return (output - target).square()


def main() -> int:
    """Measure, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--worker", type=Path)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.blocks, given.batch)
        return 0
    with tempfile.TemporaryDirectory(prefix="trainwright-stall-") as name:
        command = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        command += ["--worker", name, "--blocks", str(given.blocks), "--batch", str(given.batch)]
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
        done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    rows, shares = [], {}
    bare = statistics.median(seconds for seconds, _ in said["found"]["no save"])
    for kind in KINDS:
        seconds = statistics.median(seconds for seconds, _ in said["found"][kind])
        stall = statistics.median(stall for _, stall in said["found"][kind])
        shares[kind] = (stall / bare, seconds / bare - 1)
        rows.append(
            [
                kind,
                f"{seconds:.2f}",
                f"{stall * 1000:.0f}",
                f"{shares[kind][0]:.2%}",
                f"{shares[kind][1]:.2%}",
            ]
        )
    header = (
        f"{EVERY} steps, {said['bytes'] / 2**20:.0f} MiB saved",
        "s",
        "standstill ms",
        "of the time",
        "longer in all",
    )
    stall, longer = shares["ours"]
    line = (
        f"checkpoint_stall: {stall:.2%} of the time stood still, {longer:.2%} longer in all "
        f"(goal below {GOAL:.0%})"
    )
    return publish("checkpoint_stall", header, rows, line, stall < GOAL and longer < GOAL)


if __name__ == "__main__":
    sys.exit(main())
