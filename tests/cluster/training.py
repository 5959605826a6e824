"""A training of a few steps for the pods of a scenario: it counts, keeps count on the volume, and can fail.

``training.py FOLDER HOW STEPS PAUSE_S``. HOW is a list of words joined by ``+``: ``talks`` sums over all
processes at each step, ``fails`` raises in the last process, ``fills`` takes memory until it is killed, and
``returns`` goes on until it was begun anew, and for as many steps from there.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trainwright.launch.agent.rank_errors import reported_rank
from trainwright.launch.job_directory import Completion

_FAILS_AT = 3
_MIB = 2**20


def main(folder: Path, how: set[str], steps: int, pause_s: float) -> None:
    """Take the steps that are left, and write the marker."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    state = folder.parent.parent / "state.json"
    begun = json.loads(state.read_text())["step"] if state.exists() else 0
    total, held = _group() if "talks" in how else None, []
    if "returns" in how:
        steps = begun + steps if begun else sys.maxsize
    for step in range(begun + 1, steps + 1):
        if total is not None:
            _sum(total, world)
        if "fails" in how and step >= _FAILS_AT and rank == world - 1:  # it may begin where rank 0 is
            raise ValueError("row 7 has no label")
        if "fills" in how:
            held.append(bytes(os.urandom(1024)) * (64 * _MIB // 1024))
        if rank == 0:
            _write(state, {"step": step})
        time.sleep(pause_s)
    if rank == 0:
        outputs = {"begun": str(begun), "steps": str(steps), "world": str(world)}
        Completion(attempt=folder.name, outputs=outputs).write(folder)


def _group() -> Any:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    return torch.ones(1)


def _sum(one: Any, world: int) -> None:
    from torch import distributed

    found = one.clone()
    distributed.all_reduce(found)
    if int(found.item()) != world:
        raise RuntimeError(f"the sum over {world} processes is {found.item():g}")


def _write(path: Path, body: dict[str, int]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(body))
    fresh.replace(path)


if __name__ == "__main__":
    told = sys.argv[1:]
    with reported_rank(Path(told[0]), int(os.environ["RANK"])):
        main(Path(told[0]), set(told[1].split("+")), int(told[2]), float(told[3]))
