"""When to save: at the same steps on every process, without a word between them at every step."""

import time
from collections.abc import Callable

from trainwright.experiment.checkpoints import Checkpointing


class Schedule:
    """Knows the steps at which the processes look whether it is time to save.

    By steps, every look is a save. By time, the first process's clock decides, and the looks come the denser
    the nearer that time is: each is half-way there, by the pace since the last one. So a look is rare, and a
    pace that changes is noticed.

    Args:
        settings: How often.
        clock: Gives seconds.
    """

    def __init__(self, settings: Checkpointing, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_steps, self._every_s, self._clock = settings.every_steps, settings.every_s, clock
        self.begin(0)

    def begin(self, step: int) -> None:
        """Start from a step that needs no saving."""
        self._saved_at = self._looked_at = self._clock()
        self._looked, self._next = step, step + 1

    def looks(self, step: int) -> bool:
        """Tell whether the processes look after a step; all give the same answer."""
        return step % self._every_steps == 0 if self._every_steps else step >= self._next

    def ask(self, step: int) -> tuple[int, int]:
        """Say whether to save after a step, and after how many more to look again, by this clock."""
        if self._every_steps:
            return 1, self._every_steps
        now = self._clock()
        pace = (now - self._looked_at) / max(1, step - self._looked)
        left = self._every_s - (now - self._saved_at)
        due, half = left <= 0, (self._every_s if left <= 0 else left) / 2
        return int(due), max(1, int(half / max(pace, 1e-9)))

    def agreed(self, step: int, gap: int, *, saved: bool) -> None:
        """Take note of what the processes agreed on."""
        self._looked, self._looked_at, self._next = step, self._clock(), step + gap
        if saved:
            self._saved_at = self._looked_at
