"""What every room's tests may ask for. Stores are here, so that all rooms of a process share one of each."""

pytest_plugins = ["tests.storage.stores"]
