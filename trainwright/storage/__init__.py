"""Files by URI: list, digest, open, write once.

A local path, a ``file://`` URI and a mounted volume are one thing and need nothing installed. ``gs://``,
``s3://`` (also written ``minio://``) and ``https://`` each have their own driver, imported only when such a
URI is met.
"""

from trainwright.redaction import redacted
from trainwright.storage.access import Access
from trainwright.storage.git import fetch_commit, parse_commit
from trainwright.storage.listing import TABLE_SUFFIXES, find, list_files, require_listing, take_listing
from trainwright.storage.reading import exists, fetch, head, open_file, read_bytes
from trainwright.storage.store import AlreadyExists, ObjectChanged
from trainwright.storage.uris import join, local_path
from trainwright.storage.writing import create, publish, remove

__all__ = [
    "TABLE_SUFFIXES",
    "Access",
    "AlreadyExists",
    "ObjectChanged",
    "create",
    "exists",
    "fetch",
    "fetch_commit",
    "find",
    "head",
    "join",
    "list_files",
    "local_path",
    "open_file",
    "parse_commit",
    "publish",
    "read_bytes",
    "redacted",
    "remove",
    "require_listing",
    "take_listing",
]
