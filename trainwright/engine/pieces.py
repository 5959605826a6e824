"""Do work on pieces of data by the engine that the section ``engine`` names."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

from trainwright import storage
from trainwright.artifacts import SnapshotFile
from trainwright.engine.beam import run
from trainwright.errors import InputError
from trainwright.experiment import DataEngine
from trainwright.tables import Piece
from trainwright.tables.workers import Pool, TaskFailure

Item = TypeVar("Item")
Result = TypeVar("Result")

FAN_IN = 32
"""Partial results that are merged at a time."""

_MIN_TASKS = 32
"""A task is one piece, and of more than twice as many pieces a group."""


def map_pieces(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    engine: DataEngine,
    step: str,
    *,
    store: str = "",
    **pool: Any,
) -> Iterator[Result]:
    """Do work on all items and yield the results in the order of the items.

    Args:
        work: Does one item; it may do it twice, where a worker is lost. On an engine of other machines, it is
            a function of a module, or a ``partial`` of one.
        step: Fills ``{step}`` in the engine's options.
        store: Where workers leave results unless ``engine.store`` says so.
        pool: Settings of the local processes: those of :class:`trainwright.tables.workers.Pool`.

    Raises:
        TrainwrightError: The error of the first item that failed, with its class and text.
        InputError: The engine does not know an option, or its workers have other packages than this step.
        DependencyError: The engine is absent, rejects the job, or lost its master or too many workers.
    """
    if not items:
        return
    if engine.name == "local":
        yield from Pool(work, engine.workers, **pool).run(items)
        return
    for result in run(work, items, engine, step, engine.store or store):
        if isinstance(result, TaskFailure):
            raise result.error()
        yield result


def map_merge(
    work: Callable[[Item], Result],
    merge: Callable[[Iterable[Result]], Result],
    items: Sequence[Item],
    engine: DataEngine,
    step: str,
    *,
    store: str = "",
    **pool: Any,
) -> Result:
    """Do work on all items and merge the results in the order of the items, in groups fixed by their number.

    So one process, several and every engine give the same bytes. ``merge`` gets at most :data:`FAN_IN`
    results; without items it gets none. The other arguments are those of :func:`map_pieces`.
    """
    size = max(1, min(FAN_IN, len(items) // _MIN_TASKS))
    tasks = [items[start : start + size] for start in range(0, len(items), size)]
    rows = map_pieces(partial(_merge_task, work, merge), tasks, engine, step, store=store, **pool)
    count = len(tasks)
    while count > 1:
        rows, count = _merge_groups(rows, merge), -(-count // FAN_IN)
    return next(rows) if tasks else merge(())


def _merge_task(
    work: Callable[[Item], Result], merge: Callable[[Iterable[Result]], Result], task: Sequence[Item]
) -> Result:
    return merge(map(work, task)) if len(task) > 1 else work(task[0])


def _merge_groups(rows: Iterator[Result], merge: Callable[[Iterable[Result]], Result]) -> Iterator[Result]:
    for first in rows:
        yield merge(itertools.chain([first], itertools.islice(rows, FAN_IN - 1)))


def require_reachable(uris: Iterable[str], engine: DataEngine, key: str) -> None:
    """Reject files in this step's own folder, which the manifest names relative to it.

    Raises:
        InputError: The engine's workers are on other machines, and do not reach a file.
    """
    found = next((uri for uri in uris if "://" not in uri and not uri.startswith("/")), None)
    if found is not None and engine.is_remote:
        raise InputError(
            f"{engine.name} works on other machines, which do not reach {found} in this step's folder",
            where="engine.name",
            hint=f"Name a bucket, or a folder that all machines mount, in {key}.",
        )


def reachable(found: Iterable[Piece], artifact: str) -> list[Piece]:
    """Return pieces of an artifact's files with their URIs, pinned in the version that the store has now.

    An engine's workers then check its size and the checksums of its pages; on a mounted folder, its digest.
    """

    @cache
    def reached(entry: SnapshotFile) -> SnapshotFile:
        entry = replace(entry, companion=entry.companion and reached(entry.companion))
        if entry.in_place:
            return entry
        uri = storage.join(artifact, entry.uri)
        return replace(entry, uri=uri, version=storage.head(uri).version if "://" in artifact else "")

    return [replace(piece, entry=reached(piece.entry)) for piece in found]
