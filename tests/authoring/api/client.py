"""Asking the stand-in: as the library does, and as somebody at a terminal does."""

import os
import subprocess
import sys
from pathlib import Path

from trainwright.retries import RetryPolicy

QUICK = RetryPolicy(outage_s=60.0, first_s=0.001, longest_s=0.01)
"""The retry policy of the library with pauses a thousand times shorter."""

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
    """A clock that advances only when the library waits; also the event that such a wait listens to."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    @property
    def now(self) -> float:
        """Seconds that were waited."""
        return sum(self.waits)

    def monotonic(self) -> float:
        """Return the time."""
        return 1.0 + self.now

    def wait(self, seconds: float) -> bool:
        """Advance the clock."""
        self.waits.append(seconds)
        return False
