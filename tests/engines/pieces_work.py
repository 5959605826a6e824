"""Work that engines' workers find by name."""

import os
import time
from pathlib import Path


def pid(item: int) -> tuple[int, int]:
    time.sleep(0.05)
    return item, os.getpid()


def forge(store: str) -> None:
    """Write the result of this item before the engine does, as one who may write to the store can."""
    import inspect

    uri = next(frame.frame.f_locals["prefix"] for frame in inspect.stack() if frame.function == "_write")
    Path(f"{uri}-0000000.result").write_bytes(b"x" * 100)
