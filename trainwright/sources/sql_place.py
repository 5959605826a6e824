"""Where a database is: a URL without user and password, and what may be reached behind it."""

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from trainwright.errors import InputError, PermissionRefused
from trainwright.storage import Access, local_path, redacted
from trainwright.storage.access import METADATA, refuse_host

Kind = Literal["postgresql", "sqlite"]

_PORT = 5432
_OPTIONS = ("sslmode", "sslrootcert", "application_name")
_FILE = re.compile(r"sqlite:///(?P<path>[^?#]+)")


@dataclass(frozen=True)
class Place:
    """A database.

    Attributes:
        kind: Its kind.
        url: Its URL, without what was pinned.
        host: The server's name; empty for SQLite.
        port: The server's port.
        name: The database's name; the absolute path of an SQLite file.
        options: What the URL says after its ``?``.
    """

    kind: Kind
    url: str
    host: str = ""
    port: int = _PORT
    name: str = ""
    options: tuple[tuple[str, str], ...] = ()


def place_of(url: str) -> Place:
    """Read the URL of a database.

    Raises:
        InputError: It is no such URL, or carries a user or a password.
        PermissionRefused: It names a file of the machine's own.
    """
    shown = redacted(url)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"postgresql", "sqlite"}:
        raise InputError(
            f"{shown!r:.200} is no database that is read here; known are postgresql:// and sqlite://",
            where="data.source",
            hint="Write postgresql://HOST:5432/DATABASE or sqlite:////PATH; export others as Parquet.",
        )
    if shown != url or "@" in rest.partition("/")[0]:
        raise InputError(
            "the URL of a database carries a user or a password",
            where="data.source",
            hint="Take them out: data.sql.user and data.sql.password_file say them.",
        )
    return _file(url) if scheme == "sqlite" else _server(url)


def _file(url: str) -> Place:
    found = _FILE.fullmatch(url)
    path = local_path(unquote(found["path"])) if found else None
    if path is None:
        raise InputError(
            f"{url!r:.200} names no SQLite file", where="data.source", hint="Write sqlite:////PATH."
        )
    if not path.is_file():
        raise InputError("no such SQLite file", where=str(path))
    return Place("sqlite", url, name=str(path))


def _server(url: str) -> Place:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORT
    except ValueError as error:
        raise InputError(f"{url!r:.200} is no URL: {error}", where="data.source") from None
    name = unquote(parts.path.strip("/"))
    if not host or not name or "/" in name or parts.fragment:
        raise InputError(
            f"{url!r:.200} names no host and database",
            where="data.source",
            hint="Write postgresql://HOST:5432/DATABASE.",
        )
    options = tuple(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted({option for option, _ in options} - set(_OPTIONS)):
        raise InputError(
            f"options {unknown} of a database's URL are not taken; known are {', '.join(_OPTIONS)}",
            where="data.source",
        )
    return Place("postgresql", url, host, port, name, options)


def reachable_address(place: Place, access: Access) -> str:
    """Look a server up, and return one of its addresses, once all of them were found to be allowed.

    A database in a private network may be read. Of this machine's own and of link-local addresses only a
    host that ``data.hosts`` names may be, and where that names any host, it names all.

    Raises:
        PermissionRefused: One of them is not, or it leads to where clouds keep credentials.
        OSError: The name has no address.
    """
    listed = place.host in access.hosts or f"{place.host}:{place.port}" in access.hosts
    refuse_host(place.host, local_addresses=True)
    if access.hosts and not listed:
        raise PermissionRefused(
            f"host {place.host} is not one that may be read; allowed: {', '.join(access.hosts)}",
            where=place.url,
            hint="Add it to data.hosts, if it is to be trusted.",
        )
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    for *_, target in found:
        text = str(target[0])
        address = ipaddress.ip_address(text.partition("%")[0])
        unwrapped = getattr(address, "ipv4_mapped", None) or address
        own = unwrapped.is_loopback or unwrapped.is_link_local or unwrapped.is_unspecified
        if unwrapped in METADATA or (own and not (listed or access.local_addresses)):
            raise PermissionRefused(
                f"host {place.host} leads to {address}: this machine, its link or its cloud's metadata",
                where=place.url,
                hint="Add the host to data.hosts, if a database of this machine is meant.",
            )
    return str(found[0][4][0])
