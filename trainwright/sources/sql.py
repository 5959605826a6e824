"""Databases: the rows of one SELECT, in the order of the key, from one state of the database."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError, TransientError
from trainwright.experiment import Data
from trainwright.sources.database import FETCH_ROWS, Connector, parse_database, requiring_packages
from trainwright.sources.inference import declared_types
from trainwright.sources.parts import SourcePart, Sources, pinned, unpinned
from trainwright.sources.sql_columns import arrow_types, infer_types, postgres_batch, sqlite_batch
from trainwright.storage import Access
from trainwright.storage.store import RetryableError, with_retries
from trainwright.tables import plain, require_columns, require_distinct

if TYPE_CHECKING:
    import sqlalchemy


_MOST_VERSION_ROWS = 10_000
_WHERE = "data.sql.select"


@dataclass(frozen=True)
class SelectShape:
    """Columns and statement of a SELECT.

    Attributes:
        schema: Its columns.
        text: The statement, in the order of the key.
    """

    schema: pa.Schema
    text: str


def _require_fixed(values: Mapping[str, object], is_present: Callable[[str], bool]) -> None:
    """Reject a value that a database reads as the present time."""
    if moving := sorted(name for name, value in values.items() if is_present(str(value))):
        raise InputError(
            f"values {moving} are another time at every call, so the rows could not be read the same again",
            where="data.sql.parameters",
            hint="Write the time that is meant, such as 2026-01-31.",
        )


class Statement:
    """The checked SELECT of ``data.sql``, and its version query. It can be pickled.

    Args:
        url: The database, without user and password.
        data: The query, the key, types.
        access: What may be reached.

    Raises:
        InputError: A statement is not one plain SELECT, or a parameter is not used.
        PermissionRefused: A table is not on the list.
        DependencyError: The packages for databases are not installed.
    """

    def __init__(self, url: str, data: Data, access: Access) -> None:
        if data.sql is None:
            raise InputError(
                "nothing says what to read of the database",
                where="data.sql",
                hint="Give data.sql a select and its tables.",
            )
        query, place = data.sql, parse_database(url)
        self.url, self._key, self._types = url, data.key, dict(data.types)
        self._connector, self._parameters = Connector(place, query, access), dict(query.parameters)
        with requiring_packages(place):
            from trainwright.sources import sql_statement as rules
        _require_fixed(query.parameters, rules.is_present)
        dialect = rules.SQLITE if place.kind == "sqlite" else rules.POSTGRES
        self._text = rules.checked(query.select, query.tables, self._parameters, dialect, _WHERE)
        self._version = (
            rules.checked(query.version, query.tables, self._parameters, dialect, "data.sql.version")
            if query.version
            else ""
        )
        if unused := rules.unused([self._text, self._version], self._parameters, dialect):
            raise InputError(
                f"values {unused} are bound to nothing: no statement holds them",
                where="data.sql.parameters",
                hint="In a statement a value is written :name.",
            )
        self._folding = dialect.doubled
        if place.kind == "postgresql" and data.types:
            raise InputError(
                f"types are said for {sorted(data.types)}, but the database says its own",
                where="data.types",
                hint="Cast in data.sql.select.",
            )

    @property
    def has_version(self) -> bool:
        """True if there is a version query."""
        return bool(self._version)

    def reach(self) -> None:
        """Wait until the database can be reached.

        Raises:
            TransientError: It kept failing.
            DependencyError: Nothing answers.
        """

        def once() -> None:
            with self._connector.transaction() as connection:
                connection.exec_driver_sql("SELECT 1")

        self._retrying(once)

    def version(self) -> str:
        """Return the digest of the version query's rows."""

        def once() -> str:
            with self._connector.transaction() as connection:
                return self._digest_version(connection)

        return str(self._retrying(once))

    def shape(self) -> SelectShape:
        """Return the columns of the SELECT and their types.

        Raises:
            InputError: A column's type is unsupported, a name is a duplicate, or the key is missing.
        """
        return self._retrying(self._shape_once)  # type: ignore[no-any-return]

    @contextmanager
    def rows(self, shape: SelectShape) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Open a transaction, and yield the version's digest and the rows, of the same state.

        Raises:
            RetryableError: The connection was lost.
        """
        with self._connector.transaction() as connection:
            version = self._digest_version(connection) if self._version else ""
            yield version, self._batches(connection, shape)

    def _retrying(self, call: Any) -> Any:
        return with_retries(call, "reading", self.url, self._connector.access.retry_s)

    def _digest_version(self, connection: "sqlalchemy.Connection") -> str:
        rows = connection.exec_driver_sql(self._version, self._parameters).fetchmany(_MOST_VERSION_ROWS + 1)
        if len(rows) > _MOST_VERSION_ROWS:
            raise InputError(
                f"the version query gives more than {_MOST_VERSION_ROWS:,} rows",
                where="data.sql.version",
                hint="Let it give one row that changes with the rows, such as max(updated_at) and count(*).",
            )
        texts = [[None if value is None else str(value) for value in row] for row in rows]
        return digest_text(canonical(texts))

    def _shape_once(self) -> SelectShape:
        with self._connector.transaction() as connection:
            every = f"SELECT * FROM ({self._text}) AS trainwright_rows"  # noqa: S608  # nosec B608 - checked
            found = connection.exec_driver_sql(f"{every} LIMIT 0", self._parameters)
            description = found.cursor.description if found.cursor else ()
            names = [column[0] for column in description]
            require_distinct(pa.schema([(name, pa.null()) for name in names]), _WHERE)
            require_columns(pa.schema([(name, pa.null()) for name in names]), [self._key], _WHERE)
            if self._connector.place.kind == "sqlite":
                pages = connection.exec_driver_sql(every, self._parameters).partitions(FETCH_ROWS)
                schema = infer_types(names, pages, declared_types(self._types), self.url)
                return SelectShape(schema, self._ordered(schema, frozenset()))
            schema, texts = arrow_types(description, self.url)
            return SelectShape(schema, self._ordered(schema, texts))

    def _ordered(self, schema: pa.Schema, texts: frozenset[str]) -> str:
        """Return the statement that selects the columns by name, ordered by the key in any locale."""
        columns = ", ".join(
            f"CAST({_quoted(name)} AS text) AS {_quoted(name)}" if name in texts else _quoted(name)
            for name in schema.names
        )
        by_bytes = schema.field(self._key).type == pa.string() and self._key not in texts
        collation = ' COLLATE "C"' if by_bytes and self._connector.place.kind == "postgresql" else ""
        order = f"trainwright_rows.{_quoted(self._key)}{collation}"
        if self._folding:
            columns, order = (part.replace(self._folding, self._folding * 2) for part in (columns, order))
        return f"SELECT {columns} FROM ({self._text}) AS trainwright_rows ORDER BY {order}"  # noqa: S608  # nosec B608

    def _batches(self, connection: "sqlalchemy.Connection", shape: SelectShape) -> Iterator[pa.RecordBatch]:
        streamed = connection.execution_options(stream_results=True, yield_per=FETCH_ROWS)
        make = sqlite_batch if self._connector.place.kind == "sqlite" else postgres_batch
        start, found = 0, streamed.exec_driver_sql(shape.text, self._parameters)
        try:
            for page in found.partitions(FETCH_ROWS):
                self._connector.restart_timeout(connection)
                yield make(page, shape.schema, start, self.url)
                start += len(page)
        finally:
            found.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_PIN = "sha256"
_MOST_LOSSES = 5


def list_query(source: str, data: Data, access: Access) -> Listing:
    """Digest the rows of a database: by its version query, or else all rows.

    A pinned source is returned as it is: the rows are compared when they are read.

    Raises:
        InputError: The statement is not one plain SELECT, or the database rejects it.
        PermissionRefused: A table is not on the list, or the database rejects the user.
        TransientError: The database kept failing.
        DependencyError: Nothing answers there, or the driver is not installed.
    """
    url, digest = unpinned(source, _PIN)
    if not digest:
        statement = Statement(url, data, access)
        digest = statement.version() if statement.has_version else _digest_rows(statement)
    entry = SourceFile(uri=url, size=0, checksum=f"{_PIN}:{digest}")
    return Listing(source=pinned(url, _PIN, digest), files=(entry,))


class QuerySources(Sources):
    """The rows of a SELECT: one part, since a transaction cannot be shared.

    Args:
        listing: One entry, with the digest of the version query, or else of all rows.
        data: The query, the key that orders the rows, types.
        access: What may be reached.

    Raises:
        InputError: The statement is not one plain SELECT, or a column's type is unsupported.
        PermissionRefused: A table is not on the list, or the database rejects the user.
    """

    def __init__(self, listing: Listing, data: Data, access: Access) -> None:
        (entry,) = listing.files
        self._uri, self._digest = entry.uri, entry.checksum.removeprefix(f"{_PIN}:")
        self._statement = Statement(entry.uri, data, access)
        self._shape = self._statement.shape()
        self.schema = plain(self._shape.schema.empty_table(), entry.uri).schema

    def parts(self) -> list[SourcePart]:
        """Return the one part."""
        return [SourcePart(index=0, uri=self._uri)]

    def batches(self, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
        """Yield the rows in the order of the key.

        When the connection is lost, all rows are read again, up to five times; those that were yielded
        already are compared, and not yielded twice.

        Raises:
            InputError: The rows are not those of ``resolve``.
        """
        done = _Progress()
        for batch in _resumed(self._statement, self._shape, self._expected(), done):
            table = plain(pa.Table.from_batches([batch]), part.uri)
            yield part.uri, done.rows - table.num_rows, table.cast(self.schema)
        if not self._statement.has_version and done.digest.hex() != self._digest:
            raise _changed(part.uri)

    def _expected(self) -> str:
        return self._digest if self._statement.has_version else ""


@dataclass
class _Progress:
    """Number and digest of the yielded batches and rows."""

    batches: int = 0
    rows: int = 0
    digest: bytes = bytes(32)

    def take(self, batch: pa.RecordBatch) -> None:
        self.digest = hashlib.sha256(self.digest + batch.serialize()).digest()
        self.batches += 1
        self.rows += batch.num_rows


def _digest_rows(statement: Statement) -> str:
    done = _Progress()
    for _ in _resumed(statement, statement.shape(), "", done):
        pass
    return done.digest.hex()


def _resumed(
    statement: Statement, shape: SelectShape, version: str, done: _Progress
) -> Iterator[pa.RecordBatch]:
    """Yield every batch once, also when the connection is lost in between."""
    for _ in range(_MOST_LOSSES):
        try:
            yield from _read(statement, shape, version, done)
        except RetryableError as lost:
            said = str(lost)
            statement.reach()
        else:
            return
    raise TransientError(
        f"the connection was lost {_MOST_LOSSES} times, last after {done.rows:,} rows: {said}",
        where=statement.url,
        hint="Run the step again later; if it stays, look at the log of the database.",
    )


def _read(
    statement: Statement, shape: SelectShape, version: str, done: _Progress
) -> Iterator[pa.RecordBatch]:
    """Read from the start, and yield the new batches, if the ones before are still the same."""
    again = _Progress()
    with statement.rows(shape) as (found, batches):
        if version and found != version:
            raise _changed(statement.url)
        known = done.batches
        for batch in batches:
            if again.batches < known:
                again.take(batch)
                if again.batches == known and again.digest != done.digest:
                    raise _changed(statement.url)
                continue
            done.take(batch)
            yield batch
        if again.batches < known:
            raise _changed(statement.url)


def _changed(url: str) -> InputError:
    return InputError(
        "the source changed since it was resolved: the database has other rows now",
        where=url,
        hint="Run the pipeline again: resolve lists the source anew.",
    )
