"""Accepted baselines, and the statistics of a training set's features, which a baseline names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from trainwright.documents import Document
from trainwright.drift.comparison import Counts, Cuts
from trainwright.errors import InputError
from trainwright.storage import read_bytes, require_listing


@dataclass(frozen=True)
class CountedSample:
    """The rows of one split, counted without TFDV.

    Attributes:
        absent: Rows without a value, by column.
        by_value: Rows by value of each column of text or truth values.
        reasons: Why the values of a column are not counted.
    """

    split: str
    rows: int
    counts: Mapping[str, Counts]
    absent: Mapping[str, int]
    by_value: Mapping[str, Mapping[str, int]]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def missing(self, column: str) -> int:
        """Return the rows in which a column has no value."""
        return self.absent.get(column, self.rows)

    def values(self, column: str) -> dict[str, float]:
        """Return the rows by value of a column whose values were counted; empty if they were not."""
        return {value: float(rows) for value, rows in self.by_value.get(column, {}).items()}

    def uncounted(self, column: str) -> str:
        """Return why the counts of a column's values are incomplete; empty if they are complete."""
        if column not in self.absent:
            return f"it is not in {self.split}"
        none = "" if self.by_value.get(column) else f"no values of it in {self.split}"
        return self.reasons.get(column, none)


@dataclass(frozen=True, kw_only=True)
class FeatureStatistics(Document):
    """Counts of the features that a model learns from, for comparison with those of a later training set.

    Attributes:
        training_set: Digest of the training set.
        data_version: Digest of the snapshot whose rows it has.
        types: Arrow type of each feature.
        cuts: Bounds of the bins of numbers; the others are as in :class:`CountedSample`.
    """

    FILE: ClassVar[str] = "features.json"
    training_set: str
    data_version: str
    split: str
    rows: int
    types: dict[str, str]
    cuts: dict[str, tuple[float, ...]]
    counts: dict[str, tuple[int, ...]]
    absent: dict[str, int]
    by_value: dict[str, dict[str, int]]
    reasons: dict[str, str]

    def sample(self) -> CountedSample:
        """Return the counted rows."""
        counts = {name: np.asarray(rows, np.int64) for name, rows in self.counts.items()}
        split = f"split {self.split} of the baseline"
        return CountedSample(split, self.rows, counts, self.absent, self.by_value, self.reasons)

    def bins(self) -> dict[str, Cuts]:
        """Return where numbers are cut into bins."""
        return {name: np.asarray(points, np.float64) for name, points in self.cuts.items()}


@dataclass(frozen=True, kw_only=True)
class Baseline(Document):
    """Statistics and counts of a split, for comparison with later data.

    Attributes:
        data_version: Digest of the snapshot.
        schema: SHA-256 of the text of the schema that it was read with.
        statistics: File with TFDV's statistics, relative to this document's folder.
        statistics_sha256: Digest of that file.
        accepted: Who made it the one to compare with and why: time, reason, evidence, verdict, the one
            before it; and ``features`` and ``features_sha256``, the file with the statistics of the joined
            features, if there are any. Empty while it is only calculated.
    """

    FILE: ClassVar[str] = "baseline.json"
    data_version: str
    split: str
    rows: int
    schema: str
    statistics: str
    statistics_sha256: str
    cuts: dict[str, tuple[float, ...]]
    counts: dict[str, tuple[int, ...]]
    values: dict[str, int]
    made_by: dict[str, str]
    accepted: dict[str, str] = field(default_factory=dict)


def read_accepted(uri: str, version: str) -> Baseline:
    """Read an accepted baseline, and check that it is the one that was listed when the run began.

    Args:
        uri: The document: a file or a URI.
        version: Its content digest, as ``resolve`` found it.

    Raises:
        InputError: It is gone, changed, no baseline, or one that nobody accepted.
    """
    require_listing("the baseline", uri, version)
    document = Baseline.parse(read_bytes(uri), where=uri)
    if not document.accepted:
        raise InputError(
            "this baseline was only calculated; nobody has accepted it",
            where=uri,
            hint="trainwright baseline accept RUN_FOLDER --to FILE makes it one to compare with.",
        )
    return document


def read_beside(uri: str, name: str, sha256: str) -> bytes:
    """Read a file that a baseline names, relative to its own place, and check its digest."""
    if name.startswith("/") or ".." in name.split("/") or "://" in name:
        raise InputError(f"the baseline names a file outside its folder: {name!r}", where=uri)
    folder, slash, _ = uri.rpartition("/")
    place = f"{folder}{slash}{name}"
    content = read_bytes(place)
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise InputError(
            f"the statistics of the baseline are {digest[:12]}, it says {sha256[:12]}",
            where=place,
            hint="Accept the baseline again, from the run that made it.",
        )
    return content


def read_features(uri: str, version: str) -> FeatureStatistics | None:
    """Read the features' statistics of an accepted baseline; None without a baseline, or if it has none."""
    if not uri:
        return None
    document = read_accepted(uri, version)
    name = document.accepted.get("features", "")  # a baseline from before they were measured has none
    if not name:
        return None
    content = read_beside(uri, name, document.accepted["features_sha256"])
    return FeatureStatistics.parse(content, where=name)
