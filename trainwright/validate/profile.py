"""Profiles of splits: statistics and counts, computed once and cached by what they depend on."""

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainwright import storage
from trainwright.artifacts import Snapshot
from trainwright.documents import canonical, digest_text, read_json
from trainwright.drift.comparison import Counts, Cuts
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment import DataEngine
from trainwright.tables import iter_batches
from trainwright.validate.columns import by_column, cut_points, unreadable
from trainwright.validate.statistics import (
    PIECE_ROWS,
    QUANTILES,
    VALUES_KEPT,
    ScanRequest,
    counted_as,
    packed,
    scan,
)
from trainwright.validate.tfdv import statistics_pb2, tfdv

_log = logging.getLogger("trainwright.validate")


@dataclass(frozen=True)
class Profile:
    """Statistics of one split with rows, and the rows by bin of the numeric columns that are compared."""

    split: str
    rows: int
    statistics: Any
    counts: dict[str, Counts]

    @cached_property
    def features(self) -> dict[str, Any]:
        """TFDV's statistics of each column (``FeatureNameStatistics``), by name."""
        return by_column(self.statistics)

    def missing(self, column: str) -> int:
        """Return the rows in which a column has no value: null, absent, or a float that is not a number."""
        feature = self.features.get(column)
        if feature is None:
            return self.rows
        common = feature.string_stats if feature.HasField("string_stats") else feature.num_stats
        nan = sum(histogram.num_nan for histogram in feature.num_stats.histograms[:1])
        return min(self.rows, self.rows - int(common.common_stats.num_non_missing) + int(nan))

    def values(self, column: str) -> dict[str, float]:
        """Return the rows by value of a column whose values were counted; empty if they were not."""
        feature = self.features.get(column)
        buckets = feature.string_stats.rank_histogram.buckets if feature is not None else ()
        return {bucket.label: bucket.sample_count for bucket in buckets}

    def uncounted(self, column: str) -> str:
        """Return why the counts of a column's values are incomplete; empty if they are complete."""
        feature = self.features.get(column)
        values = self.values(column)
        if feature is None:
            return f"it is not in split {self.split}"
        if not values:
            return f"no values of it in split {self.split}"
        strings = feature.string_stats
        total = strings.common_stats.tot_num_values
        if strings.unique > VALUES_KEPT or not math.isclose(sum(values.values()), total, abs_tol=0.5):
            return (
                f"about {strings.unique:,} distinct values in split {self.split}, of which only the "
                f"{VALUES_KEPT:,} commonest are counted"
            )
        return ""


ENGINE = f"3 tfdv-{tfdv.__version__} values-{VALUES_KEPT} quantiles-{QUANTILES} pieces-{PIECE_ROWS}"
"""Part of every cache key; raise the first number when this library computes or stores results otherwise."""


@dataclass(frozen=True)
class Profiler:
    """Profiles the columns of the schema in the splits of a snapshot.

    A cached result is a file with its SHA-256 in front, named by the digest of what the result depends on.
    A damaged file is reported in the log and not used. Nothing is ever overwritten.

    Attributes:
        engine: Engine that reads the rows; the result does not depend on it.
        store: Folder or URI of cached results; empty: none.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    engine: DataEngine = field(default_factory=DataEngine)
    store: str = ""

    def profile(self, split: str) -> Profile:
        """Return TFDV's statistics of a split with rows, and no counts yet."""
        return Profile(split, self.snapshot.splits[split], self.statistics(split), {})

    def statistics(self, split: str) -> Any:
        """Return TFDV's statistics of a split."""
        roles = self.snapshot.roles
        schema = packed(counted_as(self.schema, [roles["key"]] if "key" in roles else []))
        skipped = self.skipped_columns([split])
        columns = tuple(column.name for column in self.snapshot.columns if column.name not in skipped)
        key = self._key(split, schema=digest_text(schema.hex()), columns=list(columns))
        if (cached := self._cached(key)) is not None:
            return statistics_pb2.DatasetFeatureStatisticsList.FromString(cached)
        statistics, _ = self._scan(split, ScanRequest(schema, columns, {}))
        self._cache(key, packed(statistics))
        return statistics

    def counts(self, split: str, cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
        """Count the rows of a split in the given bins; the snapshot must have all columns of ``cuts``."""
        if not cuts:
            return {}
        points = {name: [float(point).hex() for point in cuts[name]] for name in cuts}
        key = self._key(split, cuts=digest_text(canonical(points)))
        if (cached := self._cached(key)) is not None:
            return {name: np.asarray(rows, np.int64) for name, rows in read_json(cached).items()}
        _, counts = self._scan(split, ScanRequest(b"", (), cuts))
        self._cache(key, json.dumps({name: rows.tolist() for name, rows in counts.items()}).encode())
        return counts

    def skipped_columns(self, splits: Sequence[str]) -> dict[str, str]:
        """Return the columns without statistics, with their Arrow types; none if there is no split."""
        if not splits:
            return {}
        named = {feature.name for feature in self.schema.feature}
        new = {column.name: column.type for column in self.snapshot.columns if column.name not in named}
        return unreadable_columns(self.folder, self.snapshot, splits) | new

    def _scan(self, split: str, request: ScanRequest) -> tuple[Any, dict[str, Counts]]:
        return scan(self.folder, self.snapshot, split, request, self.engine, self.store)

    def _key(self, split: str, **options: Any) -> str:
        key = {"data_version": self.snapshot.digest, "split": split, "engine": ENGINE, **options}
        return digest_text(canonical(key))

    def _cached(self, key: str) -> bytes | None:
        """Return a cached result, or None if there is none, or it is damaged."""
        if not self.store:
            return None
        uri = storage.join(self.store, key)
        try:
            digest, _, result = storage.read_bytes(uri).partition(b"\n")
        except InputError:
            return None
        except (TrainwrightError, OSError) as error:
            _log.warning("cached statistics are not used: %s", error)
            return None
        if digest != _digest(key, result):
            _log.warning("cached statistics are not used: %s was changed", uri)
            return None
        return result

    def _cache(self, key: str, result: bytes) -> None:
        """Cache a result; if that fails, log it and continue."""
        if not self.store:
            return
        try:
            storage.create(storage.join(self.store, key), _digest(key, result) + b"\n" + result)
        except storage.AlreadyExists:  # a concurrent run was first
            return
        except (TrainwrightError, OSError) as error:
            _log.warning("statistics are not cached: %s", error)


def _digest(key: str, result: bytes) -> bytes:
    return hashlib.sha256(key.encode() + result).hexdigest().encode()


def unreadable_columns(folder: Path, snapshot: Snapshot, splits: Sequence[str]) -> dict[str, str]:
    """Return the columns of a type that TFDV cannot read, with the type; none if there is no split."""
    for batch in iter_batches(folder, snapshot, splits, batch_rows=1):
        return unreadable(batch.schema)
    return {}


def own_cuts(statistics: Any, numbers: Sequence[str]) -> dict[str, Cuts]:
    """Return where columns are cut by the quantiles of their own split; only those that hold numbers."""
    features = by_column(statistics)
    points = {name: cut_points(features[name]) for name in numbers if name in features}
    return {name: cuts for name, cuts in points.items() if cuts is not None}
