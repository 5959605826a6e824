"""The documents that cross from one step to the next.

Each is a frozen dataclass that is written as JSON. ``digest`` is the SHA-256 of its canonical form and is
its identity; a reader refuses a field or a version it does not know. Only the standard library is needed.
"""

from trainwright.artifacts.listing import Listing, SourceFile
from trainwright.artifacts.model import Model, ModelFile, Trial
from trainwright.artifacts.record import Environment, Progress, Record
from trainwright.artifacts.snapshot import RUN_AGAIN, UNASSIGNED, Column, Snapshot, SnapshotFile

__all__ = [
    "RUN_AGAIN",
    "UNASSIGNED",
    "Column",
    "Environment",
    "Listing",
    "Model",
    "ModelFile",
    "Progress",
    "Record",
    "Snapshot",
    "SnapshotFile",
    "SourceFile",
    "Trial",
]
