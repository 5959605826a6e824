"""What a training frees on the CPU is kept for its next step, which needs as much again."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Names of settings in ``malloc.h`` of the GNU C library."""

_NEVER = -1


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for whoever asks next in this process.

    It would give a large tensor's memory back to the kernel when the tensor goes, and the next step would get
    it again page by page, each filled with zeros: up to a tenth of a step's time. What is kept is about what
    was needed at once. Other C libraries than GNU's stay as they are.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory, and give back at the end what is free then: other kinds of work come next."""
    keep_freed_memory()
    try:
        yield
    finally:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
