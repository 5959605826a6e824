"""One process of a job that grows trees, and may be killed."""

import os
import signal
from pathlib import Path
from typing import Any

import torch

from tests.train.problems import resolved, source
from trainwright.errors import reported
from trainwright.experiment import Trees
from trainwright.train.loop import StepReport
from trainwright.train.process_group import process_group
from trainwright.train.trainers import TrainingRows
from trainwright.train.trees import train_trees


class Killing:
    """Kills its process after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: StepReport) -> None:
        if step.number == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def node(folder: Path, home: Path, sections: dict[str, Any]) -> None:
    """Grow trees, as one process of a job."""
    torch.set_num_threads(1)
    with reported("test"), process_group(0) as group:
        mine = group.rank == sections.get("killed", 0)
        watchers = [Killing(sections["kill"])] if mine and "kill" in sections else []
        asked = resolved(**sections["training"])
        prepared = TrainingRows.of(source(folder), Trees().encoding, asked, home, group)
        trained = train_trees(prepared, Trees(**sections["network"]), watchers)
        raw = bytes(trained.booster.save_raw("ubj"))
        (home / f"out-{group.rank}.ubj").write_bytes(raw)
