"""A Feast repository: its checkout, folder, settings, definitions, and Feast's own store behind them."""

import contextlib
import difflib
import functools
import os
import re
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import DependencyError, InputError
from trainwright.retries import OUTAGE_S, GaveUp, retry
from trainwright.storage import fetch, fetch_commit, head, join, local_path, parse_commit
from trainwright.storage.git import FORM

_T = TypeVar("_T")

TRANSIENT = re.compile(
    "ConnectionError|TimeoutError|BusyLoadingError|ClusterDownError|MasterDownError|"  # redis
    "ReadOnlyError|TryAgainError|MasterNotFoundError|"  # redis, while another node takes over
    "OperationalError|InterfaceError|"  # psycopg, SQLAlchemy, SQLite
    "EndpointConnectionError|HTTPClientError|ConnectionClosedError|"  # boto3
    "ServiceUnavailable|DeadlineExceeded|TooManyRequests|GatewayTimeout|TransportError|"  # Google
    "NoHostAvailable|OperationTimedOut|Unavailable|"  # Cassandra
    "SSLError"  # a TLS connection that was cut off; a certificate is final
)
"""Exceptions of any library after which the same call may succeed, by name, with their subclasses."""

FINAL = re.compile(
    "AuthenticationError|AuthorizationError|InvalidPassword|InsufficientPrivilege|"
    "DiskFull|QueryCanceled|LockNotAvailable|"  # a server's own time limit has passed already
    "SSLCertVerificationError"
)
"""Subclasses of those that are final."""

_FINAL_TEXT = re.compile(
    r"authentication|password|pg_hba|certificate|does not exist|no such|readonly|read-only|not a database"
    r"|unable to open|disk is full|no space left",
    re.IGNORECASE,
)


def is_transient(error: BaseException | None) -> bool:
    """Tell whether a failure is transient, by it and its causes."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if any(isinstance(link, ssl.SSLCertVerificationError) or _FINAL_TEXT.search(str(link)) for link in chain):
        return False
    names = [[kind.__name__ for kind in type(link).__mro__] for link in chain]
    return any(
        any(map(TRANSIENT.fullmatch, found)) and not any(map(FINAL.fullmatch, found)) for found in names
    )


def retry_outage(call: Callable[[], _T], what: str, retry_s: float) -> _T:
    """Retry a call to Feast's stores for ``retry_s`` while they are down; ``what`` is for the log.

    An attempt raises :class:`DependencyError` from what the store's library raised.
    """

    def passes(error: Exception) -> bool:
        return isinstance(error, DependencyError) and is_transient(error.__cause__)

    try:
        return retry(call, passes, what, retry_s)
    except GaveUp as end:
        last = end.error
        assert isinstance(last, DependencyError)  # noqa: S101 - nothing else is retried
        raise DependencyError(
            f"{last.what} ({end.attempts} attempts in {end.seconds:.0f} s)", where=last.where, hint=last.hint
        ) from last.__cause__


def read_registry(read: Callable[[], Iterable[Any]], folder: Path, retry_s: float) -> dict[str, Any]:
    """Return Feast's objects by name; this is the first time that the registry is read."""

    def attempt() -> dict[str, Any]:
        try:
            return {found.name: found for found in read()}
        except Exception as error:
            raise DependencyError(f"Feast cannot read its registry: {error}", where=str(folder)) from error

    return retry_outage(attempt, "reading Feast's registry", retry_s)


def require_known(kind: str, name: str, known: Mapping[str, Any], folder: Path) -> None:
    """Reject the name of a view or a service that the registry does not have."""
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        raise InputError(
            f"no {kind} {name!r}" + (f"; did you mean {' or '.join(close)}?" if close else ""),
            where=str(folder),
            hint=f"The registry has: {', '.join(sorted(known)) or 'none'}. {apply_hint(folder)}",
        )


REGISTRY = ".trainwright-registry.db"
_SETTINGS = ".trainwright-settings.yaml"


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in the repository's folder, as Feast needs it to read definitions; its output goes to stderr."""
    before, path, written = os.getcwd(), list(sys.path), sys.dont_write_bytecode
    known = set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # the repository's files are versioned by their content: leave none there
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(before)
        sys.path[:], sys.dont_write_bytecode = path, written
        for name in set(sys.modules) - known:  # another repository's modules may have the same names
            place = getattr(sys.modules[name], "__file__", None) or ""
            if place.startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


