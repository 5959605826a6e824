"""Deliver messages to several receivers at a time, within one limit; a failure becomes a line of text."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from trainwright.documents import canonical
from trainwright.errors import InputError, clean
from trainwright.http_exchange import exchange, is_transient
from trainwright.http_limits import HttpLimits
from trainwright.retries import GaveUp, retry

DEADLINE_S, TIMEOUT_S, LIMIT_S = 12.0, 8.0, 22.0
"""Seconds for the retries of a delivery, for one wait, and for all of them: a stopped run has 30 s in all."""

_ANSWER = HttpLimits(seconds=TIMEOUT_S, max_bytes=1 << 20)
_URL = re.compile(r"https://[!-?A-~]+")  # a printable URL without a user


def deliver(deliveries: Mapping[str, Callable[[], None]]) -> list[str]:
    """Call every delivery, by its name, in a thread; return a line for each that failed, with the reason."""
    problems: dict[str, str] = {}

    def work(name: str, send: Callable[[], None]) -> None:
        try:
            send()
            problems[name] = ""
        except Exception as error:
            problems[name] = _reason(error)

    # Daemons: neither a name that is looked up for minutes nor a server that trickles keeps the run waiting.
    threads = [threading.Thread(target=work, args=entry, daemon=True) for entry in deliveries.items()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    found = {name: problems.get(name, f"no answer within {LIMIT_S:g} s") for name in deliveries}
    return [f"{one_line(name)}: {problem}" for name, problem in found.items() if problem]


def _reason(error: Exception) -> str:
    found = error.error if isinstance(error, GaveUp) else error
    text = getattr(found, "what", "") or f"{type(found).__name__}: {found}"
    parts = [text, getattr(found, "where", ""), getattr(found, "hint", "") or "Look at the receiver."]
    return one_line(". ".join(part for part in parts if part))


def one_line(text: str) -> str:
    """Return a text on one line, bounded, without secrets and control characters."""
    return " ".join(clean(text, 1_000).split())


def post_json(url: str, document: Mapping[str, Any], key: str, token: str = "") -> None:
    """Post a JSON document to a URL, with retries; no error contains the URL, which may be a secret.

    ``key`` is the key of the experiment that names the URL; ``token`` a bearer token, empty for none.

    Raises:
        InputError: It is no https URL.
        GaveUp: The server did not accept it until the deadline.
        HttpStatus: The server rejected it, or redirects.
    """
    host = urlsplit(url).hostname if _URL.fullmatch(url) else None
    if not host:
        raise InputError("expected an https:// URL without user and spaces", where=key)
    headers = {"Content-Type": "application/json", "User-Agent": "trainwright"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = canonical(document).encode()

    def send() -> None:
        exchange("POST", url, headers, body, timeout_s=TIMEOUT_S, limits=_ANSWER)

    retry(send, is_transient, f"posting to {host}", DEADLINE_S)
