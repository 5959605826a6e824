"""Fixtures of all tests. Stores are here, so that all folders of a process share one of each."""

import gc

gc.disable()  # the modules of tests and libraries leave no garbage, and the search for it takes a tenth

pytest_plugins = ["tests.storage.stores"]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
