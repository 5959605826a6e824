"""Reject addresses that contain a secret or are not encrypted before they enter a run.

Arguments are stored in the compiled YAML, the run's page, folder, records and cache. A message names the
place of a secret, never its text.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trainwright.errors import InputError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s\"'<>]+")
_SECRET = re.compile(
    r"(^|[-_.])(sig|signature|token|secret|password|passwd|pwd|credential|(api|access|account)[-_.]?key(id)?)$",
    re.IGNORECASE,
)
"""Names of query parameters that hold a secret, such as those of a signed URL."""

_MAY_BE_PLAIN = ("tracking_uri",)
"""Keys whose servers may be reached without encryption: MLflow inside a cluster has none by default."""


def require_none(data: Any, *, where: str, plain: bool = False) -> None:
    """Reject data in which a string contains an address with a secret.

    Args:
        data: Plain data; strings that are JSON are searched too.
        where: Description of the data, such as the path of an experiment file.
        plain: Accept ``http://`` everywhere.

    Raises:
        InputError: An address contains a password, a token or a signature, or is not encrypted. All places
            are listed.
    """
    found = [
        f"{place}: {problem}"
        for place, text in _texts(data, ())
        for uri in _URI.findall(text)
        if (problem := _problem(uri, plain=plain or place.endswith(_MAY_BE_PLAIN)))
    ]
    if found:
        raise InputError(
            "an address must not be written like this\n" + "\n".join(f"  {line}" for line in found),
            where=where,
            hint="Take the secret out: a step has its own identity, and a database's password lies in a file "
            "(data.sql.password_file).",
        )


def _texts(data: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield every text with its place; a text that is a JSON object or list is searched in its place."""
    if isinstance(data, str) and data.startswith(("{", "[")):
        with contextlib.suppress(json.JSONDecodeError):
            data = json.loads(data)
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _texts(value, (*path, str(key)))
    elif isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from _texts(value, (*path, str(number)))
    elif isinstance(data, str):
        yield ".".join(path), data


def _problem(uri: str, *, plain: bool) -> str:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "it is no address"
    user, at, _ = parts.netloc.rpartition("@")
    if at and ":" in user:
        return f"this {parts.scheme}:// address carries a password"
    if secret := next((name for name, _ in parse_qsl(parts.query) if _SECRET.search(name)), ""):
        return f"this {parts.scheme}:// address carries a secret, {secret}"
    if parts.scheme == "http" and not plain:
        return "http:// is not encrypted and says nothing of who answers; use https://"
    return ""
