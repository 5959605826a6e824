"""What a path or a URI names, what it may not carry, and how it is shown: never with a secret in it."""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainwright.errors import InputError, PermissionRefused

SCHEMES = ("file", "gs", "s3", "minio", "https")
"""What can be named; a path without a scheme is a local one."""

FORBIDDEN = ("/etc", "/proc", "/sys", "/dev", "/run/secrets", "/var/run/secrets")
"""Places that are the machine's own, or hold the identity of the pod: never a source, whoever asks."""

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # nosec B108
"""The one place below ``/dev`` that holds data."""

_SIGNING = (
    r"x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|sig|signature|"
    r"(?:access|auth|id|refresh)?[-_]?token|(?:api|access|account|secret|private)?[-_]?key(?:[-_]?id)?|"
    r"(?:aws)?accesskeyid|googleaccessid|password|passwd|pwd|secret|credentials?"
)
_SECRET_PARAMETER = re.compile(rf"([?&;](?:{_SIGNING})=)[^&;#\s'\"]*", re.IGNORECASE)
_USER = re.compile(r"(://)(?:[^/?#\s'\"]*|[^/?#\s@'\":]+:(?!\d+(?:[/?#]|$))[^\s'\"@]*)@")
"""A user and a password; the second form is one with slashes in it."""

_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_SLIP = re.compile(r"(gs|s3|minio|https?|file):/*", re.IGNORECASE)
_IDENTITY = "Take it out: credentials come from the identity that the step runs under."


@dataclass(frozen=True)
class Remote:
    """A place in an object store or on a web server.

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
        """Write it as a URI again."""
        return f"{self.scheme}://{self.bucket}/{self.name}"


def remote(uri: str) -> Remote | None:
    """Split the URI of something that is not local, or return None for a local path.

    Raises:
        InputError: It is empty, malformed, of a scheme that is not known, or carries credentials.
        PermissionRefused: It leads upwards, or names a place of the machine's own.
    """
    _require_name(uri)
    _refuse_credentials(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        _refuse_slip(uri)
        return None
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
    _refuse_upwards(name if scheme != "https" else unquote(name.partition("?")[0]), uri)
    return Remote(scheme, bucket, name)


def local_path(uri: str) -> Path | None:
    """Return the absolute local path that a path or a ``file://`` URI names, or None for a remote one.

    Raises:
        InputError: It is empty, malformed, of a scheme that is not known, or carries credentials.
        PermissionRefused: It leads upwards, or names a place of the machine's own.
    """
    if remote(uri) is not None:
        return None
    text = uri
    if uri.startswith("file://"):
        host, slash, rest = uri.removeprefix("file://").partition("/")
        if host not in {"", "localhost"}:
            raise InputError(
                f"{uri!r} names a host", where="source", hint=f"Write file:///{host}{slash}{rest}"
            )
        text = unquote(f"/{rest}", errors="surrogateescape")
        _require_name(text)
    _refuse_upwards(text, uri)
    path = Path(os.path.abspath(text))
    refuse_system(path)
    return path


def join(root: str, *names: str) -> str:
    """Join names to a folder's path or URI.

    Raises:
        InputError: A name is empty.
        PermissionRefused: A name leads upwards, or is absolute.
    """
    for name in names:
        if not name:
            raise InputError("an empty name cannot be joined to a folder", where=redacted(root))
        if name.startswith("/") or ".." in name.split("/"):
            raise PermissionRefused(
                f"{name!r} leads out of the folder that it was joined to", where=redacted(root)
            )
    base = root if root.endswith("://") else root.rstrip("/") or "/"
    return "/".join([base.rstrip("/") if names else base, *names])


def redacted(text: str) -> str:
    """Return a text with users, passwords and signatures of every URI in it replaced by ``***``."""
    return _SECRET_PARAMETER.sub(r"\1***", _USER.sub(r"\1***@", text))


def refuse_system(path: Path) -> None:
    """Refuse a place of the machine's own, also behind a link.

    Raises:
        PermissionRefused: It is one.
    """
    real = os.path.realpath(path)
    for text in {str(path), real}:
        if any(_within(text, place) for place in FORBIDDEN) and not _within(text, _SHARED_MEMORY):
            raise PermissionRefused(
                "this place belongs to the machine, not to data"
                + (f": it leads to {real}" if real != str(path) else ""),
                where=str(path),
                hint=f"Nothing is read below {', '.join(FORBIDDEN)}.",
            )


def _within(text: str, folder: str) -> bool:
    return text == folder or text.startswith(f"{folder}/")


def _require_name(text: str) -> None:
    if not text.strip() or "\0" in text or not _is_utf8(text):
        raise InputError(f"{text!r} names no file", where="source", hint="Write a path or a URI.")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_credentials(uri: str) -> None:
    scheme, separator, _ = uri.partition("://")
    shown = redacted(uri)
    if separator and shown != uri:
        what = "a user or a password" if _USER.search(uri) else "a signature, a token or a key"
        raise InputError(f"a {scheme}:// URI carries {what}", where=shown, hint=_IDENTITY)


def _refuse_upwards(name: str, uri: str) -> None:
    if ".." in name.split("/"):
        raise PermissionRefused(
            "'..' in a path could lead out of the place that it starts with",
            where=redacted(uri),
            hint="Write the path that is meant, without '..'.",
        )


def _refuse_slip(text: str) -> None:
    """Refuse what is a URI but for its slashes, such as ``s3:/bucket/name``."""
    if found := _SLIP.match(text):
        scheme = "https" if found[1].lower().startswith("http") else found[1].lower()
        slashes = ":///" if scheme == "file" else "://"
        raise InputError(
            f"{redacted(text)!r} is no URI: after its scheme comes '://'",
            where="source",
            hint=f"Write {scheme}{slashes}{redacted(text[found.end() :])}",
        )


def _host(rest: str) -> str:
    try:
        return urlsplit(f"//{rest}").hostname or ""
    except ValueError:
        return ""


def _unknown(scheme: str, rest: str) -> InputError | PermissionRefused:
    from trainwright.storage.access import refuse_host

    if scheme.lower().startswith("http"):
        refuse_host(_host(rest))
    near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.6)
    return InputError(
        f"scheme {scheme!r} is not read here; known are {', '.join(SCHEMES)}",
        where="source",
        hint=f"Write {near[0]}://{redacted(rest)}" if near else "Copy the data to one of these first.",
    )