def read_definitions(folder: Path, settings: Any) -> Any:
    """Return what the Python files of a repository define."""
    from feast.repo_operations import _get_repo_contents

    try:
        return _get_repo_contents(folder, settings.project, settings)
    except Exception as error:
        what = f"the definitions cannot be read: {type(error).__name__}: {error}"
        raise InputError(what, where=str(folder)) from error


def apply_apart(folder: Path, settings_file: Path) -> Path:
    """Apply a repository's definitions to a temporary registry file, and return it.

    Without an online store in the settings, Feast creates no tables.
    """
    import yaml  # type: ignore[import-untyped]
    from feast import FeatureStore, repo_operations
    from feast.repo_config import load_repo_config

    from trainwright.yaml_reader import read_yaml

    raw = read_yaml(settings_file, aliases=True)
    if not isinstance(raw, dict):
        raise InputError("expected a mapping of Feast's settings", where=str(settings_file))
    raw |= {"registry": {"registry_type": "file", "path": str(folder / REGISTRY)}, "online_store": None}
    (folder / _SETTINGS).write_text(yaml.safe_dump(raw))
    settings = load_repo_config(folder, folder / _SETTINGS)
    with inside(folder):
        repo = read_definitions(folder, settings)
        try:
            store = FeatureStore(repo_path=str(folder), config=settings)
            parts: Any = repo_operations.extract_objects_for_apply_delete
            objects, _, _, _ = parts(store.project, store.registry, repo)
            store.apply(objects, partial=True)
        except Exception as error:
            what = f"Feast could not apply the definitions: {type(error).__name__}: {error}"
            raise InputError(what, where=str(folder)) from error
    return folder / REGISTRY


SETTINGS = "feature_store.yaml"
OFFLINE_STORE = "duckdb"
"""The offline store that `join` reads: Feast's default, dask, drops rows without a match."""
ENGINE_STORE = "spark"
"""The offline store with an engine, past one machine. Ray's cannot exclude values created later."""


def open_folder(repository: str) -> Path:
    """Return the folder of a repository."""
    folder = local_path(repository)
    if folder is None:
        raise InputError(
            "this works on a folder of this machine",
            where=repository,
            hint="Check the repository out, and name that folder.",
        )
    if not (folder / SETTINGS).is_file():
        raise InputError(
            f"no Feast repository here: no {SETTINGS}",
            where=str(folder),
            hint="Name the folder that holds it.",
        )
    return folder


