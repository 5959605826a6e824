"""Databases: the rows of one SELECT, in the order of the key, from one state of the database."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import sqlalchemy

from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError, TransientError
from trainwright.experiment import Data, Query
from trainwright.sources import sql_statement
from trainwright.sources.database import Connector, parse_database
from trainwright.sources.inference import TypeInference, convert, declared_types
from trainwright.sources.sources import SourcePart, Sources, pinned, unpinned, wider
from trainwright.storage import Access
from trainwright.storage.store import RetryableError, with_retries
from trainwright.tables import plain, require_columns, require_distinct

_MOST_DIGITS = 38
_FREE = pa.decimal128(_MOST_DIGITS, 18)
"""Type of a numeric without precision: 20 digits before and 18 after the point."""

_NUMERIC = 1700
_TYPES = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
    **dict.fromkeys((18, 19, 25, 1042, 1043), pa.string()),
}
"""Arrow types by PostgreSQL's OID."""

_AS_TEXT = frozenset({114, 2950, 3802})
"""json, uuid and jsonb: cast to text by the database."""

Rows = Sequence[Sequence[Any]]


def arrow_types(description: Sequence[Any], where: str) -> tuple[pa.Schema, frozenset[str]]:
    """Return the columns of a PostgreSQL cursor's description, and the names of those to read as text."""
    fields, texts, wrong = [], set(), []
    for column in description:
        kind = _type_of(column)
        if kind is None:
            wrong.append(f"{column.name!r} is {column.type_display}")
            continue
        fields.append(pa.field(column.name, kind))
        if column.type_code in _AS_TEXT:
            texts.add(column.name)
    if wrong:
        raise InputError(
            f"columns of types that are not taken: {', '.join(wrong)}",
            where=where,
            hint="Cast them in data.sql.select to text, a number or a timestamp; take arrays apart.",
        )
    return pa.schema(fields), frozenset(texts)


def _type_of(column: Any) -> pa.DataType | None:
    if column.type_code in _AS_TEXT:
        return pa.string()
    if column.type_code != _NUMERIC:
        return _TYPES.get(column.type_code)
    if column.precision is None:
        return _FREE
    fits = column.precision <= _MOST_DIGITS and 0 <= column.scale <= column.precision
    return pa.decimal128(column.precision, column.scale) if fits else None


