"""Sources as one table: files, folders, databases and table formats, listed, opened and read in parts.

:func:`list_source` lists the content of a source, :func:`open_source` finds its columns and parts. Parts are
small and can be sent to other processes; each yields its rows in batches. A library that only one kind of
source needs is imported when that kind is opened.
"""

from trainwright.sources.sources import (
    SourcePart,
    Sources,
    column_names,
    example_values,
    list_source,
    note_place,
    open_source,
    places_of,
)

__all__ = [
    "SourcePart",
    "Sources",
    "column_names",
    "example_values",
    "list_source",
    "note_place",
    "open_source",
    "places_of",
]
