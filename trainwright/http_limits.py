"""Limits of HTTP exchanges: a deadline and a size for a whole answer, the least rate of data both ways.

The timeout of an HTTP client limits one wait for bytes: a server that sends or takes a byte every second is
served forever, and its answer may have any size. No client has an option for the whole. All that this library
uses (requests, urllib3, botocore, google-auth, kubernetes, kfp, MLflow, docker) send and read by
:mod:`http.client`, so the limits are in its connections and in the class of its responses. Outside of
:func:`limited` both do what they always did.
"""

import contextlib
import http.client
import io
import math
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

from trainwright.errors import DependencyError

_HEADER_S = 120.0
"""Seconds until the headers of a download have arrived."""

_WINDOW_S = 60.0
"""Seconds of waiting over which the rate of a download is measured."""

_UPLOAD_RATE, _UPLOAD_BLOCK = 16 << 10, 64 << 10
"""Least bytes per second of what is sent, and the bytes after which that is measured.

So the deadline of an upload follows from its size: 35 minutes for a part of 32 MiB.
"""

_DEFLATED = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""Encodings of an answer, and how :mod:`zlib` calls them."""


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Limits of one answer.

    Attributes:
        seconds: Deadline, counted from when the request was sent; without one, that of the headers.
        max_bytes: Size, as it arrives and once decompressed.
        least_rate: Bytes per second while the reader waits for them; the time that the reader takes itself
            does not count.
    """

    seconds: float = math.inf
    max_bytes: float = math.inf
    least_rate: int = 0

    @classmethod
    def of_file(cls, size: int) -> "HttpLimits":
        """Return the limits of a download of known size; headers and encodings make it a little larger."""
        return cls(max_bytes=size + size // 8 + (1 << 20), least_rate=DOWNLOAD.least_rate)


MAX_BYTES = 64 << 20
"""The largest answer of an API; the state of a run with hundreds of steps has some megabytes."""

ANSWER = HttpLimits(seconds=120.0, max_bytes=MAX_BYTES)
"""A document or the answer of an API."""

DOWNLOAD = HttpLimits(least_rate=1024)
"""Data of any size, at 1 KiB/s or more."""

FOLLOWED = HttpLimits()
"""A log that is followed: it may be silent, and ends when its writer does."""

_current: ContextVar[HttpLimits | None] = ContextVar("limits", default=None)
_of_threads: list[HttpLimits] = []


@contextlib.contextmanager
def limited(limits: HttpLimits = ANSWER, *, threads: bool = False) -> Iterator[None]:
    """Limit every request that this thread sends in the body, and its answer, which may be read later.

    Args:
        limits: The limits of each answer; what is sent has a least rate.
        threads: Limit the requests of other threads, too, that have no limits of their own: those that a
            library starts, such as MLflow's downloads.

    A missed deadline raises ``TimeoutError``, which each client translates into its own read timeout; a size
    above the limit raises :class:`~trainwright.errors.DependencyError`.
    """
    http.client.HTTPConnection.response_class = _Response
    http.client.HTTPConnection.send = _send  # type: ignore[method-assign, assignment]
    token = _current.set(limits)
    if threads:
        _of_threads.append(limits)
    try:
        yield
    finally:
        _current.reset(token)
        if threads:
            _of_threads.remove(limits)


def _limits() -> HttpLimits | None:
    return _current.get() or (_of_threads[-1] if _of_threads else None)


class _Progress:
    """Requires a least rate while a socket makes a process wait; other time does not count."""

    def __init__(self, least_rate: int) -> None:
        self._least_rate, self._seconds, self._bytes = least_rate, 0.0, 0

    def note(self, count: int, waited_s: float) -> None:
        """Note some bytes; raise TimeoutError if there were too few over the last window."""
        self._seconds, self._bytes = self._seconds + waited_s, self._bytes + count
        if count and self._seconds >= _WINDOW_S:
            if self._bytes < self._seconds * self._least_rate:
                raise TimeoutError(f"{self._bytes} bytes passed in {self._seconds:.0f} s")
            self._seconds, self._bytes = 0.0, 0


_plain_send = http.client.HTTPConnection.send


def _send(connection: http.client.HTTPConnection, data: Any) -> None:
    """Send data in blocks, each within the connection's timeout, at the least rate."""
    if _limits() is None or not isinstance(data, bytes | bytearray | memoryview):
        return _plain_send(connection, data)
    progress = connection.__dict__.setdefault("_trainwright_sent", _Progress(_UPLOAD_RATE))
    for start in range(0, len(data) or 1, _UPLOAD_BLOCK):
        block, started = data[start : start + _UPLOAD_BLOCK], monotonic()
        _plain_send(connection, block)
        progress.note(len(block), monotonic() - started)
    return None


class _Response(http.client.HTTPResponse):
    """A response of http.client within the limits that hold where it begins."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        limits = _limits()
        self._input = _LimitedInput(sock, limits) if limits else None
        super().__init__(self._input or sock, *args, **options)  # type: ignore[arg-type]

    def begin(self) -> None:
        super().begin()
        if self._input is None:
            return
        self._input.headers_end()
        encoding = (self.getheader("Content-Encoding") or "identity").strip().lower()
        if encoding != "identity" and math.isfinite(self._input.limits.max_bytes):
            self._decompress(encoding)

    def _decompress(self, encoding: str) -> None:
        """Replace a compressed body by its content: clients would decompress it without a limit."""
        assert self._input is not None  # noqa: S101
        try:
            body = inflate(self.read(), int(self._input.limits.max_bytes), encoding)
        except ValueError as error:
            raise http.client.HTTPException(str(error)) from None
        for name in ("Content-Encoding", "Transfer-Encoding", "Content-Length"):
            del self.headers[name]
        self.headers["Content-Length"] = str(len(body))
        self.fp, self.length, self.chunked = io.BufferedReader(io.BytesIO(body)), len(body), False


def inflate(body: bytes, max_bytes: int, encoding: str = "gzip") -> bytes:
    """Decompress a body to at most ``max_bytes`` bytes.

    Raises:
        ValueError: The encoding is not gzip or deflate, or the body is damaged.
        DependencyError: It is larger.
    """
    if not body:
        return b""
    if encoding not in _DEFLATED:
        raise ValueError(f"an answer with the encoding {encoding!r:.40}")
    content = b""
    for window in (_DEFLATED[encoding], -15):  # some servers send a deflate stream without its header
        stream = zlib.decompressobj(window)
        with contextlib.suppress(zlib.error):
            content = stream.decompress(body, max_bytes + 1)
            break
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    if not stream.eof:
        raise ValueError(f"an answer that is not the {encoding} it says, or not all of it")
    return content


class _LimitedInput(io.RawIOBase):
    """The bytes of a socket, read within limits."""

    def __init__(self, sock: Any, limits: HttpLimits) -> None:
        self.limits, self._socket, self._stream = limits, sock, sock.makefile("rb", 0)
        self._seconds = limits.seconds if math.isfinite(limits.seconds) else _HEADER_S
        self._deadline, self._bytes = monotonic() + self._seconds, 0
        self._progress = _Progress(limits.least_rate)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - as of a socket
        """Return it as http.client reads it."""
        return io.BufferedReader(self)

    def headers_end(self) -> None:
        """Note that the headers have arrived: from here on a download has no deadline."""
        if not math.isfinite(self.limits.seconds):
            self._deadline = math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int | None:
        started = monotonic()
        rest, patience = self._deadline - started, self._socket.gettimeout()
        if rest <= 0:
            raise TimeoutError(f"the answer took more than {self._seconds:g} s")
        if patience is None or rest < patience:
            self._socket.settimeout(rest if math.isfinite(rest) else _WINDOW_S)
        try:
            count: int | None = self._stream.readinto(target)
        finally:
            with contextlib.suppress(OSError):  # it may have been closed by another thread
                self._socket.settimeout(patience)
        self._bytes += count or 0
        if self._bytes > self.limits.max_bytes:
            raise too_large(int(self.limits.max_bytes))
        self._progress.note(count or 0, monotonic() - started)
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def too_large(max_bytes: int) -> DependencyError:
    """Return the error for an answer above the limit."""
    return DependencyError(
        f"the server's answer has more than the {max_bytes:,} bytes that are read",
        hint="Look at the address and at the server: an answer of its API is much smaller.",
    )
