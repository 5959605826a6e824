"""Profiles of splits: statistics and counts, computed once and cached by what they depend on.

A cached result is two files, ``<key>.pb`` and then ``<key>.json``, which names the digest of the first and
its own. A file that is half written, damaged or foreign is detected, reported in the log and not used.
Nothing is ever overwritten.
"""

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from trainwright import storage
from trainwright.artifacts import Snapshot
from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment.data import Runner
from trainwright.tables import iter_batches
from trainwright.validate.columns import Counts, Cuts, by_column, cut_points, unreadable
from trainwright.validate.scan import FAN_IN, PIECE_ROWS, ScanRequest, scan
from trainwright.validate.statistics import QUANTILES, VALUES_KEPT, counted_as, packed
from trainwright.validate.tfdv import statistics_pb2, tfdv

_log = logging.getLogger("trainwright.validate")


@dataclass(frozen=True, kw_only=True)
class CachedStatistics(Document):
    """Statistics, or counts, of a split.

    Attributes:
        of: What the result depends on: data version, split, engine, and either the columns with the digest of
            what the schema says of them, or the digest of the cuts. The SHA-256 of this is the key.
        statistics_sha256: Digest of the file with TFDV's statistics; empty if these are counts.
        counts: Rows by bin and column; empty if these are statistics.
        content: SHA-256 over all of the above.
    """

    FILE: ClassVar[str] = "statistics.json"
    of: dict[str, Any]
    statistics_sha256: str
    counts: dict[str, tuple[int, ...]]
    content: str

    @classmethod
    def describe(cls, of: Mapping[str, Any], statistics: bytes, counts: Mapping[str, Counts]) -> Self:
        """Describe statistics, or counts; the other is empty."""
        digest = hashlib.sha256(statistics).hexdigest() if statistics else ""
        plain = {name: tuple(int(row) for row in rows) for name, rows in counts.items()}
        document = cls(of=dict(of), statistics_sha256=digest, counts=plain, content="")
        return replace(document, content=document.content_digest())

    def content_digest(self) -> str:
        """Return the SHA-256 that ``content`` must have."""
        counts = {"counts": self.counts, "statistics_sha256": self.statistics_sha256}
        return digest_text(canonical({"of": self.of, **counts}))


