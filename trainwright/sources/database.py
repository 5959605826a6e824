"""Connections to databases: URL, allowed addresses, one read-only transaction of one state, and errors."""

import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
import sqlalchemy
from sqlalchemy import pool

from trainwright.credentials import read_secret
from trainwright.errors import InputError, PermissionRefused, TrainwrightError, TransientError
from trainwright.experiment import Query
from trainwright.redaction import redacted
from trainwright.storage import Access, local_path
from trainwright.storage.access import METADATA, reject_host
from trainwright.storage.store import RetryableError

_PORT = 5432
_OPTIONS = ("sslmode", "sslrootcert", "application_name")
_FILE = re.compile(r"sqlite:///(?P<path>[^?#]+)")
_WHERE = "data.source"


@dataclass(frozen=True)
class Database:
    """The address of a database.

    Attributes:
        kind: Its kind.
        url: Its URL, without a pin.
        host: The server's name; empty for SQLite.
        port: The server's port.
        name: The database's name; the absolute path of an SQLite file.
        options: Options of the URL.
    """

    kind: Literal["postgresql", "sqlite"]
    url: str
    host: str = ""
    port: int = _PORT
    name: str = ""
    options: tuple[tuple[str, str], ...] = ()


def parse_database(url: str) -> Database:
    """Parse the URL of a database; it has neither user nor password."""
    shown = redacted(url)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"postgresql", "sqlite"}:
        raise InputError(
            f"{shown!r:.200} is no database that is read here; known are postgresql:// and sqlite://",
            where=_WHERE,
            hint="Write postgresql://HOST:5432/DATABASE or sqlite:////PATH; export others as Parquet.",
        )
    if shown != url or "@" in rest.partition("/")[0]:
        raise InputError(
            "the URL of a database carries a user or a password",
            where=_WHERE,
            hint="Take them out: data.sql.user and data.sql.password_file say them.",
        )
    if scheme == "postgresql":
        return _parse_server(url)
    found = _FILE.fullmatch(url)
    path = local_path(unquote(found["path"])) if found else None
    if path is None:
        raise InputError(f"{url!r:.200} names no SQLite file", where=_WHERE, hint="Write sqlite:////PATH.")
    if not path.is_file():
        raise InputError("no such SQLite file", where=str(path))
    return Database("sqlite", url, name=str(path))


