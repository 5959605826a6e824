"""Import large libraries with less garbage collection."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without garbage collection: thousands of modules leave none, and it takes a third of the time.

    What was imported is left out of later collections too, also of the one at the end of the process.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def collect_rarely() -> None:
    """Collect garbage rarely in this process, and not at its end: a fourth of what imports cost.

    For a process of our own that imports most of its libraries when it needs them.
    """
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
