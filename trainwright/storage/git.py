"""Fetch one commit of a git repository over https, by git's protocol version 2, without history.

A commit's name is the SHA-1 over its content: every object is named by its content, and the tree is followed
from the commit, so the files are those that were committed, whoever sent them.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from trainwright.errors import InputError, PermissionRefused, TransientError
from trainwright.redaction import redacted
from trainwright.storage.store import RETRYABLE_STATUS, RetryableError, retry_after_s, with_retries

if TYPE_CHECKING:
    import requests

SCHEME = "git+https://"
FORM = f"{SCHEME}HOST/REPOSITORY@COMMIT#subdirectory=FOLDER, with the 40 digits of the commit"
MAX_BYTES = 256 << 20
"""Limit of a pack, which is in memory; a repository of definitions has some kilobytes."""
OBJECT_BYTES = 1024
"""The least that an object or a file counts for."""

_URI = re.compile(
    r"git\+(?P<url>https://[^@#?]+)@(?P<commit>[0-9a-f]{40})(?:#subdirectory=(?P<folder>[^#]+))?"
)
_SERVICE = "/git-upload-pack"
_KINDS = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_DELTA = 7
_TIMEOUT_S = (10, 120)
_PACK_S = 600.0
"""Seconds for a whole pack."""
_FOLDER, _LINK, _MODULE = b"40000", b"120000", b"160000"
_Objects = dict[str, tuple[bytes, bytes]]
"""Kind and content of each object, by its name."""


@dataclass(frozen=True)
class GitCommit:
    """A folder of a commit.

    Attributes:
        url: Address of the repository.
        commit: Name of the commit, 40 hexadecimal digits.
        folder: Path of the folder in it; empty for the root.
    """

    url: str
    commit: str
    folder: str

    @property
    def uri(self) -> str:
        """Write it as a URI again."""
        return f"git+{self.url}@{self.commit}" + (f"#subdirectory={self.folder}" if self.folder else "")


def parse_commit(uri: str) -> GitCommit | None:
    """Parse the URI of a commit; return None for another kind of URI."""
    if not uri.startswith("git+"):
        return None
    if redacted(uri) != uri or "@" in urlsplit(uri.rpartition("@")[0]).netloc:
        hint = "Take it out: credentials come from the .netrc of the step (NETRC names another file)."
        raise InputError("the URI carries a user or a password", where=redacted(uri), hint=hint)
    found = _URI.fullmatch(uri)
    if not found:
        raise InputError("this names no commit of a git repository", where=uri, hint=f"Write {FORM}.")
    folder = (found["folder"] or "").strip("/")
    if ".." in folder.split("/"):
        raise PermissionRefused("'..' leads out of the repository", where=uri)
    return GitCommit(found["url"].rstrip("/"), found["commit"], folder)


def fetch_commit(place: GitCommit, target: Path, retry_s: float) -> None:
    """Write the files of a commit's folder below a local folder."""
    pack = with_retries(lambda: _pack(place), "fetching", place.uri, retry_s)
    try:
        objects = _objects(pack, place)
        if place.commit not in objects:
            raise InputError("the server sent another commit", where=place.uri)
        kind, content = objects[place.commit]
        if kind != b"commit":
            hint = "Name the commit: `git rev-parse TAG^{commit}` prints that of a tag."
            raise InputError(f"this names a {kind.decode()}, not a commit", where=place.uri, hint=hint)
        tree = content.partition(b"\n")[0].removeprefix(b"tree ").decode()
        for name in filter(None, place.folder.split("/")):
            entries = {entry: (mode, digest) for mode, entry, digest in _entries(objects, tree)}
            mode, tree = entries.get(name, (b"", ""))
            if mode != _FOLDER:
                shown = ", ".join(sorted(entries)[:8]) or "nothing"
                raise InputError(f"the commit has no folder {name!r}; it holds {shown}", where=place.uri)
        _write(objects, tree, target, _Budget(place))
    except (KeyError, IndexError, ValueError, zlib.error, RecursionError) as error:
        raise TransientError(
            f"the server sent damaged objects: {type(error).__name__}: {error}",
            where=place.uri,
            hint="Run the step again; if it stays, run `git fsck` on the server's repository.",
        ) from error


