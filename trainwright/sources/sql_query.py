"""A query that was checked, bound to its database."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.sources.declared import declared_types
from trainwright.sources.sql_columns import arrow_types, as_batch
from trainwright.sources.sql_observed import observed_types, typed_batch
from trainwright.sources.sql_place import place_of
from trainwright.sources.sql_session import FETCH_ROWS, Server, packages
from trainwright.storage import Access
from trainwright.storage.retries import retrying
from trainwright.tables import require_columns, require_distinct

if TYPE_CHECKING:
    import sqlalchemy

_MOST_VERSION_ROWS = 10_000
_WHERE = "data.sql.select"


@dataclass(frozen=True)
class Shape:
    """What a SELECT gives.

    Attributes:
        schema: Its columns.
        text: The statement that gives them in the order of the key.
    """

    schema: pa.Schema
    text: str


def _require_fixed(values: Mapping[str, object], is_present: Callable[[str], bool]) -> None:
    """Refuse a value that a database reads as the present."""
    if moving := sorted(name for name, value in values.items() if is_present(str(value))):
        raise InputError(
            f"values {moving} are another time at every call, so the rows could not be read the same again",
            where="data.sql.parameters",
            hint="Write the time that is meant, such as 2026-01-31.",
        )


class Statement:
    """The SELECT of ``data.sql``, checked, and the version query beside it. It can be pickled.

    Args:
        url: The database, without user and password.
        data: The query, the key, types.
        access: What may be reached.

    Raises:
        InputError: A statement is not one plain SELECT, or a value is bound to nothing.
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
        query, place = data.sql, place_of(url)
        self.url, self._key, self._types = url, data.key, dict(data.types)
        self._server, self._parameters = Server(place, query, access), dict(query.parameters)
        with packages(place):
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
        """Whether a query of its own says which rows there are."""
        return bool(self._version)

    def reach(self) -> None:
        """Wait until the database can be reached.

        Raises:
            TransientError: It cannot, for as long as patience lasts.
            DependencyError: Nothing ever answers.
        """

        def once() -> None:
            with self._server.transaction() as connection:
                connection.exec_driver_sql("SELECT 1")

        self._retrying(once)

    def version(self) -> str:
        """Return the digest of the version query's rows."""

        def once() -> str:
            with self._server.transaction() as connection:
                return self._digest_version(connection)

        return str(self._retrying(once))

    def shape(self) -> Shape:
        """Ask which columns the SELECT gives, of which types.

        Raises:
            InputError: A column's type is not taken, a name is there twice, or the key is not there.
        """
        return self._retrying(self._shape_once)  # type: ignore[no-any-return]

    @contextmanager
    def rows(self, shape: Shape) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Begin to read, and give the version's digest, of the same state as the rows, and the rows.

        Raises:
            Passing: The connection was lost.
        """
        with self._server.transaction() as connection:
            version = self._digest_version(connection) if self._version else ""
            yield version, self._batches(connection, shape)

    def _retrying(self, call: Any) -> Any:
        return retrying(call, "reading", self.url, self._server.access.patience_s)

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

    def _shape_once(self) -> Shape:
        with self._server.transaction() as connection:
            every = f"SELECT * FROM ({self._text}) AS trainwright_rows"  # noqa: S608  # nosec B608 - checked
            found = connection.exec_driver_sql(f"{every} LIMIT 0", self._parameters)
            description = found.cursor.description if found.cursor else ()
            names = [column[0] for column in description]
            require_distinct(pa.schema([(name, pa.null()) for name in names]), _WHERE)
            require_columns(pa.schema([(name, pa.null()) for name in names]), [self._key], _WHERE)
            if self._server.place.kind == "sqlite":
                pages = connection.exec_driver_sql(every, self._parameters).partitions(FETCH_ROWS)
                schema = observed_types(names, pages, declared_types(self._types), self.url)
                return Shape(schema, self._ordered(schema, frozenset()))
            schema, texts = arrow_types(description, self.url)
            return Shape(schema, self._ordered(schema, texts))

    def _ordered(self, schema: pa.Schema, texts: frozenset[str]) -> str:
        """Write the statement that gives the columns by name, by the key, whatever the locale."""
        columns = ", ".join(
            f"CAST({_quoted(name)} AS text) AS {_quoted(name)}" if name in texts else _quoted(name)
            for name in schema.names
        )
        by_bytes = schema.field(self._key).type == pa.string() and self._key not in texts
        collation = ' COLLATE "C"' if by_bytes and self._server.place.kind == "postgresql" else ""
        order = f"trainwright_rows.{_quoted(self._key)}{collation}"
        if self._folding:
            columns, order = (part.replace(self._folding, self._folding * 2) for part in (columns, order))
        return f"SELECT {columns} FROM ({self._text}) AS trainwright_rows ORDER BY {order}"  # noqa: S608  # nosec B608

    def _batches(self, connection: "sqlalchemy.Connection", shape: Shape) -> Iterator[pa.RecordBatch]:
        streamed = connection.execution_options(stream_results=True, yield_per=FETCH_ROWS)
        make = typed_batch if self._server.place.kind == "sqlite" else as_batch
        start, found = 0, streamed.exec_driver_sql(shape.text, self._parameters)
        try:
            for page in found.partitions(FETCH_ROWS):
                self._server.restart_clock(connection)
                yield make(page, shape.schema, start, self.url)
                start += len(page)
        finally:
            found.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
