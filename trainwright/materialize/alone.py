"""One apply at a time: Feast reads a registry, changes it and writes it back, so of two one would be lost."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainwright.errors import TransientError
from trainwright.featurestore import SETTINGS
from trainwright.storage.lease import held

BUCKETS = ("gs://", "s3://")
"""Registry files that our own storage reads and leases; others are Feast's alone."""

_LEASE_S = 60
_PAUSE_S = 0.2


@contextmanager
def alone(folder: Path, settings: Any, wait_s: float) -> Iterator[None]:
    """Be the only one who applies to a registry; wait for others.

    On one machine a lock on the repository's settings does it, and leaves no file behind. A registry in a
    bucket has a lease beside it as well, because whoever writes it may be anywhere. A SQL registry has no
    more than the lock: it changes by the row.

    Args:
        folder: The repository.
        settings: Its settings.
        wait_s: How long to wait for others.

    Raises:
        TransientError: Others were applying all this time.
    """
    with (folder / SETTINGS).open() as file:
        _lock(file.fileno(), folder, wait_s)
        registry = settings.registry
        if registry.registry_type == "file" and registry.path.startswith(BUCKETS):
            with held(f"{registry.path}.lease", lease_s=_LEASE_S, wait_s=wait_s):
                yield
        else:
            yield


def _lock(descriptor: int, folder: Path, wait_s: float) -> None:
    """Lock an open file until it is closed."""
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TransientError(
                    f"another apply has been under way here for the {wait_s:.0f} s that were waited",
                    where=str(folder),
                    hint="Run it again when the other has ended; if it changed anything, make a new plan.",
                ) from None
            time.sleep(_PAUSE_S)
        except OSError:
            return  # a file system that knows no locks, or none on files that are only read
        else:
            return
