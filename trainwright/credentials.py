"""Read secrets from files, and reject parameters that contain one before a run or a pipeline is written.

Arguments are stored in the compiled YAML, the run's page, folder, records and cache. A message names the
place and the kind of a secret, never its text.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainwright.errors import InputError, PermissionRefused
from trainwright.redaction import SECRET_NAME, secrets_in

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s\"'<>]+")
_MAY_BE_PLAIN = ("tracking_uri", "hub", "run.page")
"""Keys whose address may be plain: servers in a cluster have no TLS by default, and a page is but a link."""


def require_none(data: Any, *, where: str, plain: bool = False) -> None:
    """Reject data in which a string is or contains a secret, or an address that is not encrypted.

    Args:
        data: Plain data; strings that are JSON are searched too.
        where: Description of the data, such as the path of an experiment file.
        plain: Accept ``http://`` everywhere.

    Raises:
        InputError: A text contains a secret, or an address is not encrypted. All places are listed.
    """
    found = [
        f"{'.'.join(path)}: {problem}"
        for path, text in _texts(data, ())
        for problem in _problems(path, text, plain=plain)
    ]
    if found:
        raise InputError(
            "a parameter must not be written like this: it would be stored and shown with the run\n"
            + "\n".join(f"  {line}" for line in found),
            where=where,
            hint="Take a secret out, and revoke it where it was issued: a step has its own identity, the "
            "password of a database is in a file (data.sql.password_file), and others are in "
            "resources.placement.env_from_secrets.",
        )


def read_secret(path: str, key: str) -> str:
    """Read a secret from a file, such as one of a mounted Secret, without its last line break.

    Args:
        path: The file.
        key: Key of the experiment that names it, for an error.

    Raises:
        InputError: There is no such file.
        PermissionRefused: It cannot be read.
    """
    where = f"{key}: {path}"
    try:
        return Path(path).read_text().rstrip("\r\n")
    except FileNotFoundError:
        raise InputError(
            "no such file", where=where, hint="Mount the secret there, or name its file."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        what = f"the secret cannot be read: {type(error).__name__}"
        raise PermissionRefused(what, where=where) from None


def _texts(data: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text with its place; a text that is a JSON object or list is searched in its place."""
    if isinstance(data, str) and data.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(data)
    if isinstance(data, Mapping):
        for number, (key, value) in enumerate(data.items()):
            name = str(key)
            if secrets_in(name):
                yield (*path, f"key {number + 1}"), name
                name = f"value {number + 1}"
            yield from _texts(value, (*path, name))
    elif isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from _texts(value, (*path, str(number)))
    elif isinstance(data, str):
        yield path, data


def _problems(path: tuple[str, ...], text: str, *, plain: bool) -> Iterator[str]:
    kinds = secrets_in(text)
    if kinds:
        yield f"this contains {' and '.join(kinds)}"
    elif text and path and SECRET_NAME.fullmatch(path[-1]):
        yield "this is the value of a secret, by its name"
    for uri in _URI.findall(text):
        try:
            scheme = urlsplit(uri).scheme
        except ValueError:
            yield "it is no address"
            continue
        if scheme == "http" and not plain and not ".".join(path).endswith(_MAY_BE_PLAIN):
            yield "http:// is not encrypted and says nothing of who answers; use https://"
