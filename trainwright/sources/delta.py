"""Delta tables, pinned by version: ``deltalake`` reads the log, our own storage the files.

The log is copied into a temporary folder, from the last checkpoint on, and read there. So every file is read
with the same credentials, retries and access limits. See ``docs/decisions/0015-kept-readers.md``.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Data
from trainwright.sources.lake import LakeFile, LakeSources, entries_of, with_checksums
from trainwright.sources.parts import pinned, unpinned
from trainwright.storage import Access, fetch, join, list_files, redacted

if TYPE_CHECKING:
    from deltalake import DeltaTable

_PIN = "version"
_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True)
class _State:
    """One version of a table."""

    version: int
    schema: pa.Schema
    files: tuple[LakeFile, ...]


def list_delta(
    source: str, data: Data, access: Access, inspect: Callable[[Sequence[SourceFile]], None] | None = None
) -> Listing:
    """List the files of a Delta table's version: the pinned one, ``data.version``, or the last.

    Raises:
        InputError: There is no such table or version, or it uses an unsupported feature.
        DependencyError: The package for Delta tables is not installed.
    """
    root, pin = unpinned(source.rstrip("/"), _PIN)
    state = _read_log(root, pin or data.version or "", access)
    entries = entries_of(root, [file.uri for file in state.files], access)
    if inspect is not None:
        inspect(entries)
    files = with_checksums(entries, data.remember)
    return Listing(source=pinned(root, _PIN, str(state.version)), files=files)


def open_delta(listing: Listing, data: Data, access: Access) -> LakeSources:
    """Open the version of a Delta table that was listed."""
    root, pin = unpinned(listing.source, _PIN)
    state = _read_log(root, pin, access)
    return LakeSources(state.files, listing.files, state.schema, data.shard_rows, access)


def _read_log(root: str, wanted: str, access: Access) -> _State:
    if wanted and not wanted.isdigit():
        raise InputError(
            f"{wanted!r:.80} is no version of a Delta table", where="data.version", hint="It is a number."
        )
    with _log_of(root, int(wanted) if wanted else None, access) as (table, version):
        _require_readable(table, root)
        actions = pa.table(table.get_add_actions(flatten=False))
        names = table.metadata().partition_columns
        files = tuple(
            LakeFile(_place(root, row["path"]), {name: row["partition"][name] for name in names})
            for row in actions.to_pylist()
        )
        return _State(version, pa.schema(table.schema().to_arrow()), files)


def _place(root: str, path: str) -> str:
    """Return a file's URI; :func:`entries_of` checks that it is in the folder."""
    name = unquote(path)
    return name if "://" in name or name.startswith("/") else join(root, *name.split("/"))


@contextmanager
def _log_of(root: str, wanted: int | None, access: Access) -> "Iterator[tuple[DeltaTable, int]]":
    """Copy the needed part of the log, and open it."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise DependencyError(
            f"a Delta table needs a package that is not here: {error}",
            where=root,
            hint="Install the extra: pip install 'trainwright[delta]'; in a pipeline, use the image ingest.",
        ) from None
    entries = _needed(root, wanted, access)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / _LOG
        log.mkdir()
        for name, entry in entries.items():
            fetch(entry, log / name, access)
        try:
            table = DeltaTable(folder, version=wanted)
        except (DeltaError, ValueError, OSError) as error:
            said = redacted(str(error)).replace(folder, "")
            raise InputError(
                f"the log of this Delta table cannot be read: {said:.300}",
                where=root,
                hint="Name the folder that holds _delta_log, or another version.",
            ) from None
        yield table, int(table.version())


def _needed(root: str, wanted: int | None, access: Access) -> dict[str, SourceFile]:
    """Return the files of the log, by name, from the last checkpoint up to a version."""
    try:
        found = list_files(join(root, _LOG), (".json", ".parquet"), access)
    except InputError:
        raise InputError(
            f"expected a Delta table, found no {_LOG} folder",
            where=root,
            hint="Name the folder that holds it.",
        ) from None
    named = {entry.uri.rsplit("/", 1)[-1]: entry for entry in found}
    commits = {int(match[1]): name for name in named if (match := _COMMIT.fullmatch(name))}
    checkpoints = {name: int(match[1]) for name in named if (match := _CHECKPOINT.fullmatch(name))}
    newest = max([*commits, *checkpoints.values()], default=-1)
    if newest < 0 or (wanted is not None and not 0 <= wanted <= newest):
        known = f"its versions go up to {newest}" if newest >= 0 else "it has no version at all"
        raise InputError(f"this Delta table has no version {wanted}: {known}", where=root)
    last = newest if wanted is None else wanted
    start = max((version for version in checkpoints.values() if version <= last), default=-1)
    names = [name for version, name in commits.items() if start <= version <= last]
    return {
        name: named[name] for name in [*names, *(name for name in checkpoints if checkpoints[name] == start)]
    }


def _require_readable(table: "DeltaTable", root: str) -> None:
    """Reject features that would silently change rows or columns."""
    features: Sequence[str] = table.protocol().reader_features or ()
    mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    wrong = ["columns that have other names in the files"] if mapped else []
    if "deletionVectors" in features and _has_deletion_vectors(table):
        wrong.append("deletion vectors")
    if wrong:
        raise InputError(
            f"this version of the Delta table uses {' and '.join(wrong)}, which are not read",
            where=root,
            hint="Rewrite it where it is written: REORG TABLE … APPLY (PURGE), or a copy of it as Parquet.",
        )


def _has_deletion_vectors(table: "DeltaTable") -> bool:
    from deltalake.exceptions import DeltaError

    try:
        found: Any = pa.table(table.deletion_vectors())
    except (DeltaError, OSError):  # one in a file of its own, which was not copied
        return True
    return bool(found.num_rows)
