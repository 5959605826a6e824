"""Sources as one table: files, folders, databases and table formats, listed, opened and read in parts.

:func:`list_source` says which bytes a source holds now, :func:`open_source` what columns they have and in
which parts they can be read. Parts are small and can be sent to other processes; each gives its rows in
batches. A library that only one kind of source needs is imported when that kind is met.
"""

from trainwright.sources.opening import list_source, open_source
from trainwright.sources.parts import Part, Sources
from trainwright.sources.places import note_place, places_of
from trainwright.sources.values import example_values

__all__ = ["Part", "Sources", "example_values", "list_source", "note_place", "open_source", "places_of"]
