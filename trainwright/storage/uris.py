"""Paths, URIs and globs: parse, check and match.

The same glob rules hold for a disk and for object stores: ``*`` and ``?`` within a folder, ``[..]`` for one
character, ``**`` across folders. A name that starts with ``.`` or ``_`` is hidden: a wildcard never matches
it, a pattern that starts with the same character does.
"""

import difflib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainwright.errors import InputError, PermissionRefused
from trainwright.redaction import redacted, secrets_in

HIDDEN = (".", "_")
WILDCARD = re.compile(r"[*?\[]")
_NOT_HIDDEN = r"(?![._])"


def is_visible(name: str, suffixes: tuple[str, ...]) -> bool:
    """Tell whether no part of a path is hidden, and it has one of the endings, in any case."""
    hidden = any(part.startswith(HIDDEN) for part in name.split("/"))
    return not hidden and (not suffixes or name.lower().endswith(suffixes))


def matcher(pattern: str, suffixes: tuple[str, ...] = ()) -> Callable[[str], bool]:
    """Return a function that tells whether a path matches a pattern.

    Where the pattern ends with ``*``, a path must have one of the suffixes: ``day=*/*`` matches the tables
    there, and not other files beside them.
    """
    if pattern == "**" or pattern.endswith("/**"):
        pattern += "/*"
    *folders, last = re.sub(r"(?:(?<=/)|^)(?:\*\*/)+", "**/", pattern).split("/")
    ways = "".join(f"(?:{_NOT_HIDDEN}[^/]+/)*" if name == "**" else f"{_segment(name)}/" for name in folders)
    try:
        found = re.compile(f"{ways}{_segment(last)}", re.DOTALL)
    except re.error as error:
        raise InputError(f"{pattern!r:.200} is no pattern: {error}", where="source") from None
    endings = suffixes if last.endswith("*") else ()
    return lambda path: found.fullmatch(path) is not None and (not endings or path.lower().endswith(endings))


def _segment(pattern: str) -> str:
    """Return one folder's or file's pattern as a regular expression that never crosses a slash."""
    # The text between two stars matches where it comes first, without backtracking: so a match takes no
    # longer than the text times the pattern, however many stars there are.
    parts, rest = [""], pattern
    while rest:
        group = re.match(r"\[(!?)(\]?[^\]/]*)\]", rest)
        if group and group[2]:
            inside = re.sub(r"([\\\[&~|^])", r"\\\1", group[2])
            parts[-1] += f"(?!/)[{'^' if group[1] else ''}{inside}]"
            rest = rest[group.end() :]
            continue
        if rest[0] == "*":
            parts.append("")
        else:
            parts[-1] += "[^/]" if rest[0] == "?" else re.escape(rest[0])
        rest = rest[1:]
    hidden = _NOT_HIDDEN if pattern[:1] in {"*", "?", "["} else ""
    between = "".join(f"(?>[^/]*?{part})" for part in parts[1:-1])
    return f"{hidden}{parts[0]}{between}" + (f"[^/]*{parts[-1]}" if len(parts) > 1 else "")


SCHEMES = ("file", "gs", "s3", "minio", "https")
"""Known schemes; a path without a scheme is local."""

FORBIDDEN = ("/etc", "/proc", "/sys", "/dev", "/run/secrets", "/var/run/secrets")
"""Folders of the system, or with the identity of the pod: never a source. ``/dev/shm`` alone has data."""

_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_SLIP = re.compile(r"(gs|s3|minio|https?|file):/*", re.IGNORECASE)


@dataclass(frozen=True)
class Remote:
    """An object or a prefix in an object store, or a page of a web server.

    Attributes:
        scheme: ``gs``, ``s3``, ``minio`` or ``https``.
        bucket: The bucket; of ``https`` the host, with its port if it has one.
        name: The object's name, without a leading slash; of ``https`` the path and the query.
    """

    scheme: str
    bucket: str
    name: str

    @property
    def uri(self) -> str:
        """Return the URI."""
        return f"{self.scheme}://{self.bucket}/{self.name}"


