"""Import large libraries without garbage collection."""

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
