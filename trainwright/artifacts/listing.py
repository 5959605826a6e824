"""The files of a source at one moment."""

from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from trainwright.documents import Document, canonical, digest_text


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One object of a source, as it was when it was listed.

    Attributes:
        uri: Its absolute path or its URI, without a version.
        size: Bytes.
        checksum: The strongest that is to be had without reading twice, as ``kind:digits``: ``md5`` from
            every store that keeps it and from a disk, ``crc32c`` of a composed object, ``etag`` of an S3
            object that was uploaded in parts, ``sha256`` of what we wrote ourselves.
        version: What pins these very bytes in their store: generation, version id or ETag; empty on a disk.
        written: When it was last written, ISO 8601 in UTC; empty if the store does not say.
    """

    uri: str
    size: int
    checksum: str
    version: str = ""
    written: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing(Document):
    """The files of a source when ``resolve`` listed it; ``data_version`` is derived from it.

    Attributes:
        source: What was listed: a path, a URI or a glob, with nothing left to be filled in.
        files: Its objects, sorted by URI; for a database or a table format, one entry that stands for it.
        protection: Whether what is pinned can still be read later: ``versioned``, ``soft_delete``,
            ``retention`` or ``pinned_unprotected``; empty for a disk.
    """

    FILE: ClassVar[str] = "listing.json"
    source: str
    files: tuple[SourceFile, ...]
    protection: str = ""

    @property
    def content_digest(self) -> str:
        """The SHA-256 over names, sizes and checksums: equal wherever the same bytes lie.

        Places, versions and times are left out.
        """
        rows = sorted([name, entry.size, entry.checksum] for name, entry in self.by_name)
        return digest_text(canonical(rows))

    @property
    def by_name(self) -> tuple[tuple[str, SourceFile], ...]:
        """Every file with its name: relative to the deepest folder that all share, so a copy keeps it.

        A folder such as ``day=1`` stays in the name: it is the value of a column, and may be the only one.
        """
        paths = [(entry.uri.partition("://")[2] or entry.uri).split("/") for entry in self.files]
        levels = zip(*(path[:-1] for path in paths), strict=False)
        alike = takewhile(lambda level: len(set(level)) == 1 and "=" not in level[0], levels)
        shared = sum(1 for _ in alike)
        return tuple(("/".join(path[shared:]), entry) for path, entry in zip(paths, self.files, strict=True))
