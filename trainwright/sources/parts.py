"""What every opened source is: one schema, parts in order, and the rows of each part."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.sources.schemas import Found


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker reads at a time; small, and fit to be sent to another process.

    Attributes:
        index: Its place in the order of the source, from 0 on.
        uri: The file that it is of; for a database, its URL without user and password.
        first: First row group of a Parquet file.
        last: Row group after its last; None where a part is a whole file or stream.
        start: Rows of the file before it.
        rows: Rows in it, as the file's footer says; None if only reading tells.
    """

    index: int
    uri: str
    first: int = 0
    last: int | None = None
    start: int = 0
    rows: int | None = None


class Sources(ABC):
    """A source, opened as one table: read in parts, in order, batch by batch. It can be pickled.

    Attributes:
        schema: The columns and types that every batch has, in the one plain form of
            :func:`trainwright.tables.columns`; columns from the names of folders are the last ones.
    """

    schema: pa.Schema

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the parts, in the order of the rows; at least one, even if there are no rows."""

    @abstractmethod
    def batches(self, part: Part) -> Iterator[tuple[str, int, pa.Table]]:
        """Read one part.

        Args:
            part: One of :meth:`parts`.

        Yields:
            The file's URI, the number of rows of that file before these, and the rows.

        Raises:
            InputError: A file is broken, or holds a value that its column's type does not take.
            TransientError: The store or the database could not be reached, again and again.
        """


def cut(found: Found, size: int) -> Iterator[tuple[int, int | None, int, int | None]]:
    """Cut a file into parts, a Parquet file at row groups.

    Args:
        found: What the file holds.
        size: Rows a part; it ends with the row group in which they are reached.

    Yields:
        The first row group, the one after the last, the rows before and the rows in the part.
    """
    if not found.groups:
        yield 0, None, 0, (None if found.guessed else 0)
        return
    first = start = rows = 0
    for index, group in enumerate(found.groups, 1):
        rows += group
        if rows >= size or index == len(found.groups):
            yield first, index, start, rows
            first, start, rows = index, start + rows, 0
