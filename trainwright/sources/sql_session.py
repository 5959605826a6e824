"""Sessions with a database: one read-only transaction that sees one state, and errors in our words."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    TrainwrightError,
    TransientError,
)
from trainwright.experiment import Query
from trainwright.sources.sql_place import Place, reachable_address
from trainwright.storage import Access
from trainwright.storage.store import Passing

if TYPE_CHECKING:
    import sqlalchemy

FETCH_ROWS = 10_000
_EXTRA = "Install the extra: pip install 'trainwright[sql]'; in a pipeline, run the step in the image ingest."
_CONNECT_S = 15
_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry|role \S+ does not exist|permission denied"
)
_WRONG = re.compile(r"database \S+ does not exist|invalid sslmode|root certificate|certificate verify failed")
_PASSING_STATES = ("08", "40", "53", "57P", "58")
_TIMED_OUT = "57014"


@dataclass(frozen=True)
class Server:
    """A database and how to talk to it; holds no password, and can be pickled.

    Attributes:
        place: Where it is.
        query: Whose user and password file are taken, and for how long a statement may run.
        access: What may be reached.
    """

    place: Place
    query: Query
    access: Access

    @contextmanager
    def transaction(self) -> "Iterator[sqlalchemy.Connection]":
        """Begin a transaction that only reads, and sees the database as it is at its first statement.

        Raises:
            Passing: The server cannot be reached, or was lost; the next try may succeed.
            InputError: There is no such database, or it refuses a statement.
            PermissionRefused: It refuses the user.
            DependencyError: The driver is not installed.
        """
        secret = self._password()
        with _told(self, secret):
            engine = self._engine(secret)
            try:
                with engine.connect() as connection:
                    self._begin(connection)
                    yield connection
                    connection.rollback()
            finally:
                engine.dispose()

    def _engine(self, secret: str) -> "sqlalchemy.Engine":
        with packages(self.place):
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
        """Return what the driver needs. A dead line is noticed: neither side waits for ever."""
        given: dict[str, Any] = dict(self.place.options)
        given |= {"host": self.place.host, "hostaddr": reachable_address(self.place, self.access)}
        given |= {"port": self.place.port, "dbname": self.place.name, "connect_timeout": _CONNECT_S}
        given |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        given |= {"tcp_user_timeout": 60_000}
        given |= {"user": self.query.user} if self.query.user else {}
        return given | ({"password": secret} if secret else {})

    def _begin(self, connection: "sqlalchemy.Connection") -> None:
        if self.place.kind == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
            connection.exec_driver_sql("BEGIN")
            self.restart_clock(connection)
            return
        connection.execution_options(postgresql_readonly=True)
        for setting, value in (
            ("statement_timeout", f"{self.query.timeout_s}s"),
            ("standard_conforming_strings", "on"),
            ("TimeZone", "UTC"),
            ("DateStyle", "ISO"),
        ):
            connection.exec_driver_sql("SELECT set_config(%s, %s, true)", (setting, value))

    def restart_clock(self, connection: "sqlalchemy.Connection") -> None:
        """Give a SQLite statement its time anew; a server counts for itself, at every fetch."""
        if self.place.kind == "sqlite":
            deadline = time.monotonic() + self.query.timeout_s
            raw: Any = connection.connection.driver_connection
            raw.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)

    def _password(self) -> str:
        """Read the password, anew for each transaction: a mounted secret may have been changed."""
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
def packages(place: Place) -> Iterator[None]:
    """Say what to install where a package for databases is missing.

    Raises:
        DependencyError: One is.
    """
    try:
        yield
    except ImportError as error:
        raise DependencyError(
            f"a {place.kind} database needs a package that is not here: {error}", where=place.url, hint=_EXTRA
        ) from None


@contextmanager
def _told(server: Server, secret: str) -> Iterator[None]:
    """Turn what a driver says into an error of ours, without the password."""
    try:
        yield
    except (TrainwrightError, Passing):
        raise
    except OSError as error:
        raise Passing(f"{server.place.host}: {error}", answered=False) from None
    except Exception as error:
        if not _is_of_driver(error):
            raise
        told = _translated(error, server, secret)
        raise told from None


def _is_of_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"sqlalchemy", "psycopg", "sqlite3"}


def _translated(error: Exception, server: Server, secret: str) -> Exception:
    original = getattr(error, "orig", None) or error
    text = " ".join(str(original).split())
    text = (text.replace(secret, "***") if secret else text)[:300]
    state, where = str(getattr(original, "sqlstate", None) or ""), server.place.url
    name = type(original).__name__
    if state == _TIMED_OUT or "interrupted" in text:
        return timed_out(server)
    if state.startswith("28") or state == "42501" or _REFUSED.search(text):
        hint = "Look at data.sql.user, data.sql.password_file, and what that user is granted."
        return PermissionRefused(f"the database refuses: {text}", where=where, hint=hint)
    if _WRONG.search(text) or "unable to open database file" in text:
        return InputError(f"the database refuses: {text}", where=where)
    lost = name in {"OperationalError", "InterfaceError", "AdminShutdown", "InternalError_"} and not state
    if server.place.kind == "sqlite":
        lost = "locked" in text or "busy" in text
    if lost or state.startswith(_PASSING_STATES):
        answered = not re.search(r"refused|timeout expired|timed out|not known|No route", text)
        return Passing(text, answered=answered)
    return InputError(
        f"the database refuses the statement: {text}", where=where, hint="Mend data.sql.select."
    )


def timed_out(server: Server) -> TransientError:
    """Return the error for a statement that took too long."""
    return TransientError(
        f"the statement did not end within {server.query.timeout_s:,} s",
        where=server.place.url,
        hint="Raise data.sql.timeout_s, or index what the statement filters and sorts by.",
    )