def postgres_batch(rows: Rows, schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Convert rows to columns; ``start`` is the number of rows before them, for errors."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [_array(values, field, start, where) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], field: pa.Field, start: int, where: str) -> pa.Array:
    """Convert values to a column; name the first row whose value is not of its type."""
    wrong = (pa.ArrowException, OverflowError, ValueError, TypeError)
    try:
        return pa.array(values, field.type)
    except wrong as error:
        row, value = 0, error
    for row, value in enumerate(values):  # noqa: B007
        try:
            pa.array([value], field.type)
        except wrong:
            break
    raise InputError(
        f"column {field.name!r} is {field.type}, which does not take {value!s:.80} "
        f"in row {start + row + 1:,}",
        where=where,
        hint="Cast it in data.sql.select to a type that takes all values, such as numeric(20, 4), "
        "double precision or text.",
    )


_PYTHON_TYPES = {bool: pa.int64(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def infer_types(
    names: Sequence[str], pages: Iterable[Rows], declared: Mapping[str, pa.DataType], where: str
) -> pa.Schema:
    """Infer the type of each SQLite column that takes all its values."""
    kinds = dict.fromkeys(names, pa.null())
    times = {name: TypeInference(times_only=True) for name in names}
    for page in pages:
        for name, values in zip(names, zip(*page, strict=True), strict=True):
            for kind in {_PYTHON_TYPES[type(value)] for value in values if value is not None}:
                joined = wider(kinds[name], kind)
                if joined is None:
                    raise InputError(
                        f"column {name!r} holds values of {kinds[name]} and of {kind}",
                        where=where,
                        hint="Cast it in data.sql.select: CAST(column AS TEXT).",
                    )
                kinds[name] = joined
            if kinds[name] == pa.string():
                times[name].add(pa.array(values, pa.string()))
    found = {name: times[name].kind if kind == pa.string() else kind for name, kind in kinds.items()}
    found |= {name: kind for name, kind in declared.items() if name in found}
    return pa.schema(list(found.items()))


def sqlite_batch(rows: Rows, schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Convert SQLite's rows to columns; texts by the inferred or declared types."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        if any(isinstance(value, str) for value in values):
            texts = pa.array([None if value is None else str(value) for value in values], pa.string())
            arrays.append(convert(texts, field.type, field.name, where, start))
        else:
            arrays.append(_array(values, field, start, where))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_T = TypeVar("_T")

FETCH_ROWS = 10_000
"""Rows of a batch; the digest of a database's content depends on it."""

_MOST_VERSION_ROWS = 10_000
_MOST_LOSSES = 5
_PIN = "sha256"
_WHERE = "data.sql.select"


def list_source(source: str, data: Data, access: Access, inspect: object) -> Listing:  # noqa: ARG001 - no files
    """Digest the rows of a database: by its version query, or else all rows.

    A pinned source is returned as it is: the rows are compared when they are read.
    """
    url, digest = unpinned(source, _PIN)
    if not digest:
        statement = _statement(url, data, access)
        if statement.has_version:
            digest = statement.version()
        else:
            done = _Progress()
            for _ in _resumed(statement, statement.shape(), "", done):
                pass
            digest = done.digest.hex()
    entry = SourceFile(uri=url, size=0, checksum=f"{_PIN}:{digest}")
    return Listing(source=pinned(url, _PIN, digest), files=(entry,))


class QuerySources(Sources):
    """The rows of a SELECT: one part, since a transaction cannot be shared."""

    def __init__(self, listing: Listing, data: Data, access: Access) -> None:
        (entry,) = listing.files
        self._uri, self._digest = entry.uri, entry.checksum.removeprefix(f"{_PIN}:")
        self._statement = _statement(entry.uri, data, access)
        self._shape = self._statement.shape()
        self.schema = plain(self._shape.schema.empty_table(), entry.uri).schema

    def parts(self) -> list[SourcePart]:
        """Return the one part."""
        return [SourcePart(index=0, uri=self._uri)]

    def batches(self, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
        """Yield the rows in the order of the key; reject rows that are not those of ``resolve``.

        When the connection is lost, all rows are read again, up to five times; those that were yielded
        already are compared, and not yielded twice.
        """
        done, version = _Progress(), self._digest if self._statement.has_version else ""
        for batch in _resumed(self._statement, self._shape, version, done):
            table = plain(pa.Table.from_batches([batch]), part.uri)
            yield part.uri, done.rows - table.num_rows, table.cast(self.schema)
        if not version and done.digest.hex() != self._digest:
            raise _changed(part.uri)


open_source = QuerySources


def column_names(listing: Listing, data: Data, access: Access, wanted: object) -> list[str]:  # noqa: ARG001 - of JSONL
    """Return the columns of the SELECT, without its rows."""
    return _statement(listing.files[0].uri, data, access).column_names()


def query_columns(url: str, query: Query, access: Access) -> list[str]:
    """Return the names of the columns of a SELECT, before a key is chosen.

    Raises:
        InputError: The database, a table or a column does not exist, or it is not one SELECT.
    """
    return Statement(url, query, access).column_names()


def _statement(url: str, data: Data, access: Access) -> "Statement":
    assert data.sql is not None  # noqa: S101 - the section requires it with format sql
    return Statement(url, data.sql, access, data.key or "", data.types)


@dataclass(frozen=True)
class SelectShape:
    """Columns of a SELECT, and its text in the order of the key."""

    schema: pa.Schema
    text: str


class Statement:
    """The checked SELECT of ``data.sql``, and its version query. It can be pickled.

    Without a key, only its columns can be read.
    """

    def __init__(
        self, url: str, query: Query, access: Access, key: str = "", types: Mapping[str, str] | None = None
    ) -> None:
        place = parse_database(url)
        self.url, self._key, self._types = url, key, dict(types or {})
        self._sqlite = place.kind == "sqlite"
        self._connector, self._parameters = Connector(place, query, access), dict(query.parameters)
        self._dialect = sql_statement.SQLITE if self._sqlite else sql_statement.POSTGRES
        sql_statement.require_fixed(query.parameters)
        self._text, self._version = (
            sql_statement.checked(text, query.tables, self._parameters, self._dialect, where) if text else ""
            for text, where in ((query.select, _WHERE), (query.version, "data.sql.version"))
        )
        sql_statement.require_used((self._text, self._version), self._parameters, self._dialect)
        if types and not self._sqlite:
            raise InputError(
                f"types are said for {sorted(types)}, but the database says its own",
                where="data.types",
                hint="Cast in data.sql.select.",
            )

    @property
    def has_version(self) -> bool:
        """True if there is a version query."""
        return bool(self._version)

    def reach(self) -> None:
        """Wait until the database can be reached."""
        self._retrying(lambda connection: connection.exec_driver_sql("SELECT 1"))

    def version(self) -> str:
        """Return the digest of the version query's rows."""
        return self._retrying(self._digest_version)

    def shape(self) -> SelectShape:
        """Return the columns of the SELECT and their types."""
        return self._retrying(self._read_shape)

    def column_names(self) -> list[str]:
        """Return the columns of the SELECT."""
        return self._retrying(lambda connection: [column[0] for column in self._describe(connection)])

    @contextmanager
    def rows(self, shape: SelectShape) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Open a transaction, and yield the version's digest and the rows, of the same state."""
        with self._connector.transaction() as connection:
            with self._connector.awaited(connection):
                version = self._digest_version(connection) if self._version else ""
            yield version, self._batches(connection, shape)

    def _retrying(self, call: Callable[[sqlalchemy.Connection], _T]) -> _T:
        def once() -> _T:
            with self._connector.transaction() as connection, self._connector.awaited(connection):
                return call(connection)

        return with_retries(once, "reading", self.url, self._connector.access.retry_s)

    def _digest_version(self, connection: sqlalchemy.Connection) -> str:
        rows = connection.exec_driver_sql(self._version, self._parameters).fetchmany(_MOST_VERSION_ROWS + 1)
        if len(rows) > _MOST_VERSION_ROWS:
            raise InputError(
                f"the version query gives more than {_MOST_VERSION_ROWS:,} rows",
                where="data.sql.version",
                hint="Let it give one row that changes with the rows, such as max(updated_at) and count(*).",
            )
        texts = [[None if value is None else str(value) for value in row] for row in rows]
        return digest_text(canonical(texts))

    @property
    def _every(self) -> str:
        return f"SELECT * FROM ({self._text}) AS trainwright_rows"  # noqa: S608  # nosec B608 - checked

    def _describe(self, connection: sqlalchemy.Connection) -> Any:
        """Return the driver's description of the columns."""
        found = connection.exec_driver_sql(f"{self._every} LIMIT 0", self._parameters)
        return found.cursor.description if found.cursor else ()

    def _read_shape(self, connection: sqlalchemy.Connection) -> SelectShape:
        description = self._describe(connection)
        names = [column[0] for column in description]
        untyped = pa.schema([(name, pa.null()) for name in names])
        require_columns(require_distinct(untyped, _WHERE), [self._key], _WHERE)
        if self._sqlite:
            pages = connection.exec_driver_sql(self._every, self._parameters).partitions(FETCH_ROWS)
            schema = infer_types(names, pages, declared_types(self._types), self.url)
            return SelectShape(schema, self._ordered(schema, frozenset()))
        schema, texts = arrow_types(description, self.url)
        return SelectShape(schema, self._ordered(schema, texts))

    def _ordered(self, schema: pa.Schema, texts: frozenset[str]) -> str:
        """Return the statement that selects the columns by name, ordered by the key in any locale."""
        quoted = {name: '"' + name.replace('"', '""') + '"' for name in schema.names}
        columns = ", ".join(
            f"CAST({column} AS text) AS {column}" if name in texts else column
            for name, column in quoted.items()
        )
        by_bytes = schema.field(self._key).type == pa.string() and self._key not in texts
        collation = ' COLLATE "C"' if by_bytes and not self._sqlite else ""
        order = f"trainwright_rows.{quoted[self._key]}{collation}"
        if doubled := self._dialect.doubled:
            columns, order = (part.replace(doubled, doubled * 2) for part in (columns, order))
        return f"SELECT {columns} FROM ({self._text}) AS trainwright_rows ORDER BY {order}"  # noqa: S608  # nosec B608

    def _batches(self, connection: sqlalchemy.Connection, shape: SelectShape) -> Iterator[pa.RecordBatch]:
        streamed = connection.execution_options(stream_results=True, yield_per=FETCH_ROWS)
        make = sqlite_batch if self._sqlite else postgres_batch
        with self._connector.awaited(connection):
            start, found = 0, streamed.exec_driver_sql(shape.text, self._parameters)
        try:
            pages = found.partitions(FETCH_ROWS)
            while True:
                with self._connector.awaited(connection):
                    page = next(pages, None)
                if page is None:
                    return
                yield make(page, shape.schema, start, self.url)
                start += len(page)
        finally:
            found.close()


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
    again, known = _Progress(), done.batches
    with statement.rows(shape) as (found, batches):
        if version and found != version:
            raise _changed(statement.url)
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
