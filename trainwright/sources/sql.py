"""Databases: what one SELECT gives, in the order of the key, from one state of the database."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError, TransientError
from trainwright.experiment import Data
from trainwright.sources.parts import Part, Sources
from trainwright.sources.pins import pinned, unpinned
from trainwright.sources.sql_query import Shape, Statement
from trainwright.storage import Access
from trainwright.storage.store import Passing
from trainwright.tables import plain

_PIN = "sha256"
_MOST_LOSSES = 5


def list_query(source: str, data: Data, access: Access) -> Listing:
    """Say which rows a database holds now: by its version query, or else by all the rows themselves.

    A source that is pinned is taken as it is: what is read later is compared with it.

    Raises:
        InputError: The statement is not one plain SELECT, or the database refuses it.
        PermissionRefused: A table is not on the list, or the database refuses the user.
        TransientError: The database could not be read, again and again.
        DependencyError: Nothing answers there, or the driver is not installed.
    """
    url, digest = unpinned(source, _PIN)
    if not digest:
        statement = Statement(url, data, access)
        digest = statement.version() if statement.has_version else _digest_rows(statement)
    entry = SourceFile(uri=url, size=0, checksum=f"{_PIN}:{digest}")
    return Listing(source=pinned(url, _PIN, digest), files=(entry,))


class QuerySources(Sources):
    """What a SELECT gives: one part, since a transaction cannot be shared.

    Args:
        listing: One entry; its checksum is what the version query, or else all rows, must come to.
        data: The query, the key that orders the rows, types.
        access: What may be reached.

    Raises:
        InputError: The statement is not one plain SELECT, or a column's type is not taken.
        PermissionRefused: A table is not on the list, or the database refuses the user.
    """

    def __init__(self, listing: Listing, data: Data, access: Access) -> None:
        (entry,) = listing.files
        self._uri, self._digest = entry.uri, entry.checksum.removeprefix(f"{_PIN}:")
        self._statement = Statement(entry.uri, data, access)
        self._shape = self._statement.shape()
        self.schema = plain(self._shape.schema.empty_table(), entry.uri).schema

    def parts(self) -> list[Part]:
        """Return the one part."""
        return [Part(index=0, uri=self._uri)]

    def batches(self, part: Part) -> Iterator[tuple[str, int, pa.Table]]:
        """Give the rows in the order of the key.

        When the connection is lost, all is read again, up to five times; rows that were given already
        are compared, and not given twice.

        Raises:
            InputError: The rows are not those that were resolved.
        """
        given = _Given()
        for batch in _resumed(self._statement, self._shape, self._expected(), given):
            table = plain(pa.Table.from_batches([batch]), part.uri)
            yield part.uri, given.rows - table.num_rows, table.cast(self.schema)
        if not self._statement.has_version and given.digest.hex() != self._digest:
            raise _changed(part.uri)

    def _expected(self) -> str:
        return self._digest if self._statement.has_version else ""


@dataclass
class _Given:
    """What was given on already: so many batches and rows, and what they come to."""

    batches: int = 0
    rows: int = 0
    digest: bytes = bytes(32)

    def take(self, batch: pa.RecordBatch) -> None:
        self.digest = hashlib.sha256(self.digest + batch.serialize()).digest()
        self.batches += 1
        self.rows += batch.num_rows


def _digest_rows(statement: Statement) -> str:
    given = _Given()
    for _ in _resumed(statement, statement.shape(), "", given):
        pass
    return given.digest.hex()


def _resumed(statement: Statement, shape: Shape, version: str, given: _Given) -> Iterator[pa.RecordBatch]:
    """Give every batch once, however often the connection is lost in between."""
    for _ in range(_MOST_LOSSES):
        try:
            yield from _read(statement, shape, version, given)
        except Passing as lost:
            said = str(lost)
            statement.reach()
        else:
            return
    raise TransientError(
        f"the connection was lost {_MOST_LOSSES} times, last after {given.rows:,} rows: {said}",
        where=statement.url,
        hint="Run the step again later; if it stays, look at the log of the database.",
    )


def _read(statement: Statement, shape: Shape, version: str, given: _Given) -> Iterator[pa.RecordBatch]:
    """Read all from the start, and give what was not given yet, if what was is still the same."""
    again = _Given()
    with statement.rows(shape) as (found, batches):
        if version and found != version:
            raise _changed(statement.url)
        known = given.batches
        for batch in batches:
            if again.batches < known:
                again.take(batch)
                if again.batches == known and again.digest != given.digest:
                    raise _changed(statement.url)
                continue
            given.take(batch)
            yield batch
        if again.batches < known:
            raise _changed(statement.url)


def _changed(url: str) -> InputError:
    return InputError(
        "the source changed since it was resolved: the rows of the database are others now",
        where=url,
        hint="Run the pipeline again: resolve looks at the source anew.",
    )