@dataclass
class _Budget:
    """Bytes that the objects or the files of a commit may still take."""

    place: GitCommit
    left: int = field(default_factory=lambda: MAX_BYTES)

    def take(self, count: int) -> None:
        """Count an object or a file of so many bytes."""
        self.left -= max(count, OBJECT_BYTES)
        if self.left < 0:
            raise _too_large(self.place)


def _too_large(place: GitCommit) -> InputError:
    return InputError(
        f"the commit is larger than {MAX_BYTES:,} bytes",
        where=place.uri,
        hint="Put the definitions into a repository of their own, and data into an object store.",
    )


def _write(objects: _Objects, tree: str, target: Path, budget: _Budget) -> None:
    place = budget.place
    target.mkdir(parents=True, exist_ok=True)
    for mode, name, digest in _entries(objects, tree):
        if name in {"", ".", "..", ".git"} or "/" in name:
            raise PermissionRefused(f"{name!r} leads out of the repository", where=place.uri)
        if mode == _LINK:
            what = f"{name!r} is a link, which is not followed"
            raise InputError(what, where=place.uri, hint="Copy the file.")
        if mode == _FOLDER:
            budget.take(0)
            _write(objects, digest, target / name, budget)
        elif mode != _MODULE:
            content = _content(objects, digest, b"blob")
            budget.take(len(content))
            (target / name).write_bytes(content)


def _content(objects: _Objects, name: str, kind: bytes) -> bytes:
    found, content = objects[name]
    if found != kind:
        raise ValueError(f"{name} is a {found.decode()}, expected a {kind.decode()}")
    return content


def _entries(objects: _Objects, digest: str) -> Iterator[tuple[bytes, str, str]]:
    tree, at = _content(objects, digest, b"tree"), 0
    while at < len(tree):
        end = tree.index(b"\0", at)
        mode, _, name = tree[at:end].partition(b" ")
        yield mode, name.decode("utf-8", "surrogateescape"), tree[end + 1 : end + 21].hex()
        at = end + 21


def _pack(place: GitCommit) -> bytes:
    """Request the objects of one commit; one attempt."""
    import requests

    from trainwright.http_limits import HttpLimits, limited
    from trainwright.storage.https import translating_requests

    lines = ["command=fetch\n", "", "no-progress\n", f"want {place.commit}\n", "deepen 1\n", "done\n"]
    body = "".join(f"{len(line) + 4:04x}{line}" if line else "0001" for line in lines) + "0000"
    headers = {
        "Git-Protocol": "version=2",
        "Content-Type": "application/x-git-upload-pack-request",
        "Accept": "application/x-git-upload-pack-result",
    }
    untrusted = InputError("its certificate is not trusted", where=place.uri)
    limits = HttpLimits(seconds=_PACK_S, max_bytes=2 * MAX_BYTES)
    with translating_requests(place.uri, untrusted), limited(limits):
        answer = requests.post(
            place.url + _SERVICE,
            body,
            headers=headers,
            timeout=_TIMEOUT_S,
            stream=True,
            allow_redirects=False,  # another host would get its own .netrc, and plain http would do
        )
        with answer:
            _require_answered(answer, place)
            content = bytearray()
            for piece in answer.iter_content(1 << 16):
                content += piece
                if len(content) > MAX_BYTES:
                    raise _too_large(place)
    return _unwrapped(bytes(content), place)


def _require_answered(answer: "requests.Response", place: GitCommit) -> None:
    status = answer.status_code
    if status in RETRYABLE_STATUS:
        wait_s = retry_after_s(answer.headers.get("Retry-After"))
        raise RetryableError(f"the server answered {status}", wait_s)
    if status in range(300, 400):
        there = redacted(urljoin(answer.url, answer.headers.get("Location", ""))).removesuffix(_SERVICE)
        raise InputError(
            f"the repository has moved: the server answered {status}",
            where=place.uri,
            hint=f"It refers to {there}: if that is the repository, write that address instead.",
        )
    if status in {401, 403}:
        raise PermissionRefused(
            f"the server refused: {status}",
            where=place.uri,
            hint="Put a token into the step's .netrc (NETRC names another file). Some hosts answer so for a "
            "repository that is not there.",
        )
    if status == HTTPStatus.NOT_FOUND:
        raise InputError("there is no such repository", where=place.uri, hint=f"Write {FORM}.")
    if status != HTTPStatus.OK:
        raise InputError(f"the server answered {status}", where=place.uri)


