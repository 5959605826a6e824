"""``https://`` by requests: one file a URI, pinned by its strong ETag or else its time of writing.

No proxy, password file or cookie of the machine is used, and every redirect is checked. A name is looked up
once, every address it has is checked, and the connection goes to one of those: between two look-ups the
answer could change. The certificate is still that of the name.
"""

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from typing import Any, ClassVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.exceptions import NameResolutionError, NewConnectionError

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused, TrainwrightError
from trainwright.http_limits import DOWNLOAD, limited
from trainwright.redaction import redacted
from trainwright.storage.access import Access, addresses, require_host
from trainwright.storage.store import PreconditionFailed, RemoteStore, RetryableError, Sink, failure_of


class CheckedAdapter(HTTPAdapter):
    """Adapter for https whose connections, also after a redirect, only go to allowed addresses."""

    def __init__(self, access: Access) -> None:
        self._access = access
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **settings: Any) -> None:
        """Create the connection pool; it trusts the machine's certificates besides those of requests."""
        settings["ssl_context"] = ssl.create_default_context()
        super().init_poolmanager(*args, **settings)
        connection = type("Connection", (_Connection,), {"access": self._access})
        pool = type("Pool", (HTTPSConnectionPool,), {"ConnectionCls": connection})
        self.poolmanager.pool_classes_by_scheme = {"https": pool}


class _Connection(HTTPSConnection):
    access: ClassVar[Access]

    def _new_conn(self) -> socket.socket:
        try:
            places = addresses(self.host, self.port or self.default_port, self.access)
        except OSError as error:
            raise NameResolutionError(self.host, self, error) from error  # type: ignore[arg-type]
        for place in places:
            try:
                return socket.create_connection(place, self.timeout, self.source_address)
            except OSError as error:
                failure = error
        raise NewConnectionError(self, f"no address of {self.host} answers: {failure}")


@contextmanager
def translating_requests(where: str, untrusted: TrainwrightError) -> Iterator[None]:
    """Translate errors of requests into those of a store; a certificate that is not trusted into its own."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise untrusted from None
        raise RetryableError(f"{type(error).__name__}: {error}") from None
    except (requests.exceptions.InvalidURL, ValueError) as error:
        raise InputError(f"this is no URL: {redacted(str(error))}", where=where) from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as error:
        answered = not isinstance(error, requests.ConnectionError)
        raise RetryableError(f"{type(error).__name__}: {str(error)[:200]}", answered=answered) from None


TIMEOUT_S = (10, 60)
_HOPS, _PIECE = 5, 1 << 16
_WITHOUT_RANGES = 64 << 20


class WebServer(RemoteStore):
    """A web server; see :class:`trainwright.storage.store.RemoteStore`."""

    def __init__(self, host: str, access: Access) -> None:
        self.host, self.access = host, access
        _require_allowed(f"https://{host}/", access)
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._session.mount("https://", CheckedAdapter(access))

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return the file as it is now. A request for one byte says more than HEAD."""
        with self._get(name, {"Range": "bytes=0-0"}) as answer:
            written = ""
            with suppress(KeyError, ValueError):
                written = f"{parsedate_to_datetime(answer.headers['Last-Modified']):%Y-%m-%dT%H:%M:%SZ}"
            found = SourceFile(
                uri=f"https://{self.host}/{name}",
                size=_size(answer, self._where(name)),
                checksum="",
                version=_version(answer),
                written=written,
            )
        if version and found.version != version:
            raise PreconditionFailed(f"version {found.version} lies there")
        return found

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` of the pinned version into the sink."""
        condition = {"If-Match": version} if version.startswith('"') else {}
        with self._get(name, {"Range": f"bytes={start}-{stop - 1}", **condition}) as answer:
            if version and _version(answer) != version:
                raise PreconditionFailed(f"version {_version(answer)} lies there")
            found = re.match(r"bytes ([0-9]{1,18})-", answer.headers.get("Content-Range", ""))
            first = int(found[1]) if answer.status_code == HTTPStatus.PARTIAL_CONTENT and found else 0
            if first > start:
                raise RetryableError(f"expected bytes from {start}, got bytes from {first}")
            skip, count = start - first, stop - start
            for piece in answer.raw.stream(_PIECE, decode_content=False):
                wanted = piece[skip : skip + count]
                skip, count = max(0, skip - len(piece)), count - len(wanted)
                if wanted:
                    sink(wanted)
                if not count:
                    return

    def protection(self) -> str:
        """A web server promises nothing."""
        return "pinned_unprotected"

    def _where(self, name: str) -> str:
        return redacted(f"https://{self.host}/{name}")

    @contextmanager
    def _get(self, name: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Send a request, and follow redirects to allowed hosts only."""
        url = f"https://{self.host}/{name}"
        untrusted = PermissionRefused(
            "the server's certificate is not one that this machine trusts",
            where=self._where(name),
            hint="Add its authority to the machine's, or look who answers there.",
        )
        with translating_requests(self._where(name), untrusted):
            for _ in range(_HOPS):
                with limited(DOWNLOAD):
                    answer = self._session.get(
                        url,
                        headers={"Accept-Encoding": "identity", **headers},
                        stream=True,
                        allow_redirects=False,
                        timeout=TIMEOUT_S,
                    )
                with answer:
                    if not answer.is_redirect:
                        self._require_success(answer, name)
                        yield answer
                        return
                    url = urljoin(url, answer.headers["Location"])
                _require_allowed(url, self.access)
        raise InputError(
            f"redirected more than {_HOPS} times",
            where=self._where(name),
            hint="Name the address that it leads to in the end.",
        )

    def _require_success(self, answer: requests.Response, name: str) -> None:
        status = answer.status_code
        if failure := failure_of(status, f"{status} {answer.reason}", answer.headers.get("Retry-After")):
            raise failure
        if status in {401, 403, 407}:
            raise PermissionRefused(
                f"the server refused: {status} {answer.reason}",
                where=self._where(name),
                hint="Only what needs no credentials is read over https; copy it to a bucket.",
            )
        if status not in {200, 206, 416}:
            raise InputError(f"the server answered {status} {answer.reason}", where=self._where(name))


def _require_allowed(url: str, access: Access) -> None:
    """Reject a URL, also of a redirect, that is not https or whose host is not on the list."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InputError("this is no URL", where=redacted(url)) from None
    if parts.scheme != "https" or parts.username is not None or not host:
        raise PermissionRefused(
            "a redirect leads away from https",
            where=redacted(url),
            hint="Name an https address that needs none.",
        )
    require_host(host, port, access)


def _size(answer: requests.Response, where: str) -> int:
    """Return the size of the whole file."""
    whole = answer.status_code == HTTPStatus.OK  # the server ignores ranges
    header = answer.headers.get("Content-Length" if whole else "Content-Range", "")
    length = header.rpartition("/")[2]
    if not re.fullmatch("[0-9]{1,18}", length):
        hint = "Copy the file to a bucket or a disk."
        raise InputError("the server does not say how long the file is", where=where, hint=hint)
    if whole and int(length) > _WITHOUT_RANGES:
        raise InputError(
            f"the server serves no ranges, and the file has {int(length):,} bytes",
            where=where,
            hint=f"Copy it to a bucket or a disk; up to {_WITHOUT_RANGES:,} bytes it is read as it is.",
        )
    return int(length)


def _version(answer: requests.Response) -> str:
    """Return the version of the file; empty if the server says nothing."""
    etag = answer.headers.get("ETag", "")
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified", etag)
