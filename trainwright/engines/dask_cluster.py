"""Do work on the workers of a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

from trainwright.engines.tasks import Task, installed_versions, lost, require_same_versions
from trainwright.errors import DependencyError
from trainwright.experiment import Engine

_CONNECT_S = 60


def run(
    work: Callable[[Any], Any],
    items: Sequence[Any],
    engine: Engine,
    step: str,
    store: str,  # noqa: ARG001 - Dask itself carries results
) -> Iterator[Any]:
    """Yield the result, or the failure, of each item in their order.

    Dask gives the tasks of a lost worker to others, three times at most.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise DependencyError(
            f"Dask is not installed here: {error}", where="engine.name", hint="Install distributed."
        ) from None
    address = str(engine.address).replace("{step}", step)
    name = f"Dask at {address}"
    try:
        with Client(address, timeout=_CONNECT_S, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=_CONNECT_S)
            for worker, versions in client.run(installed_versions).items():
                require_same_versions(versions, installed_versions(), worker)
            task = client.scatter(Task(work, installed_versions()), broadcast=True, hash=False)
            futures = client.map(_call, items, task=task, pure=False)
            while futures:
                yield futures.pop(0).result()
    except (TimeoutError, OSError, CancelledError, KilledWorker) as error:
        raise lost(name, error) from error


def _call(item: Any, task: Task) -> Any:
    return task(item)
