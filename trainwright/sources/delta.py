"""Delta tables, pinned by version: ``deltalake`` reads the log, our own storage the files.

The log is copied into a temporary folder, from the last checkpoint on, and read there. So every file is read
with the same credentials, retries and access limits. See ``docs/decisions/0015-kept-readers.md``.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.redaction import redacted
from trainwright.sources.lake import LakeFile, LakeSources, list_lake, require_size
from trainwright.sources.sources import pinned, unpinned
from trainwright.storage import Access, fetch, join, list_files

_PIN = "version"
_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


def list_source(source: str, data: Data, access: Access, inspect: Callable[..., None] | None) -> Listing:
    """List the files of a Delta table's version: the pinned one, ``data.version``, or the last."""
    root, pin = unpinned(source.rstrip("/"), _PIN)
    version, _, files = _read_log(root, pin or data.version or "", access)
    return list_lake(pinned(root, _PIN, str(version)), root, files, access, data.remember, inspect)


def open_source(listing: Listing, data: Data, access: Access) -> LakeSources:
    """Open the version of a Delta table that was listed."""
    root, pin = unpinned(listing.source, _PIN)
    _, schema, files = _read_log(root, pin, access)
    return LakeSources(files, listing, schema, data.shard_rows, access)


def column_names(listing: Listing, data: Data, access: Access, wanted: object) -> list[str]:  # noqa: ARG001 - of JSONL
    """Return the columns in the table's log."""
    root, pin = unpinned(listing.source, _PIN)
    return list(_read_log(root, pin, access)[1].names)


def _read_log(root: str, wanted: str, access: Access) -> tuple[int, pa.Schema, list[LakeFile]]:
    """Return the version, columns and data files of a table."""
    if wanted and not wanted.isdigit():
        raise InputError(
            f"{wanted!r:.80} is no version of a Delta table", where="data.version", hint="It is a number."
        )
    with _log_of(root, int(wanted) if wanted else None, access) as table:
        _require_readable(table, root)
        names, files = table.metadata().partition_columns, []
        for row in pa.table(table.get_add_actions(flatten=False)).to_pylist():
            path = unquote(row["path"])
            uri = path if "://" in path or path.startswith("/") else join(root, *path.split("/"))
            files.append(LakeFile(uri, {name: row["partition"][name] for name in names}))
        return int(table.version()), pa.schema(table.schema().to_arrow()), files


@contextmanager
def _log_of(root: str, wanted: int | None, access: Access) -> Iterator[DeltaTable]:
    """Copy the needed part of the log, and open it."""
    entries = _needed(root, wanted, access)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / _LOG
        log.mkdir()
        for name, entry in entries.items():
            if name.endswith(".json"):
                require_size(entry.uri, entry.size)
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
        yield table


def _needed(root: str, wanted: int | None, access: Access) -> dict[str, SourceFile]:
    """Return the files of the log, by name, from the last checkpoint up to a version."""
    try:
        found = list_files(join(root, _LOG), (".json", ".parquet"), access)
    except InputError:
        hint = "Name the folder that holds it."
        raise InputError(f"expected a Delta table, found no {_LOG} folder", where=root, hint=hint) from None
    named = {entry.uri.rsplit("/", 1)[-1]: entry for entry in found}
    commits = {name: int(match[1]) for name in named if (match := _COMMIT.fullmatch(name))}
    checkpoints = {name: int(match[1]) for name in named if (match := _CHECKPOINT.fullmatch(name))}
    newest = max([*commits.values(), *checkpoints.values()], default=-1)
    if newest < 0 or (wanted is not None and not 0 <= wanted <= newest):
        known = f"its versions go up to {newest}" if newest >= 0 else "it has no version at all"
        raise InputError(f"this Delta table has no version {wanted}: {known}", where=root)
    last = newest if wanted is None else wanted
    start = max((version for version in checkpoints.values() if version <= last), default=-1)
    names = [name for name, version in commits.items() if start <= version <= last]
    names += [name for name, version in checkpoints.items() if version == start]
    return {name: named[name] for name in names}


def _require_readable(table: DeltaTable, root: str) -> None:
    """Reject features that would silently change rows or columns."""
    mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    wrong = ["columns that have other names in the files"] if mapped else []
    if "deletionVectors" in (table.protocol().reader_features or ()):
        try:
            used = bool(pa.table(table.deletion_vectors()).num_rows)
        except (DeltaError, OSError):  # one in a file of its own, which was not copied
            used = True
        wrong += ["deletion vectors"] if used else []
    if wrong:
        raise InputError(
            f"this version of the Delta table uses {' and '.join(wrong)}, which are not read",
            where=root,
            hint="Rewrite it where it is written: REORG TABLE … APPLY (PURGE), or a copy of it as Parquet.",
        )
