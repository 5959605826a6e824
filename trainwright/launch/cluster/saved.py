"""What a training has saved below its home: read from the files alone, since this room knows no tensors."""

from pathlib import Path

_COMMITTED = "checkpoints/step-*/manifest.json"
"""The manifest of a checkpoint is written last: without it there is none."""


def saved_s(home: Path) -> float:
    """Return when a training last committed a checkpoint, in seconds since 1970; 0 if it never did."""
    times = []
    for path in home.glob(_COMMITTED):
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # tidied away in between
            continue
    return max(times, default=0.0)
