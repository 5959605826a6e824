"""Asking the stand-in: as the library does, and as somebody at a terminal does."""

import os
import subprocess
import sys
from pathlib import Path

from trainwright.authoring.submission.connection import CallRetries

QUICK = CallRetries(budget_s=60.0, first_s=0.001, longest_s=0.01)
"""As patient as it is, and a thousand times as quick."""

ROOT = Path(__file__).resolve().parents[3]
START = "from trainwright.cli.app import main; main()"


def command(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start ``trainwright`` in a folder."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Clock:
    """A clock that goes on only when somebody waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    @property
    def now(self) -> float:
        """Seconds that were waited."""
        return sum(self.waits)

    def patience(self, budget_s: float, **more: float) -> CallRetries:
        """Return a patience that goes by this clock."""
        return CallRetries(budget_s=budget_s, now=lambda: self.now, sleep=self.waits.append, **more)
