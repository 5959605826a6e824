"""Imports without garbage collection."""

import gc

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
