"""Deliver messages to several receivers at a time, within one limit; a failure becomes a line of text."""

import contextlib
import re
import smtplib
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from typing import Any
from urllib.parse import urlsplit

from trainwright.documents import canonical
from trainwright.errors import DependencyError, InputError, clean
from trainwright.experiment import Smtp
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


_PERMANENT = 500


def send_mail(server: Smtp, password: str, message: EmailMessage) -> None:
    """Send a message to all its recipients, with retries.

    Raises:
        InputError: The server delivers to some recipients only.
        DependencyError: It offers no encryption.
        GaveUp: It did not accept the message until the deadline.
        smtplib.SMTPException: It rejects the login, the sender or all recipients.
    """

    def once() -> None:
        place, trusted = (server.host, server.port), ssl.create_default_context()
        if server.security == "tls":
            client: smtplib.SMTP = smtplib.SMTP_SSL(*place, timeout=TIMEOUT_S, context=trusted)
        else:
            client = smtplib.SMTP(*place, timeout=TIMEOUT_S)
        with contextlib.closing(client):
            if server.security == "starttls":
                client.starttls(context=trusted)
            if server.user:
                client.login(server.user, password)
            refused = client.send_message(message)
            with contextlib.suppress(OSError):  # it has the letter, and another try would send it again
                client.quit()
        if refused:
            rejected = ", ".join(refused)
            raise InputError(f"{server.host} delivers to the other recipients, but rejects {rejected}")

    try:
        retry(once, _is_transient, f"sending mail to {server.host}", DEADLINE_S)
    except smtplib.SMTPNotSupportedError as error:
        raise DependencyError(
            f"{server.host}:{server.port}: {error}",
            hint="Name a port that offers it, or set run.smtp.security.",
        ) from None


def _is_transient(error: Exception) -> bool:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code < _PERMANENT for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code < _PERMANENT
    if isinstance(error, smtplib.SMTPNotSupportedError | ssl.SSLCertVerificationError):
        return False
    return isinstance(error, OSError)