def _parse_server(url: str) -> Database:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORT
    except ValueError as error:
        raise InputError(f"{url!r:.200} is no URL: {error}", where=_WHERE) from None
    name = unquote(parts.path.strip("/"))
    if not host or not name or "/" in name or parts.fragment:
        hint = "Write postgresql://HOST:5432/DATABASE."
        raise InputError(f"{url!r:.200} names no host and database", where=_WHERE, hint=hint)
    options = tuple(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted({option for option, _ in options} - set(_OPTIONS)):
        what = f"options {unknown} of a database's URL are not taken; known are {', '.join(_OPTIONS)}"
        raise InputError(what, where=_WHERE)
    return Database("postgresql", url, host, port, name, options)


def reachable_address(place: Database, access: Access) -> str:
    """Look a server up, and return one of its addresses, if all of them are allowed.

    A private network is allowed. This machine and link-local addresses are only allowed for a host in
    ``data.hosts``; if that is not empty, it must list every host.
    """
    listed = place.host in access.hosts or f"{place.host}:{place.port}" in access.hosts
    reject_host(place.host, local_addresses=True)
    if access.hosts and not listed:
        raise PermissionRefused(
            f"host {place.host} is not one that may be read; allowed: {', '.join(access.hosts)}",
            where=place.url,
            hint="Add it to data.hosts, if it is to be trusted.",
        )
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    for *_, target in found:
        address = ipaddress.ip_address(str(target[0]).partition("%")[0])
        unwrapped = getattr(address, "ipv4_mapped", None) or address
        own = unwrapped.is_loopback or unwrapped.is_link_local or unwrapped.is_unspecified
        if unwrapped in METADATA or (own and not (listed or access.local_addresses)):
            raise PermissionRefused(
                f"host {place.host} leads to {address}: this machine, its link or its cloud's metadata",
                where=place.url,
                hint="Add the host to data.hosts, if a database of this machine is meant.",
            )
    return str(found[0][4][0])


_CONNECT_S = 15
_FORBIDDEN = re.compile(
    r"authentication failed|no pg_hba\.conf entry|role \S+ does not exist|permission denied"
)
_WRONG = re.compile(
    r"database \S+ does not exist|invalid sslmode|root certificate|certificate verify failed|"
    r"unable to open database file"
)
_UNANSWERED = re.compile(r"refused|timeout expired|timed out|not known|No route")
_LOST = {"OperationalError", "InterfaceError", "AdminShutdown", "InternalError_"}
_RETRYABLE_STATES = ("08", "40", "53", "57P", "58")
_TIMED_OUT = "57014"


_GRACE_S = 30.0
"""Seconds that a server has, beyond the limit of a statement, to report that it has passed."""


@contextmanager
def _shut_after(raw: Any, seconds: float) -> Iterator[None]:
    """Shut the socket of a server's connection unless the body ends in time; libpq would wait forever."""
    with socket.socket(fileno=os.dup(raw.fileno())) as copy:

        def shut() -> None:
            with suppress(OSError):  # the server was faster
                copy.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, shut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


@dataclass(frozen=True)
class Connector:
    """Opens transactions with a database; has no password, and can be pickled."""

    place: Database
    query: Query
    access: Access

    @contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        """Begin a read-only transaction that sees the database as of its first statement.

        Raises:
            RetryableError: The server cannot be reached, or the connection was lost.
            InputError: There is no such database, or it rejects a statement.
            PermissionRefused: It rejects the user.
        """
        secret = self._password()
        try:
            engine = self._engine(secret)
            try:
                with self._connected(engine) as connection:
                    yield connection
                    connection.rollback()
            finally:
                engine.dispose()
        except (TrainwrightError, RetryableError):
            raise
        except OSError as error:
            raise RetryableError(f"{self.place.host}: {error}", answered=False) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in {"sqlalchemy", psycopg.__name__, "sqlite3"}:
                raise
            raise self._translated(error, secret) from None

    @contextmanager
    def _connected(self, engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Connection]:
        """Connect and begin; SQLAlchemy's own first statements have a limit, too."""
        with ExitStack() as limit:
            if self.place.kind != "sqlite":

                def limit_it(raw: Any, _record: object) -> None:
                    limit.enter_context(_shut_after(raw, self._patience_s))

                sqlalchemy.event.listen(engine, "connect", limit_it, insert=True)
            connection = engine.connect()
            with ExitStack() as failed:
                failed.enter_context(connection)
                self._begin(connection)
                failed.pop_all()
        with connection:
            yield connection

    @property
    def _patience_s(self) -> float:
        return self.query.timeout_s + _GRACE_S

    @contextmanager
    def awaited(self, connection: sqlalchemy.Connection) -> Iterator[None]:
        """Limit the wait for rows: SQLite has no limit of its own, and a server may not keep its own."""
        self.restart_timeout(connection)
        if self.place.kind == "sqlite":
            yield
            return
        with _shut_after(connection.connection.driver_connection, self._patience_s):
            yield

    def _engine(self, secret: str) -> sqlalchemy.Engine:
        """Connect, with keepalives: neither side waits for a dead connection."""
        if self.place.kind == "sqlite":
            url = sqlalchemy.URL.create(
                "sqlite", database=f"file:{self.place.name}", query={"mode": "ro", "uri": "true"}
            )
            return sqlalchemy.create_engine(url, poolclass=pool.NullPool)
        arguments = dict(self.place.options) | {
            "host": self.place.host,
            "hostaddr": reachable_address(self.place, self.access),
            "port": self.place.port,
            "dbname": self.place.name,
            "connect_timeout": _CONNECT_S,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
            **({"user": self.query.user} if self.query.user else {}),
            **({"password": secret} if secret else {}),
        }
        return sqlalchemy.create_engine(
            "postgresql+psycopg://",
            poolclass=pool.NullPool,
            isolation_level="REPEATABLE READ",
            connect_args=arguments,
        )

    def _begin(self, connection: sqlalchemy.Connection) -> None:
        if self.place.kind == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
            connection.exec_driver_sql("BEGIN")
            self.restart_timeout(connection)
            return
        connection.execution_options(postgresql_readonly=True)
        for setting, value in (
            ("statement_timeout", f"{self.query.timeout_s}s"),
            ("standard_conforming_strings", "on"),
            ("TimeZone", "UTC"),
            ("DateStyle", "ISO"),
        ):
            connection.exec_driver_sql("SELECT set_config(%s, %s, true)", (setting, value))

    def restart_timeout(self, connection: sqlalchemy.Connection) -> None:
        """Restart the time limit of an SQLite statement; a server counts each fetch itself."""
        if self.place.kind == "sqlite":
            deadline = time.monotonic() + self.query.timeout_s
            raw: Any = connection.connection.driver_connection
            raw.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)

    def _password(self) -> str:
        """Read the password, anew for each transaction: a mounted secret may have changed."""
        if self.query.password_file is None:
            return ""
        return read_secret(self.query.password_file, "data.sql.password_file")

    def _translated(self, error: Exception, secret: str) -> Exception:
        """Translate a driver's error, without the password."""
        original = getattr(error, "orig", None) or error
        text = " ".join(str(original).split())
        text = (text.replace(secret, "***") if secret else text)[:300]
        state, where = str(getattr(original, "sqlstate", None) or ""), self.place.url
        if state == _TIMED_OUT or "interrupted" in text:
            return TransientError(
                f"the statement did not end within {self.query.timeout_s:,} s",
                where=where,
                hint="Raise data.sql.timeout_s, or index what the statement filters and sorts by.",
            )
        if state.startswith("28") or state == "42501" or _FORBIDDEN.search(text):
            hint = "Look at data.sql.user, data.sql.password_file, and what that user is granted."
            return PermissionRefused(f"the database refuses: {text}", where=where, hint=hint)
        if _WRONG.search(text):
            return InputError(f"the database refuses: {text}", where=where)
        lost = type(original).__name__ in _LOST and not state
        if self.place.kind == "sqlite":
            lost = "locked" in text or "busy" in text
        if lost or state.startswith(_RETRYABLE_STATES):
            return RetryableError(text, answered=not _UNANSWERED.search(text))
        hint = "Correct data.sql.select."
        return InputError(f"the database refuses the statement: {text}", where=where, hint=hint)
