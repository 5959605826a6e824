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
from trainwright.validate.scan import FAN_IN, PIECE_ROWS, Wanted, scan
from trainwright.validate.statistics import QUANTILES, VALUES_KEPT, counted_as, packed
from trainwright.validate.tfdv import statistics_pb2, tfdv

_log = logging.getLogger("trainwright.validate")


@dataclass(frozen=True, kw_only=True)
class Kept(Document):
    """What was taken of a split.

    Attributes:
        of: What it depends on: data version, split, engine, and either the columns with the digest of what
            the schema says of them, or the digest of the cuts. The SHA-256 of this is the key.
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
    def describe(cls, of: Mapping[str, Any], statistics: Any, counts: Mapping[str, Counts]) -> Self:
        """Describe statistics, or counts; the other is None or empty."""
        digest = hashlib.sha256(packed(statistics)).hexdigest() if statistics is not None else ""
        plain = {name: tuple(int(row) for row in rows) for name, rows in counts.items()}
        return cls(of=dict(of), statistics_sha256=digest, counts=plain, content=_content(of, digest, plain))


def key_of(of: Mapping[str, Any]) -> str:
    """Return the name under which a result is kept."""
    return digest_text(canonical(dict(of)))


def cuts_digest(cuts: Mapping[str, Cuts]) -> str:
    """Return the SHA-256 over the places at which columns are cut."""
    return digest_text(canonical({name: [float(point).hex() for point in cuts[name]] for name in cuts}))


def _content(of: Mapping[str, Any], digest: str, counts: Mapping[str, tuple[int, ...]]) -> str:
    return digest_text(canonical({"of": dict(of), "statistics_sha256": digest, "counts": dict(counts)}))


@dataclass(frozen=True)
class Shelf:
    """A place where results are kept.

    Attributes:
        place: Folder or URI; nothing is kept if it is empty.
    """

    place: str = ""

    def statistics(self, of: Mapping[str, Any]) -> Any | None:
        """Return kept statistics, or None if there are none that can be used."""
        with self._told(of):
            if (found := self._read(of)) is not None:
                content = storage.read_bytes(self._name(of, "pb"))
                if hashlib.sha256(content).hexdigest() != found.statistics_sha256:
                    raise InputError("the file with the statistics was changed", where=self._name(of, "pb"))
                return statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
        return None

    def counts(self, of: Mapping[str, Any], cuts: Mapping[str, Cuts]) -> dict[str, Counts] | None:
        """Return kept counts in the bins of ``cuts``, or None if there are none that can be used."""
        with self._told(of):
            if (found := self._read(of)) is not None:
                if {x: len(rows) for x, rows in found.counts.items()} != {x: len(cuts[x]) + 1 for x in cuts}:
                    raise InputError("the counts are of other bins", where=self._name(of, "json"))
                return {name: np.asarray(found.counts[name], np.int64) for name in cuts}
        return None

    def put(
        self, of: Mapping[str, Any], statistics: Any = None, counts: Mapping[str, Counts] | None = None
    ) -> None:
        """Keep a result; if that cannot be done, say so and go on."""
        if not self.place:
            return
        document = Kept.describe(of, statistics, counts or {})
        try:
            if statistics is not None:
                _create(self._name(of, "pb"), packed(statistics))
            _create(self._name(of, "json"), canonical(document.to_json()).encode())
        except (TrainwrightError, OSError) as error:
            _log.warning("the statistics of split %s are not kept: %s", of.get("split"), error)

    def _read(self, of: Mapping[str, Any]) -> Kept | None:
        """Return what is kept under a key, None if nothing is.

        Raises:
            TrainwrightError: It cannot be used.
        """
        if not self.place:
            return None
        place = self._name(of, "json")
        try:
            content = storage.read_bytes(place)
        except InputError:
            return None
        found = Kept.parse(content, where=place)
        if canonical(found.of) != canonical(dict(of)):
            raise InputError("it is of other data", where=place)
        if found.content != _content(found.of, found.statistics_sha256, found.counts):
            raise InputError("it was changed", where=place)
        return found

    def _name(self, of: Mapping[str, Any], ending: str) -> str:
        return storage.join(self.place, f"{key_of(of)}.{ending}")

    @contextmanager
    def _told(self, of: Mapping[str, Any]) -> Iterator[None]:
        """Say why what is kept is not used, and go on without it."""
        try:
            yield
        except (TrainwrightError, DecodeError, ValueError, OSError) as error:
            _log.warning("what is kept of split %s is not used: %s", of.get("split"), error)


def _create(place: str, content: bytes) -> None:
    try:
        storage.create(place, content)
    except storage.AlreadyExists:
        if storage.read_bytes(place) != content:
            raise


ENGINE = f"1 tfdv-{tfdv.__version__} values-{VALUES_KEPT} quantiles-{QUANTILES} pieces-{PIECE_ROWS}-{FAN_IN}"
"""What else a result depends on; the first number is raised when this library takes statistics otherwise."""


@dataclass(frozen=True)
class Lookout:
    """Where to look, and how.

    Attributes:
        runner: On what the rows are read; it changes nothing of the result.
        store: Folder or URI where results are kept; none are if empty.
        new_columns: Whether statistics are taken of columns, too, that the schema does not name.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    runner: Runner = field(default_factory=Runner)
    store: str = ""
    new_columns: bool = True

    def statistics(self, split: str) -> Any:
        """Return TFDV's statistics of a split."""
        return self.both(split, {})[0]

    def counts(self, split: str, cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
        """Count the rows of a split in the given bins; all columns of ``cuts`` must be there."""
        if not cuts:
            return {}
        of = self._of(split, cuts=cuts_digest(cuts))
        if (known := Shelf(self.store).counts(of, cuts)) is not None:
            return known
        _, counts = self._scan(split, Wanted(b"", (), cuts))
        Shelf(self.store).put(of, counts=counts)
        return counts

    def both(self, split: str, cuts: Mapping[str, Cuts]) -> tuple[Any, dict[str, Counts]]:
        """Return a split's statistics and its rows in the given bins, in one pass if neither is kept."""
        wanted = Wanted(self._counted(), self._columns(split), cuts)
        of = self._of(split, schema=digest_text(wanted.schema.hex()), columns=list(wanted.columns))
        if (known := Shelf(self.store).statistics(of)) is not None:
            return known, self.counts(split, cuts)
        counts = Shelf(self.store).counts(self._of(split, cuts=cuts_digest(cuts)), cuts) if cuts else {}
        if counts is not None:
            wanted = replace(wanted, cuts={})
        statistics, taken = self._scan(split, wanted)
        Shelf(self.store).put(of, statistics)
        if counts is None:
            Shelf(self.store).put(self._of(split, cuts=cuts_digest(cuts)), counts=taken)
        return statistics, taken if counts is None else counts

    def _scan(self, split: str, wanted: Wanted) -> tuple[Any, dict[str, Counts]]:
        return scan(self.folder, self.snapshot, split, wanted, self.runner, self.store)

    def _of(self, split: str, **options: Any) -> dict[str, Any]:
        return {"data_version": self.snapshot.digest, "split": split, "engine": ENGINE, **options}

    def _counted(self) -> bytes:
        key = [self.snapshot.roles["key"]] if "key" in self.snapshot.roles else []
        return bytes(counted_as(self.schema, key).SerializeToString(deterministic=True))

    def _columns(self, split: str) -> tuple[str, ...]:
        left_out = unreadable_columns(self.folder, self.snapshot, [split])
        if not self.new_columns:
            left_out |= unnamed_columns(self.snapshot, self.schema)
        return tuple(column.name for column in self.snapshot.columns if column.name not in left_out)


def unreadable_columns(folder: Path, snapshot: Snapshot, splits: list[str]) -> dict[str, str]:
    """Return the columns of a type that TFDV cannot read, with the type; none if there is no split."""
    for batch in iter_batches(folder, snapshot, splits, batch_rows=1):
        return unreadable(batch.schema)
    return {}


def unnamed_columns(snapshot: Snapshot, schema: Any) -> dict[str, str]:
    """Return the columns that the schema does not name, with their types, from the manifest alone."""
    named = {feature.name for feature in schema.feature}
    return {column.name: column.type for column in snapshot.columns if column.name not in named}


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
        """Say why the counts of a column's values are missing or not whole; empty if they are whole."""
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


def foreign_columns(
    folder: Path, snapshot: Snapshot, splits: Sequence[str], unread: Any | None = None
) -> dict[str, str]:
    """Return the columns of which there are no statistics, with their types; none if there is no split.

    Args:
        unread: The schema, if columns that it does not name are not read; absent, only those of a type that
            TFDV cannot read are returned.
    """
    found = unreadable_columns(folder, snapshot, list(splits)) if splits else {}
    return found | (unnamed_columns(snapshot, unread) if splits and unread is not None else {})


def profile_splits(
    folder: Path,
    snapshot: Snapshot,
    splits: Sequence[str],
    schema: Any,
    numbers: Sequence[str],
    *,
    runner: Runner | None = None,
    store: str = "",
    new_columns: bool = True,
) -> dict[str, Profile]:
    """Look at splits, piece by piece, on the processes or the engine of ``runner``.

    Args:
        splits: Splits with rows. The quantiles of the first bound the bins of all; one alone is not binned.
        runner: On what the rows are read; two processes if absent. It changes nothing of the result.
        store: Folder or URI where statistics and counts are kept, and looked for first; none if empty.
        new_columns: Whether statistics are taken of columns, too, that the schema does not name.
    """
    lookout = Lookout(folder, snapshot, schema, runner or Runner(), store, new_columns)
    first = lookout.statistics(splits[0])
    cuts = own_cuts(first, numbers) if len(splits) > 1 else {}
    found = {splits[0]: (first, lookout.counts(splits[0], cuts))}
    found |= {name: lookout.both(name, cuts) for name in splits[1:]}
    return {
        name: Profile(split=name, rows=snapshot.splits[name], statistics=statistics, counts=counts)
        for name, (statistics, counts) in found.items()
    }


def count_split(
    folder: Path,
    snapshot: Snapshot,
    split: str,
    cuts: Mapping[str, Cuts],
    *,
    runner: Runner | None = None,
    store: str = "",
) -> dict[str, Counts]:
    """Count the rows of a split in given bins, on the processes or the engine of ``runner``.

    Args:
        cuts: Cut points by column; every column must be in the snapshot.
    """
    return Lookout(folder, snapshot, None, runner or Runner(), store).counts(split, cuts)


def own_cuts(statistics: Any, numbers: Sequence[str]) -> dict[str, Cuts]:
    """Return where columns are cut by the quantiles of their own split; only those that hold numbers."""
    features = by_column(statistics)
    points = {name: cut_points(features[name]) for name in numbers if name in features}
    return {name: cuts for name, cuts in points.items() if cuts is not None}
