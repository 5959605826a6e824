"""One bounded HTTP exchange: without redirects, and without the machine's proxies, cookies and passwords."""

import http.client
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from trainwright.http_limits import ANSWER, HttpLimits, limited

_BUSY = 429


class HttpStatus(Exception):
    """An answer whose status is not 2xx, with the beginning of its text."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"HTTP {code} {text}".rstrip())
        self.code = code


def exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    timeout_s: float,
    limits: HttpLimits = ANSWER,
    authority: str = "",
) -> bytes:
    """Send one request and return the body of the answer.

    ``timeout_s`` is for a connection and for each wait for bytes, ``limits`` for the whole answer.
    ``authority`` is a CA file; empty for the certificates of the machine.

    Raises:
        HttpStatus: The status is not 2xx. The text of a redirect is the host that it leads to.
        OSError: The server cannot be reached, is not trusted, or is too slow.
        http.client.HTTPException: The answer is not HTTP.
    """
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}".rstrip("?")
    if parts.scheme == "https":
        trusted = ssl.create_default_context(cafile=authority or None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=timeout_s, context=trusted
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    try:
        with limited(limits):
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            content = answer.read()
    finally:
        connection.close()
    if 200 <= answer.status < 300:  # noqa: PLR2004
        return content
    if host := urlsplit(answer.getheader("Location") or "").hostname:
        raise HttpStatus(answer.status, f"leads to {host}; redirects are not followed")
    raise HttpStatus(answer.status, content[:400].decode(errors="replace"))


def is_transient(error: Exception) -> bool:
    """Tell whether the same exchange may succeed later."""
    if isinstance(error, HttpStatus):
        return error.code >= http.client.INTERNAL_SERVER_ERROR or error.code == _BUSY
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, OSError | http.client.HTTPException)
