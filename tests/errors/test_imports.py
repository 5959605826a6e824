"""Imports with less garbage collection."""

import gc
import subprocess
import sys

import pytest

from trainwright.imports import uncollected


def fail_to_import() -> None:
    with uncollected():
        assert not gc.isenabled()
        raise ImportError


def test_collection_goes_on_after_imports_also_after_a_failed_one_and_passes_over_them() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ImportError):
        fail_to_import()
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen


def test_process_that_collects_rarely_passes_over_all_objects_at_its_end() -> None:
    code = """
import atexit, gc
from trainwright.imports import collect_rarely
atexit.register(lambda: print(gc.get_threshold()[0], len(gc.get_objects()) < 100 < gc.get_freeze_count()))
collect_rarely()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "10000 True\n"
