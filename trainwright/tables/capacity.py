"""Warn, before a step reads its rows, that they will not fit the memory or the disk of this machine."""

import os
import shutil
import sys
from pathlib import Path

BYTES_PER_VALUE = 64
"""Memory of a value that is held, with its copies: benchmarks/evaluate.py takes 0.5 GiB for 8 million."""

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_GIB = 2**30


def warn_of_memory(step: str, values: int, hint: str) -> None:
    """Warn if the values that a step holds at once take more memory than the machine or its limit has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _MEMORY_LIMIT.read_text().strip() if _MEMORY_LIMIT.exists() else "max"
    memory = memory if limit == "max" else min(memory, int(limit))
    _warn(f"the rows that {step} holds", values * BYTES_PER_VALUE, memory, "of memory", hint)


def warn_of_disk(what: str, size: int, folder: Path, hint: str) -> None:
    """Warn if files of about this size do not fit the disk of a folder, which need not exist."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    _warn(what, size, shutil.disk_usage(there).free, f"free in {there}", hint)


def _warn(what: str, needed: int, available: int, of: str, hint: str) -> None:
    if needed > available:
        sizes = f"about {needed / _GIB:,.1f} GiB, there are {available / _GIB:,.1f} GiB {of}"
        sys.stderr.write(f"warning: {what} take {sizes}. {hint}\n")