def remote(uri: str) -> Remote | None:
    """Parse a remote URI; return None for a local path.

    Raises:
        InputError: It is empty, malformed, of an unknown scheme, or has credentials.
        PermissionRefused: It has ``..``, or names a folder of the system.
    """
    _require_text(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        _reject_slip(uri)
        return None
    if (shown := redacted(uri)) != uri:
        what = " and ".join(secrets_in(uri)) or "a user"
        hint = "Take it out: credentials come from the identity that the step runs under."
        raise InputError(f"a {scheme}:// URI carries {what}", where=shown, hint=hint)
    if scheme not in SCHEMES:
        raise _unknown(scheme, rest)
    if scheme == "file":
        return None
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise InputError(
            f"{uri!r} names no {'host' if scheme == 'https' else 'bucket'}",
            where="source",
            hint=f"Write {scheme}://{'HOST' if scheme == 'https' else 'BUCKET'}/{rest.lstrip('/') or 'PATH'}",
        )
    if scheme != "https" and not _BUCKET.fullmatch(bucket):
        raise InputError(
            f"{bucket!r:.200} can be no bucket's name",
            where=redacted(uri)[:300],
            hint="It has letters, digits, '.', '-' and '_', and ends and starts with a letter or digit.",
        )
    _reject_upwards(name if scheme != "https" else unquote(name.partition("?")[0]), uri)
    return Remote(scheme, bucket, name)


def local_path(uri: str) -> Path | None:
    """Return the absolute local path of a path or a ``file://`` URI; None for a remote one.

    Errors are those of :func:`remote`.
    """
    if remote(uri) is not None:
        return None
    text = uri
    if uri.startswith("file://"):
        host, slash, rest = uri.removeprefix("file://").partition("/")
        if host not in {"", "localhost"}:
            hint = f"Write file:///{host}{slash}{rest}"
            raise InputError(f"{uri!r} names a host", where="source", hint=hint)
        text = unquote(f"/{rest}", errors="surrogateescape")
        _require_text(text)
    _reject_upwards(text, uri)
    path = Path(os.path.abspath(text))
    reject_system_path(path)
    return path


def join(root: str, *names: str) -> str:
    """Join names to a folder's path or URI; reject a name that is empty or leads out of the folder."""
    for name in names:
        if not name:
            raise InputError("an empty name cannot be joined to a folder", where=redacted(root))
        if name.startswith("/") or ".." in name.split("/"):
            raise PermissionRefused(
                f"{name!r} leads out of the folder that it was joined to", where=redacted(root)
            )
    base = root if root.endswith("://") else root.rstrip("/") or "/"
    return "/".join([base.rstrip("/") if names else base, *names])


def absolute(uri: str) -> str:
    """Return the one form of a path or URI of a file or folder, to compare it with others."""
    path = local_path(uri)
    return (str(path) if path else uri).rstrip("/")


def reject_system_path(path: Path) -> None:
    """Reject a folder of the system, also behind a link."""
    real = Path(os.path.realpath(path))
    for place in (path, real):
        if any(place.is_relative_to(folder) for folder in FORBIDDEN) and not place.is_relative_to("/dev/shm"):  # noqa: S108  # nosec B108
            raise PermissionRefused(
                "this place belongs to the machine, not to data"
                + (f": it leads to {real}" if real != path else ""),
                where=str(path),
                hint=f"Nothing is read below {', '.join(FORBIDDEN)}.",
            )


def _require_text(text: str) -> None:
    if not text.strip() or re.search("[\0\ud800-\udfff]", text):
        raise InputError(f"{text!r} names no file", where="source", hint="Write a path or a URI.")


def _reject_upwards(name: str, uri: str) -> None:
    if ".." in name.split("/"):
        raise PermissionRefused(
            "'..' in a path could lead out of the place that it starts with",
            where=redacted(uri),
            hint="Write the path that is meant, without '..'.",
        )


def _reject_slip(text: str) -> None:
    """Reject a URI with wrong slashes, such as ``s3:/bucket/name``."""
    if found := _SLIP.match(text):
        scheme = "https" if found[1].lower().startswith("http") else found[1].lower()
        slashes = ":///" if scheme == "file" else "://"
        raise InputError(
            f"{redacted(text)!r} is no URI: after its scheme comes '://'",
            where="source",
            hint=f"Write {scheme}{slashes}{redacted(text[found.end() :])}",
        )


def _unknown(scheme: str, rest: str) -> InputError | PermissionRefused:
    from trainwright.storage.access import reject_host

    if scheme.lower().startswith("http"):
        with suppress(ValueError):
            reject_host(urlsplit(f"//{rest}").hostname or "")
    near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.6)
    return InputError(
        f"scheme {scheme!r} is not read here; known are {', '.join(SCHEMES)}",
        where="source",
        hint=f"Write {near[0]}://{redacted(rest)}" if near else "Copy the data to one of these first.",
    )