def _unwrapped(content: bytes, place: GitCommit) -> bytes:
    """Return the pack from the protocol's lines."""
    at, pack, packing = 0, bytearray(), False
    while at + 4 <= len(content):
        try:
            size = int(content[at : at + 4], 16)
        except ValueError:
            raise InputError("this is no git server of protocol version 2", where=place.uri) from None
        line, at = content[at + 4 : at + size], at + max(size, 4)
        if line.startswith(b"ERR ") or (packing and line[:1] == b"\3"):
            said = line.decode(errors="replace").strip()[:200]
            hint = "Look at the commit: it must be pushed, and be reachable from a branch or a tag."
            raise InputError(f"the server does not give this commit: {said}", where=place.uri, hint=hint)
        if packing and line[:1] == b"\1":
            pack += line[1:]
        packing = packing or line == b"packfile\n"
    if pack[:4] != b"PACK" or hashlib.sha1(pack[:-20], usedforsecurity=False).digest() != pack[-20:]:
        raise RetryableError("the objects arrived damaged or not at all")
    return bytes(pack)


def _objects(pack: bytes, place: GitCommit) -> _Objects:
    """Unpack all objects, each by the name computed from its content.

    Every delta names its base, which comes before it: offsets are used only where the client allows them.
    """
    objects: _Objects = {}
    at, budget = 12, _Budget(place)
    for _ in range(int.from_bytes(pack[8:12], "big")):
        kind = pack[at] >> 4 & 7
        _, at = _varint(pack, at)
        if kind == _DELTA:
            (kind_of_base, base), at = objects[pack[at : at + 20].hex()], at + 20
            delta, at = _inflated(pack, at, budget)
            found = kind_of_base, _patched(base, delta, budget)
        else:
            content, at = _inflated(pack, at, budget)
            found = _KINDS[kind], content
        budget.take(len(found[1]))
        head = b"%s %d\0" % (found[0], len(found[1]))
        objects[hashlib.sha1(head + found[1], usedforsecurity=False).hexdigest()] = found
    return objects


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift >= 64:  # noqa: PLR2004
            raise ValueError("a number has more than 64 bits")


def _inflated(data: bytes, at: int, budget: _Budget) -> tuple[bytes, int]:
    stream, parts, left = zlib.decompressobj(), [], budget.left
    while not stream.eof:
        piece = data[at : at + (1 << 14)]
        if not piece:
            raise ValueError("an object ends too early")
        parts.append(stream.decompress(piece, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(budget.place)
        at += len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
    return b"".join(parts), at


def _patched(base: bytes, delta: bytes, budget: _Budget) -> bytes:
    """Apply a delta: copies from the base, and bytes of its own."""
    expected, at = _varint(delta, 0)
    size, at = _varint(delta, at)
    if size > budget.left:
        raise _too_large(budget.place)
    if expected != len(base):
        raise ValueError(f"a delta is for {expected} bytes, and its base has {len(base)}")
    parts, left = [], size
    while at < len(delta):
        order, at = delta[at], at + 1
        if order & 0x80:  # its bits say which bytes follow: four of the offset, then three of the size
            numbers = bytearray(7)
            for bit in range(7):
                if order >> bit & 1:
                    numbers[bit], at = delta[at], at + 1
            first, source = int.from_bytes(numbers[:4], "little"), base
            count = int.from_bytes(numbers[4:], "little") or 0x10000
        else:
            first, count, source = at, order, delta
            at += order
        left -= count
        if not count or left < 0 or first + count > len(source):
            break
        parts.append(source[first : first + count])
    else:
        if not left:
            return b"".join(parts)
    raise ValueError(f"a delta does not make the {size} bytes that it names")
