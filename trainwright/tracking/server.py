"""The tracking server: an SQLite file or an address; opened, asked again while it is away, errors named."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from trainwright.artifacts import Model
from trainwright.errors import DependencyError, InputError, PermissionRefused, TrainwrightError
from trainwright.http_limits import ANSWER, HttpLimits, limited
from trainwright.retries import GaveUp, retry

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.entities import PagedList

SQLITE = "sqlite:///"
_PAGE = 1000
_REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
_AWAY = {"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"}
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
"""Settings that MLflow reads from the environment alone, set before it is imported.

No usage reports, which begin with the import, and no retries of single requests: MLflow would send a create
whose answer was lost once more and make two. :func:`persist` repeats the whole action, which looks first.
"""

AGAIN = "Look at the address and at the server. When it answers, run this step again: nothing was changed."

Result = TypeVar("Result")


def open_client(tracking_uri: str) -> "MlflowClient":
    """Return a client for tracking and for the registry, both at one address.

    Raises:
        InputError: The address is of no known kind, carries a password, or is a file that is no database.
        PermissionRefused: The SQLite file, or its folder, may not be written.
    """
    _require_known(tracking_uri)
    if tracking_uri.startswith(SQLITE):
        _require_database(database(tracking_uri))
    os.environ.update(_SETTINGS)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def search_all(search: "Callable[..., PagedList[Result]]", *query: Any) -> Iterator[Result]:
    """Yield all that a search of MLflow's client finds, page by page."""
    token = None
    while True:
        page = search(*query, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def experiment_ids(client: "MlflowClient") -> list[str]:
    """Return the ids of all experiments."""
    return [one.experiment_id for one in search_all(client.search_experiments)]


def database(tracking_uri: str) -> Path:
    """Return the absolute path of the SQLite file that an address names."""
    return Path(os.path.abspath(tracking_uri.removeprefix(SQLITE)))


def _require_known(tracking_uri: str) -> None:
    parts = urlsplit(tracking_uri)
    if "@" in parts.netloc:
        raise InputError(
            "registry.tracking_uri carries a user or a password",
            where="registry.tracking_uri",
            hint="Take them out; MLflow's client reads credentials from its own settings.",
        )
    known = parts.scheme in {"http", "https"} or tracking_uri.startswith(SQLITE)
    if not known or tracking_uri == SQLITE:
        raise InputError(
            f"registry.tracking_uri is {tracking_uri!r}; known are sqlite:///FILE, http:// and https://",
            where="registry.tracking_uri",
        )


def _require_database(path: Path) -> None:
    """Open the SQLite file once: MLflow itself would try for an hour before it reports the problem."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=5)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise TimeoutError(f"{path} is kept locked by another process") from None
        raise PermissionRefused(f"the registry's file cannot be opened: {error}", where=str(path)) from None
    except sqlite3.DatabaseError as error:
        raise InputError(f"this is no SQLite database: {error}", where=str(path)) from None
    except OSError as error:
        raise PermissionRefused(f"the registry's folder cannot be made: {error}", where=str(path)) from None


def persist(action: Callable[[], Result], tracking_uri: str, retry_s: float, *, hint: str = AGAIN) -> Result:
    """Do something that may be repeated, again and again while the tracking server is away.

    Args:
        action: What to do; doing it twice must be doing it once.
        tracking_uri: Where, for the error.
        retry_s: No new attempt is begun after this many seconds.
        hint: What to do when the server stayed away.

    Raises:
        DependencyError: The server was away all the time.
        PermissionRefused: It refuses this identity.
        InputError: It refuses what was asked.
    """
    os.environ.update(_SETTINGS)
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
    from mlflow.exceptions import MlflowException

    def once() -> Result:
        try:
            with limited(threads=True):
                return action()
        except TrainwrightError:
            raise
        except (MlflowException, OSError) as error:
            _raise_if_refused(error, tracking_uri)
            raise _Away(_shortened(error)) from error
        except (ValueError, RecursionError, ParseError) as error:  # MLflow reads answers without a check
            raise _Away(f"its answer cannot be read: {_shortened(error)}") from error

    try:
        return retry(once, lambda error: isinstance(error, _Away), f"asking {tracking_uri}", retry_s)
    except GaveUp as end:
        raise DependencyError(
            f"MLflow did not answer in {end.attempts} attempts over {retry_s:g} s: {end}",
            where=tracking_uri,
            hint=hint,
        ) from end.error.__cause__


def download_model(source: str, digest: str, folder: Path, tracking_uri: str) -> Model:
    """Download the files that a registered model's manifest names, none larger than it says.

    ``serving.verified`` compares their content.

    Args:
        source: Folder of the model's files, as the registry has it.
        digest: Digest of its manifest.
        folder: Target folder.
        tracking_uri: The tracking server's address.

    Raises:
        InputError: The manifest is another one, or names a file outside of its folder.
    """
    from mlflow.artifacts import download_artifacts

    def fetch(path: str, limits: HttpLimits) -> None:
        place = folder / path
        if not place.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path} of the model lies outside its folder", where=source)
        place.parent.mkdir(parents=True, exist_ok=True)
        with limited(limits, threads=True):
            download_artifacts(f"{source}/{path}", dst_path=str(place.parent), tracking_uri=tracking_uri)

    fetch(Model.FILE, ANSWER)
    model = Model.read(folder)
    if model.digest != digest:
        raise InputError(f"this is model {model.digest[:12]}, not {digest[:12]}", where=source)
    for entry in model.files:
        fetch(entry.path, HttpLimits.of_file(entry.size))
    return model


class _Away(Exception):
    """The server does not answer, or answers that it cannot now."""


def _raise_if_refused(error: Exception, tracking_uri: str) -> None:
    code = getattr(error, "error_code", "")
    if code in _REFUSED or isinstance(error, PermissionError):
        raise PermissionRefused(
            f"MLflow refused this identity: {_shortened(error)}", where=tracking_uri
        ) from error
    if code and code not in _AWAY:
        raise InputError(
            f"MLflow refused what was asked ({code}): {_shortened(error)}", where=tracking_uri
        ) from error


def _shortened(error: Exception) -> str:
    """Return the first two lines: of an error of the database, the second has the reason."""
    lines = [line for line in str(error).splitlines() if not line.startswith("#####")]  # File NAME
    return " ".join(lines[:2])[:300] or type(error).__name__
