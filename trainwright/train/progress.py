"""Where a training stands: a file for whoever watches it, and a line in the log."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from trainwright.artifacts import Progress
from trainwright.train.loop import Step

_EVERY_S = 10.0


class Reporter:
    """Writes ``progress.json`` and a line of the log, at most every 10 seconds.

    Args:
        folder: The attempt's folder.
        leads: Whether this process is the one that writes.
    """

    def __init__(self, folder: Path, *, leads: bool) -> None:
        self._folder, self._leads = folder, leads
        self._start = self._last = time.monotonic()

    def saw(self, step: Step) -> None:
        """Take note of a step; write if it is time to, or if it was the last one."""
        now = time.monotonic()
        last = step.number == step.total
        if not self._leads or (now - self._last < _EVERY_S and not last):
            return
        self._last = now
        speed = step.samples / max(now - self._start, 1e-9)
        rest_s = (now - self._start) / step.number * (step.total - step.number)
        Progress(
            step=step.number,
            total=step.total,
            epoch=step.epoch,
            loss=step.loss,
            samples_per_s=round(speed, 1),
            eta_s=round(rest_s, 1),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        ).write(self._folder)
        sys.stderr.write(
            f"step {step.number:,} of {step.total:,}, epoch {step.epoch}, loss {step.loss:.4f}, "
            f"{speed:,.0f} rows/s, {rest_s:,.0f} s left\n"
        )
