"""Documents that steps exchange: listings, snapshots, models, records.

Each is a frozen dataclass, stored as JSON and identified by the SHA-256 of its canonical form. Readers reject
unknown fields and versions.
"""

from trainwright.artifacts.cost import JobUsage, RunCost, Spending, StepCost
from trainwright.artifacts.model import Model, ModelFile, Trial
from trainwright.artifacts.record import Environment, Progress, Record
from trainwright.artifacts.snapshot import (
    RUN_AGAIN,
    UNASSIGNED,
    Column,
    ColumnKind,
    Listing,
    PinnedSource,
    Snapshot,
    SnapshotFile,
    SnapshotTarget,
    SourceFile,
    TargetKind,
)

__all__ = [
    "RUN_AGAIN",
    "UNASSIGNED",
    "Column",
    "ColumnKind",
    "Environment",
    "JobUsage",
    "Listing",
    "Model",
    "ModelFile",
    "PinnedSource",
    "Progress",
    "Record",
    "RunCost",
    "Snapshot",
    "SnapshotFile",
    "SnapshotTarget",
    "SourceFile",
    "Spending",
    "StepCost",
    "TargetKind",
    "Trial",
]
