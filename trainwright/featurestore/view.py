"""One feature view as plain data, and the files behind it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, BinaryIO

from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.storage import TABLE_SUFFIXES, list_files, open_file


@dataclass(frozen=True, kw_only=True)
class View:
    """One feature view as a service uses it.

    Attributes:
        name: Its name, or its alias in the service.
        features: Name and Feast type of each feature, in the service's order.
        keys: Column of the rows by key column of the view.
        ttl: How old a value may be, relative to the row; zero is any age.
        source: Absolute path or URI of its Parquet files.
        content: Digest of those files.
        time: Column with the time that a value describes.
        created: Column with the time from which on it was known; empty if there is none.
        renamed: Name of a feature, key or time by its column of the files, where they differ.
        feast: The view as Feast holds it.
    """

    name: str
    features: Mapping[str, str]
    keys: Mapping[str, str]
    ttl: timedelta
    source: str
    content: str
    time: str
    created: str
    renamed: Mapping[str, str]
    feast: Any = field(compare=False, repr=False)

    def column(self, name: str) -> str:
        """Return the column of the files that holds a feature, a key or a time."""
        return next((old for old, new in self.renamed.items() if new == name), name)

    @property
    def definition(self) -> dict[str, Any]:
        """What decides the values it gives, as plain JSON data: nothing about places or descriptions."""
        return {
            "name": self.name,
            "features": list(self.features.items()),
            "keys": dict(self.keys),
            "ttl_us": self.ttl // timedelta(microseconds=1),
            "content": self.content,
            "time": self.time,
            "created": self.created,
            "renamed": dict(self.renamed),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the definition and the content of its files, wherever they lie."""
        return digest_text(canonical(self.definition))


def in_files(source: Any) -> bool:
    """Tell whether a source is Parquet files: Feast's FileSource, or a SparkSource that names a path."""
    kind = getattr(source, "file_format", None)
    name = kind if isinstance(kind, str) else type(kind).__name__.removesuffix("Format").lower()
    return bool(getattr(source, "path", "")) and name in {"parquet", "nonetype"}


def offline_files(view: View) -> list[str]:
    """List the files behind a view."""
    return [entry.uri for entry in list_files(view.source, TABLE_SUFFIXES)]


@contextmanager
def offline_file(view: View, uri: str) -> Iterator[BinaryIO]:
    """Open a file behind a view; what Arrow says about it becomes an error that names both.

    Raises:
        InputError: It is gone, incomplete, or not Parquet.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    with open_file(uri) as stream:
        try:
            yield stream
        except (pa.ArrowException, OSError) as error:
            what = f"the offline file of view {view.name!r} is not Parquet, or broken: {error}"
            raise InputError(what, where=uri) from None
