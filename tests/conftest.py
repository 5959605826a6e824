"""Fixtures of all tests. Stores are here, so that all folders of a process share one of each."""

import gc

from hypothesis import settings

gc.disable()  # the modules of tests and libraries leave no garbage, and the search for it takes a tenth

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

pytest_plugins = ["tests.storage.stores"]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
