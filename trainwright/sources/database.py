"""Connections to databases: URL, allowed addresses, one read-only transaction of one state, and errors."""

import ipaddress
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.experiment import Query
from trainwright.storage import Access, local_path, redacted
from trainwright.storage.access import METADATA, reject_host
from trainwright.storage.store import RetryableError

if TYPE_CHECKING:
    import sqlalchemy


Kind = Literal["postgresql", "sqlite"]

_PORT = 5432
_OPTIONS = ("sslmode", "sslrootcert", "application_name")
_FILE = re.compile(r"sqlite:///(?P<path>[^?#]+)")


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

    kind: Kind
    url: str
    host: str = ""
    port: int = _PORT
    name: str = ""
    options: tuple[tuple[str, str], ...] = ()


def parse_database(url: str) -> Database:
    """Parse the URL of a database.

    Raises:
        InputError: It is no such URL, or has a user or a password.
        PermissionRefused: It is a file of the system.
    """
    shown = redacted(url)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"postgresql", "sqlite"}:
        raise InputError(
            f"{shown!r:.200} is no database that is read here; known are postgresql:// and sqlite://",
            where="data.source",
            hint="Write postgresql://HOST:5432/DATABASE or sqlite:////PATH; export others as Parquet.",
        )
    if shown != url or "@" in rest.partition("/")[0]:
        raise InputError(
            "the URL of a database carries a user or a password",
            where="data.source",
            hint="Take them out: data.sql.user and data.sql.password_file say them.",
        )
    return _file(url) if scheme == "sqlite" else _server(url)


def _file(url: str) -> Database:
    found = _FILE.fullmatch(url)
    path = local_path(unquote(found["path"])) if found else None
    if path is None:
        raise InputError(
            f"{url!r:.200} names no SQLite file", where="data.source", hint="Write sqlite:////PATH."
        )
    if not path.is_file():
        raise InputError("no such SQLite file", where=str(path))
    return Database("sqlite", url, name=str(path))