@functools.cache
def defer_type_checks() -> None:
    """Let typeguard instrument a method of Feast when it is first called, not all of them while Feast loads.

    For each of 242 methods it parses and compiles the whole module again: 3.6 of 5.6 seconds (typeguard 4.6).
    """
    from typeguard import _decorators

    instrument: Callable[[Any], Any] = _decorators.instrument

    def defer(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def checked() -> Callable[..., Any]:
            found = instrument(method)
            return method if isinstance(found, str) else found  # a string says why it cannot be checked

        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            return checked()(*arguments, **named)

        return call

    _decorators.instrument = defer  # type: ignore[assignment]


def open_settings(folder: Path) -> Any:
    """Read a repository's settings; nothing of Feast is loaded before."""
    defer_type_checks()
    from feast.repo_config import load_repo_config

    try:
        settings = load_repo_config(folder, folder / SETTINGS)
        _ = (settings.offline_store.type, settings.batch_engine)  # these are read when first asked for
    except Exception as error:
        raise InputError(f"Feast cannot read its settings: {error}", where=str(folder / SETTINGS)) from error
    return settings


def open_store(folder: Path, settings: Any, *, fetched: bool = False) -> Any:
    """Open Feast's store, without writing outside of ``folder``.

    If that is a ``fetched`` copy of a remote repository, without its registry file, the definitions are
    applied to a temporary one.
    """
    from feast import FeatureStore

    registry = settings.registry.path
    if settings.registry.registry_type == "file" and "://" not in registry:
        path = folder / registry
        if not path.is_file() and fetched:
            settings.registry.path = str(apply_apart(folder, folder / SETTINGS))
        elif not path.is_file():
            raise InputError(f"not applied: no registry {path}", where=str(folder), hint=apply_hint(folder))
    return FeatureStore(repo_path=str(folder), config=settings)


def close_store(store: Any) -> None:
    """Close the connections that Feast's online store and SQL registry leave open."""
    for name in ("read_engine", "write_engine"):
        if hasattr(store.registry, name):
            getattr(store.registry, name).dispose()
    connection = getattr(store.provider.online_store, "_conn", None)
    if connection is not None:
        connection.close()
        store.provider.online_store._conn = None


def apply_hint(folder: Path) -> str:
    """Return the hint for definitions that are not in the registry."""
    return (
        f"Apply the definitions: `trainwright features plan {folder}`, review plan.json, and then "
        f"`trainwright features apply {folder}`."
    )


_AT_A_TIME = 8
_STORES = ("s3://", "gs://", "minio://")


@dataclass(frozen=True)
class Checkout:
    """A repository's files on this machine, in a ``fetched`` temporary copy or its own folder.

    It is ``pinned`` if ``uri`` itself names the content, as a commit does.
    """

    uri: str
    folder: Path
    fetched: bool
    pinned: bool = False

    def origin(self, place: str) -> str:
        """Return the URI that a file was fetched from; of another file, its real path or its URI."""
        path = None if parse_commit(place) else local_path(place)
        if path is None:
            return place
        real = Path(os.path.realpath(path))
        if self.fetched and real.is_relative_to(self.folder):
            return join(self.uri, real.relative_to(self.folder).as_posix())
        return str(real)


def is_remote(repository: str) -> bool:
    """Tell whether a repository has to be fetched."""
    return parse_commit(repository) is not None or local_path(repository) is None


@contextmanager
def checked_out(repository: str, listing: Listing) -> Iterator[Checkout]:
    """Yield the folder of a repository: its own, or a temporary copy that is removed afterwards.

    A repository is a folder, its URI in an object store, or a commit of git. From an object store, the files
    of ``listing`` below the URI are fetched, in the versions that were listed, and checked against size and
    checksum: so a step works on exactly the bytes of its cache key.

    Raises:
        InputError: There is no repository, its URI is unsupported, or the listing lacks it.
    """
    commit = parse_commit(repository)
    path = None if commit else local_path(repository)
    if path is not None:
        yield Checkout(uri=repository, folder=path, fetched=False)
        return
    with tempfile.TemporaryDirectory(prefix="trainwright-features-") as scratch:
        folder = Path(os.path.realpath(scratch)) / "repository"
        uri = repository.rstrip("/")
        if commit:
            fetch_commit(commit, folder, OUTAGE_S)
            if not (folder / SETTINGS).is_file():
                hint = "Name the folder that holds it: #subdirectory=FOLDER."
                raise InputError(f"no Feast repository here: no {SETTINGS}", where=uri, hint=hint)
        else:
            files = _listed_below(uri, listing)
            with ThreadPoolExecutor(_AT_A_TIME) as pool:
                # join rejects a name that leads out of the folder
                list(pool.map(lambda name: fetch(files[name], Path(join(str(folder), name))), files))
        yield Checkout(uri=uri, folder=folder, fetched=True, pinned=commit is not None)


def _listed_below(uri: str, listing: Listing) -> dict[str, SourceFile]:
    """Return the listed files of a repository by their names in it."""
    if not uri.startswith(_STORES):
        raise InputError(
            "a Feast repository cannot be fetched from there",
            where=uri,
            hint=f"Name a folder, a prefix of an object store ({', '.join(_STORES)}), or {FORM}.",
        )
    root = f"{uri}/"
    found = {file.uri.removeprefix(root): file for file in listing.files if file.uri.startswith(root)}
    if SETTINGS in found:
        return found
    try:
        head(root + SETTINGS)
    except InputError as error:
        raise InputError(
            f"no Feast repository here: no {SETTINGS}", where=uri, hint="Name the prefix that holds it."
        ) from error
    raise InputError(
        f"a change of the features would go unseen: source does not hold {root}{SETTINGS}",
        where=listing.source,
        hint=f"Name all of the repository but compiled Python: {root}**/*[!c]",
    )
