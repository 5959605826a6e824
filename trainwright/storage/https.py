"""``https://`` by requests: one file a URI, pinned by its strong ETag or else its time of writing.

No proxy, password file or cookie of the machine is used, and no redirect is followed without a look: host and
address are checked for every connection, and the connection goes to the address that was checked.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import BinaryIO
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.storage.access import Access, require_host
from trainwright.storage.connections import Checked
from trainwright.storage.retries import PASSING_STATUS, wait_asked
from trainwright.storage.store import Absent, Passing, Sink, Taken
from trainwright.storage.uris import redacted

TIMEOUT_S = (10, 60)
_HOPS, _PIECE = 5, 1 << 16
_REFUSED = frozenset({401, 403, 407})
_GONE = frozenset({404, 410})
_PARTIAL, _TAKEN, _BEYOND = 206, 412, 416
_WITHOUT_RANGES = 64 << 20


class Server:
    """One web server. What it can do and raise is written at :class:`trainwright.storage.store.Store`."""

    def __init__(self, host: str, access: Access) -> None:
        self.host, self.access = host, access
        _require_allowed(f"https://{host}/", access)
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._session.mount("https://", Checked(access))

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return the file as it is now. Asks for one byte: that tells more than HEAD."""
        with self._get(name, {"Range": "bytes=0-0"}) as answer:
            found = SourceFile(
                uri=f"https://{self.host}/{name}",
                size=_size(answer, self._where(name)),
                checksum="",
                version=_mark(answer),
                written=_written(answer),
            )
        if version and found.version != version:
            raise Taken(f"version {found.version} lies there")
        return found

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:  # noqa: ARG002
        """A web server lists nothing."""
        raise InputError("a web server cannot be listed", where=self._where(prefix), hint="Name one file.")

    def children(self, prefix: str) -> list[str]:  # noqa: ARG002
        """A web server lists nothing."""
        return []

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` of the pinned version into the sink."""
        condition = {"If-Match": version} if version.startswith('"') else {}
        with self._get(name, {"Range": f"bytes={start}-{stop - 1}", **condition}) as answer:
            if version and _mark(answer) != version:
                raise Taken(f"version {_mark(answer)} lies there")
            begins = _begins(answer)
            if begins > start:
                raise Passing(f"bytes from {begins} on came, not from {start}")
            _pass_on(answer, start - begins, stop - start, sink)

    def push(self, name: str, content: BinaryIO, size: int, md5: bytes) -> SourceFile:  # noqa: ARG002
        """Nothing is written to a web server."""
        raise InputError("nothing is written to a web server", where=self._where(name))

    def delete(self, name: str) -> None:
        """Nothing is removed from a web server."""
        raise InputError("nothing is removed from a web server", where=self._where(name))

    def protection(self) -> str:
        """A web server promises nothing."""
        return "pinned_unprotected"

    def _where(self, name: str) -> str:
        return redacted(f"https://{self.host}/{name}")

    @contextmanager
    def _get(self, name: str, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Ask, and follow redirects to where it is allowed, and nowhere else."""
        url = f"https://{self.host}/{name}"
        with self._told(name):
            for _ in range(_HOPS):
                answer = self._session.get(
                    url,
                    headers={"Accept-Encoding": "identity", **headers},
                    stream=True,
                    allow_redirects=False,
                    timeout=TIMEOUT_S,
                )
                with answer:
                    if not answer.is_redirect:
                        self._judge(answer, name)
                        yield answer
                        return
                    url = urljoin(url, answer.headers["Location"])
                _require_allowed(url, self.access)
        raise InputError(
            f"redirected more than {_HOPS} times",
            where=self._where(name),
            hint="Name the address that it leads to in the end.",
        )

    def _judge(self, answer: requests.Response, name: str) -> None:
        status = answer.status_code
        if status in _GONE:
            raise Absent(f"{status}")
        if status == _TAKEN:
            raise Taken(f"{status}")
        if status in _REFUSED:
            raise PermissionRefused(
                f"the server refused: {status} {answer.reason}",
                where=self._where(name),
                hint="Only what needs no credentials is read over https; copy it to a bucket.",
            )
        if status in PASSING_STATUS:
            raise Passing(f"{status} {answer.reason}", wait_asked(answer.headers.get("Retry-After")))
        if status not in {requests.codes.ok, _PARTIAL, _BEYOND}:
            raise InputError(f"the server answered {status} {answer.reason}", where=self._where(name))

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Turn what the library raises into what every store raises."""
        try:
            yield
        except requests.exceptions.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" not in str(error):
                raise Passing(f"{type(error).__name__}: {redacted(str(error))}") from None
            raise PermissionRefused(
                "the server's certificate is not one that this machine trusts",
                where=self._where(name),
                hint="Add its authority to the machine's, or look who answers there.",
            ) from None
        except (requests.exceptions.InvalidURL, UnicodeError) as error:
            raise InputError(f"this is no URL: {redacted(str(error))}", where=self._where(name)) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as error:
            answered = not isinstance(error, requests.ConnectionError)
            raise Passing(
                f"{type(error).__name__}: {redacted(str(error))[:200]}", answered=answered
            ) from None


def _require_allowed(url: str, access: Access) -> None:
    """Refuse a URL, or where a redirect leads, that is not https or of a host that is not on the list."""
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
    """Return how long the whole file is."""
    if answer.status_code == requests.codes.ok:
        length = answer.headers.get("Content-Length", "")
    else:
        length = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if not length.isdigit():
        raise InputError(
            "the server does not say how long the file is",
            where=where,
            hint="Copy the file to a bucket or a disk.",
        )
    if answer.status_code == requests.codes.ok and int(length) > _WITHOUT_RANGES:
        raise InputError(
            f"the server serves no ranges, and the file has {int(length):,} bytes",
            where=where,
            hint=f"Copy it to a bucket or a disk; up to {_WITHOUT_RANGES:,} bytes it is read as it is.",
        )
    return int(length)


def _begins(answer: requests.Response) -> int:
    """Return the offset of the first byte that comes."""
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(found[1]) if answer.status_code == _PARTIAL and found else 0


def _pass_on(answer: requests.Response, skip: int, count: int, sink: Sink) -> None:
    for piece in answer.raw.stream(_PIECE, decode_content=False):
        wanted = piece[skip : skip + count]
        skip, count = max(0, skip - len(piece)), count - len(wanted)
        if wanted:
            sink(wanted)
        if not count:
            return


def _mark(answer: requests.Response) -> str:
    """Return what tells this state of the file from another; empty if the server says nothing."""
    etag = answer.headers.get("ETag", "")
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified", etag)


def _written(answer: requests.Response) -> str:
    try:
        return f"{parsedate_to_datetime(answer.headers['Last-Modified']):%Y-%m-%dT%H:%M:%SZ}"
    except (KeyError, ValueError):
        return ""