def _server(url: str) -> Database:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORT
    except ValueError as error:
        raise InputError(f"{url!r:.200} is no URL: {error}", where="data.source") from None
    name = unquote(parts.path.strip("/"))
    if not host or not name or "/" in name or parts.fragment:
        raise InputError(
            f"{url!r:.200} names no host and database",
            where="data.source",
            hint="Write postgresql://HOST:5432/DATABASE.",
        )
    options = tuple(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted({option for option, _ in options} - set(_OPTIONS)):
        raise InputError(
            f"options {unknown} of a database's URL are not taken; known are {', '.join(_OPTIONS)}",
            where="data.source",
        )
    return Database("postgresql", url, host, port, name, options)


def reachable_address(place: Database, access: Access) -> str:
    """Look a server up, and return one of its addresses, if all of them are allowed.

    A private network is allowed. This machine and link-local addresses are only allowed for a host in
    ``data.hosts``; if that is not empty, it must list every host.

    Raises:
        PermissionRefused: One of them is not allowed, or is a cloud's metadata server.
        OSError: The name has no address.
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
        text = str(target[0])
        address = ipaddress.ip_address(text.partition("%")[0])
        unwrapped = getattr(address, "ipv4_mapped", None) or address
        own = unwrapped.is_loopback or unwrapped.is_link_local or unwrapped.is_unspecified
        if unwrapped in METADATA or (own and not (listed or access.local_addresses)):
            raise PermissionRefused(
                f"host {place.host} leads to {address}: this machine, its link or its cloud's metadata",
                where=place.url,
                hint="Add the host to data.hosts, if a database of this machine is meant.",
            )
    return str(found[0][4][0])


FETCH_ROWS = 10_000
_EXTRA = "Install the extra: pip install 'trainwright[sql]'; in a pipeline, run the step in the image ingest."
_CONNECT_S = 15
_FORBIDDEN = re.compile(
    r"authentication failed|no pg_hba\.conf entry|role \S+ does not exist|permission denied"
)
_WRONG = re.compile(r"database \S+ does not exist|invalid sslmode|root certificate|certificate verify failed")
_RETRYABLE_STATES = ("08", "40", "53", "57P", "58")
_TIMED_OUT = "57014"


@dataclass(frozen=True)
class Connector:
    """Opens transactions with a database; has no password, and can be pickled.

    Attributes:
        place: The database.
        query: User, password file and time limit of a statement.
        access: What may be reached.
    """

    place: Database
    query: Query
    access: Access

    @contextmanager
    def transaction(self) -> "Iterator[sqlalchemy.Connection]":
        """Begin a read-only transaction that sees the database as of its first statement.

        Raises:
            RetryableError: The server cannot be reached, or the connection was lost.
            InputError: There is no such database, or it rejects a statement.
            PermissionRefused: It rejects the user.
            DependencyError: The driver is not installed.
        """
        secret = self._password()
        with _errors(self, secret):
            engine = self._engine(secret)
            try:
                with engine.connect() as connection:
                    self._begin(connection)
                    yield connection
                    connection.rollback()
            finally:
                engine.dispose()

    def _engine(self, secret: str) -> "sqlalchemy.Engine":
        with requiring_packages(self.place):
            import sqlalchemy
            from sqlalchemy import pool

            if self.place.kind == "sqlite":
                url = sqlalchemy.URL.create(
                    "sqlite", database=f"file:{self.place.name}", query={"mode": "ro", "uri": "true"}
                )
                return sqlalchemy.create_engine(url, poolclass=pool.NullPool)
            return sqlalchemy.create_engine(
                "postgresql+psycopg://",
                poolclass=pool.NullPool,
                isolation_level="REPEATABLE READ",
                connect_args=self._connection(secret),
            )

    def _connection(self, secret: str) -> Mapping[str, Any]:
        """Return the driver's arguments, with keepalives: neither side waits for a dead connection."""
        arguments: dict[str, Any] = dict(self.place.options)
        arguments |= {"host": self.place.host, "hostaddr": reachable_address(self.place, self.access)}
        arguments |= {"port": self.place.port, "dbname": self.place.name, "connect_timeout": _CONNECT_S}
        arguments |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        arguments |= {"tcp_user_timeout": 60_000}
        arguments |= {"user": self.query.user} if self.query.user else {}
        return arguments | ({"password": secret} if secret else {})

    def _begin(self, connection: "sqlalchemy.Connection") -> None:
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

    def restart_timeout(self, connection: "sqlalchemy.Connection") -> None:
        """Restart the time limit of an SQLite statement; a server counts each fetch itself."""
        if self.place.kind == "sqlite":
            deadline = time.monotonic() + self.query.timeout_s
            raw: Any = connection.connection.driver_connection
            raw.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)

    def _password(self) -> str:
        """Read the password, anew for each transaction: a mounted secret may have changed."""
        if self.query.password_file is None:
            return ""
        path = Path(self.query.password_file)
        try:
            return path.read_text().rstrip("\r\n")
        except FileNotFoundError:
            raise InputError(
                "no such file",
                where=f"data.sql.password_file: {path}",
                hint="Mount the secret there, or name its file.",
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise PermissionRefused(
                f"the password cannot be read: {type(error).__name__}",
                where=f"data.sql.password_file: {path}",
            ) from None


@contextmanager
def requiring_packages(place: Database) -> Iterator[None]:
    """Translate a missing package into an error that names the extra.

    Raises:
        DependencyError: A package is missing.
    """
    try:
        yield
    except ImportError as error:
        raise DependencyError(
            f"a {place.kind} database needs a package that is not here: {error}", where=place.url, hint=_EXTRA
        ) from None


@contextmanager
def _errors(connector: Connector, secret: str) -> Iterator[None]:
    """Translate a driver's errors, without the password."""
    try:
        yield
    except (TrainwrightError, RetryableError):
        raise
    except OSError as error:
        raise RetryableError(f"{connector.place.host}: {error}", answered=False) from None
    except Exception as error:
        if not _is_of_driver(error):
            raise
        raise _translated(error, connector, secret) from None


def _is_of_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"sqlalchemy", "psycopg", "sqlite3"}


def _translated(error: Exception, connector: Connector, secret: str) -> Exception:
    original = getattr(error, "orig", None) or error
    text = " ".join(str(original).split())
    text = (text.replace(secret, "***") if secret else text)[:300]
    state, where = str(getattr(original, "sqlstate", None) or ""), connector.place.url
    name = type(original).__name__
    if state == _TIMED_OUT or "interrupted" in text:
        return timed_out(connector)
    if state.startswith("28") or state == "42501" or _FORBIDDEN.search(text):
        hint = "Look at data.sql.user, data.sql.password_file, and what that user is granted."
        return PermissionRefused(f"the database refuses: {text}", where=where, hint=hint)
    if _WRONG.search(text) or "unable to open database file" in text:
        return InputError(f"the database refuses: {text}", where=where)
    lost = name in {"OperationalError", "InterfaceError", "AdminShutdown", "InternalError_"} and not state
    if connector.place.kind == "sqlite":
        lost = "locked" in text or "busy" in text
    if lost or state.startswith(_RETRYABLE_STATES):
        answered = not re.search(r"refused|timeout expired|timed out|not known|No route", text)
        return RetryableError(text, answered=answered)
    return InputError(
        f"the database refuses the statement: {text}", where=where, hint="Correct data.sql.select."
    )


def timed_out(connector: Connector) -> TransientError:
    """Return the error for a statement that took too long."""
    return TransientError(
        f"the statement did not end within {connector.query.timeout_s:,} s",
        where=connector.place.url,
        hint="Raise data.sql.timeout_s, or index what the statement filters and sorts by.",
    )
