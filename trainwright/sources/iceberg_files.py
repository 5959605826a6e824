"""File access for pyiceberg: our own storage, only below the table's folder."""

import io
from typing import Any

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from trainwright.errors import PermissionRefused
from trainwright.storage import Access, open_file
from trainwright.storage.uris import local_path


class StorageIO(FileIO):
    """Read-only file access below a table's folder.

    Attributes:
        root: The table's folder.
        access: What may be reached.
    """

    root: str = ""
    access: Access = Access()

    @classmethod
    def below(cls, root: str, access: Access) -> "StorageIO":
        """Return access to the files below a folder."""
        found = cls()
        found.root, found.access = root, access
        return found

    def new_input(self, location: str) -> InputFile:
        """Return a file for reading.

        Raises:
            PermissionRefused: It is outside of the table's folder.
        """
        if not _plain(location).startswith(f"{_plain(self.root)}/") or ".." in location.split("/"):
            raise PermissionRefused(
                f"the table's metadata names a file outside of its folder: {location}",
                where=self.root,
                hint="A table that borrows files of another is not read; copy it whole.",
            )
        return _Input(location, self.access)

    def new_output(self, location: str) -> OutputFile:
        """Raise PermissionRefused: a source is never written."""
        raise PermissionRefused("a source is never written", where=location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raise PermissionRefused: a source is never written."""
        raise PermissionRefused("a source is never written", where=str(location))


class _Input(InputFile):
    """One file."""

    def __init__(self, location: str, access: Access) -> None:
        super().__init__(location)
        self._access = access

    def __len__(self) -> int:
        with self.open() as stream:
            return stream.seek(0, io.SEEK_END)

    def exists(self) -> bool:
        """Tell whether it is there."""
        try:
            self.open().close()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - ours always are
        """Open it."""
        stream: Any = open_file(self.location, access=self._access)
        return stream  # type: ignore[no-any-return]


def _plain(uri: str) -> str:
    path = local_path(uri)
    return (str(path) if path else uri).rstrip("/")