@dataclass(frozen=True)
class StatisticsCache:
    """Statistics and counts in a folder or below a URI; an empty ``place`` caches nothing."""

    place: str = ""

    def statistics(self, of: Mapping[str, Any]) -> Any | None:
        """Return cached statistics, or None if there are none that can be used."""
        with self._reported(of):
            if (found := self._read(of)) is not None:
                content = storage.read_bytes(self._uri(of, "pb"))
                if hashlib.sha256(content).hexdigest() != found.statistics_sha256:
                    raise InputError("the file with the statistics was changed", where=self._uri(of, "pb"))
                return statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
        return None

    def counts(self, of: Mapping[str, Any], cuts: Mapping[str, Cuts]) -> dict[str, Counts] | None:
        """Return cached counts in the bins of ``cuts``, or None if there are none that can be used."""
        with self._reported(of):
            if (found := self._read(of)) is not None:
                if {x: len(rows) for x, rows in found.counts.items()} != {x: len(cuts[x]) + 1 for x in cuts}:
                    raise InputError("the counts are of other bins", where=self._uri(of, "json"))
                return {name: np.asarray(found.counts[name], np.int64) for name in cuts}
        return None

    def put(
        self, of: Mapping[str, Any], statistics: bytes = b"", counts: Mapping[str, Counts] | None = None
    ) -> None:
        """Cache a result; if that fails, log it and continue."""
        if not self.place:
            return
        document = CachedStatistics.describe(of, statistics, counts or {})
        try:
            if statistics:
                _create(self._uri(of, "pb"), statistics)
            _create(self._uri(of, "json"), canonical(document.to_json()).encode())
        except (TrainwrightError, OSError) as error:
            _log.warning("the statistics of split %s are not cached: %s", of.get("split"), error)

    def _read(self, of: Mapping[str, Any]) -> CachedStatistics | None:
        if not self.place:
            return None
        uri = self._uri(of, "json")
        try:
            content = storage.read_bytes(uri)
        except InputError:
            return None
        found = CachedStatistics.parse(content, where=uri)
        if canonical(found.of) != canonical(dict(of)):
            raise InputError("it is of other data", where=uri)
        if found.content != found.content_digest():
            raise InputError("it was changed", where=uri)
        return found

    def _uri(self, of: Mapping[str, Any], suffix: str) -> str:
        return storage.join(self.place, f"{digest_text(canonical(dict(of)))}.{suffix}")

    @contextmanager
    def _reported(self, of: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except (TrainwrightError, DecodeError, ValueError, OSError) as error:
            _log.warning("cached statistics of split %s are not used: %s", of.get("split"), error)


def _create(uri: str, content: bytes) -> None:
    try:
        storage.create(uri, content)
    except storage.AlreadyExists:
        if storage.read_bytes(uri) != content:
            raise


@dataclass(frozen=True)
class Profile:
    """Statistics and counts of one split.

    Attributes:
        rows: Its rows, more than 0.
        counts: Rows by bin of the numeric columns that are compared, in the bins of both splits.
    """

    split: str
    rows: int
    statistics: Any
    counts: dict[str, Counts]

    def missing(self, column: str) -> int:
        """Return the rows in which a column has no value: null, absent, or a float that is not a number."""
        feature = by_column(self.statistics).get(column)
        if feature is None:
            return self.rows
        common = feature.string_stats if feature.HasField("string_stats") else feature.num_stats
        nan = sum(histogram.num_nan for histogram in feature.num_stats.histograms[:1])
        return min(self.rows, self.rows - int(common.common_stats.num_non_missing) + int(nan))

    def values(self, column: str) -> dict[str, float]:
        """Return the rows by value of a column whose values were counted; empty if they were not."""
        feature = by_column(self.statistics).get(column)
        buckets = feature.string_stats.rank_histogram.buckets if feature is not None else ()
        return {bucket.label: bucket.sample_count for bucket in buckets}

    def uncounted(self, column: str) -> str:
        """Return why the counts of a column's values are incomplete; empty if they are complete."""
        feature = by_column(self.statistics).get(column)
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


ENGINE = f"1 tfdv-{tfdv.__version__} values-{VALUES_KEPT} quantiles-{QUANTILES} pieces-{PIECE_ROWS}-{FAN_IN}"
"""What else a result depends on; raise the first number when this library computes statistics otherwise."""


@dataclass(frozen=True)
class Profiler:
    """Profiles the splits of a snapshot.

    Attributes:
        runner: Processes or engine that read the rows; the result does not depend on it.
        store: Folder or URI of cached results; empty: none.
        new_columns: Whether columns that the schema does not name are profiled, too.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    runner: Runner = field(default_factory=Runner)
    store: str = ""
    new_columns: bool = True

    def profiles(self, splits: Sequence[str], numbers: Sequence[str]) -> dict[str, Profile]:
        """Profile splits with rows.

        Args:
            splits: The quantiles of the first bound the bins of all; one split alone is not binned.
            numbers: Columns to count in bins, if they hold numbers.
        """
        if not splits:
            return {}
        first = self.statistics(splits[0])
        cuts = own_cuts(first, numbers) if len(splits) > 1 else {}
        found = {splits[0]: (first, self.counts(splits[0], cuts))}
        found |= {name: self.both(name, cuts) for name in splits[1:]}
        rows = self.snapshot.splits
        return {
            name: Profile(name, rows[name], statistics, counts)
            for name, (statistics, counts) in found.items()
        }

    def statistics(self, split: str) -> Any:
        """Return TFDV's statistics of a split."""
        return self.both(split, {})[0]

    def counts(self, split: str, cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
        """Count the rows of a split in the given bins; the snapshot must have all columns of ``cuts``."""
        if not cuts:
            return {}
        key, cache = self._counts_key(split, cuts), StatisticsCache(self.store)
        if (cached := cache.counts(key, cuts)) is not None:
            return cached
        _, counts = self._scan(split, ScanRequest(b"", (), cuts))
        cache.put(key, counts=counts)
        return counts

    def both(self, split: str, cuts: Mapping[str, Cuts]) -> tuple[Any, dict[str, Counts]]:
        """Return a split's statistics and its rows in the given bins, in one scan if neither is cached."""
        roles, cache = self.snapshot.roles, StatisticsCache(self.store)
        schema = counted_as(self.schema, [roles["key"]] if "key" in roles else [])
        wanted = ScanRequest(packed(schema), self._columns(split), cuts)
        key = self._key(split, schema=digest_text(wanted.schema.hex()), columns=list(wanted.columns))
        if (cached := cache.statistics(key)) is not None:
            return cached, self.counts(split, cuts)
        counts = cache.counts(self._counts_key(split, cuts), cuts) if cuts else {}
        if counts is not None:
            wanted = replace(wanted, cuts={})
        statistics, scanned = self._scan(split, wanted)
        cache.put(key, packed(statistics))
        if counts is None:
            cache.put(self._counts_key(split, cuts), counts=scanned)
        return statistics, scanned if counts is None else counts

    def skipped_columns(self, splits: Sequence[str]) -> dict[str, str]:
        """Return the columns without statistics, with their Arrow types; none if there is no split."""
        if not splits:
            return {}
        found = unreadable_columns(self.folder, self.snapshot, splits)
        if not self.new_columns:
            named = {feature.name for feature in self.schema.feature}
            found |= {
                column.name: column.type for column in self.snapshot.columns if column.name not in named
            }
        return found

    def _columns(self, split: str) -> tuple[str, ...]:
        skipped = self.skipped_columns([split])
        return tuple(column.name for column in self.snapshot.columns if column.name not in skipped)

    def _scan(self, split: str, wanted: ScanRequest) -> tuple[Any, dict[str, Counts]]:
        return scan(self.folder, self.snapshot, split, wanted, self.runner, self.store)

    def _key(self, split: str, **options: Any) -> dict[str, Any]:
        return {"data_version": self.snapshot.digest, "split": split, "engine": ENGINE, **options}

    def _counts_key(self, split: str, cuts: Mapping[str, Cuts]) -> dict[str, Any]:
        points = {name: [float(point).hex() for point in cuts[name]] for name in cuts}
        return self._key(split, cuts=digest_text(canonical(points)))


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
