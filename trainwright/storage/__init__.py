"""Files by URI: list, digest, open, find, publish.

A local path, a ``file://`` URI and a mounted volume are one thing and need nothing installed.
"""

from trainwright.storage.files import (
    TABLE_SUFFIXES,
    digest,
    find,
    list_files,
    local_path,
    open_file,
    take_listing,
)

__all__ = ["TABLE_SUFFIXES", "digest", "find", "list_files", "local_path", "open_file", "take_listing"]
