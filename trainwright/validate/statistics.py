"""Statistics by TFDV's own combiners, taken in pieces that are merged in one fixed order.

The calls are those of TFDV's in-memory path (``generate_statistics_from_dataframe``). They are not public,
but the version is pinned, and tests compare every one of them with that path. Partial results are merged by
their place alone: one process, many processes and every engine give the same bytes.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.drift.comparison import Counts, Cuts
from trainwright.engine import map_merge, require_reachable
from trainwright.experiment import DataEngine
from trainwright.tables import ROW_GROUP, Piece, pieces, read_piece
from trainwright.validate.columns import add_counts, listed, no_counts, prepared
from trainwright.validate.tfdv import (
    array_util,
    schema_pb2,
    stats_impl,
    tfdv,
    top_k,
)

VALUES_KEPT = 10_000
"""Distinct values of a column that are counted exactly. TFDV keeps 1,000 and drops the rest in silence."""

QUANTILES = 20
"""Buckets of equal weight in a numeric column's quantile histogram."""

_DISTINCT_KEPT = 16_384
"""Hashes by which distinct values are counted: exact below, within 2 % or so above. TFDV's own default."""


class _ValueCounts(top_k.TopKUniquesSketchStatsGenerator):  # type: ignore[misc]
    """TFDV's counter of values, given every value of a batch once with its number of rows.

    Its sketches look up each value of a batch: 95 ns a row, against 20 ns for counting by Arrow.
    """

    def _update_combined_sketch_for_feature(
        self, feature_name: Any, values: pa.Array, weights: Any, accumulator: Any
    ) -> None:
        super()._update_combined_sketch_for_feature(feature_name, values.slice(0, 0), weights, accumulator)
        flat, _ = array_util.flatten_nested(values)
        counted = flat.drop_null().value_counts()
        sketches = accumulator[feature_name]
        sketches._distinct.AddValues(counted.field(0))
        sketches._topk_unweighted.AddValues(counted.field(0), counted.field(1).cast(pa.float32()))


def counted_as(schema: Any, uncounted: Iterable[str] = ()) -> Any:
    """Return the part of a schema that the statistics depend on: other limits, same statistics."""
    left_out = frozenset(uncounted)
    copy = schema_pb2.Schema(sparse_feature=schema.sparse_feature, weighted_feature=schema.weighted_feature)
    kinds = {domain.name: domain.is_categorical for domain in schema.string_domain}
    for feature in schema.feature:
        _declare(copy.feature.add(name=feature.name, type=feature.type), feature, kinds)
        if feature.name in left_out and feature.type == schema_pb2.BYTES:
            copy.feature[-1].string_domain.is_categorical = schema_pb2.StringDomain.CATEGORICAL_NO
    return copy


def _declare(plain: Any, feature: Any, kinds: dict[str, int]) -> None:
    """Copy from a feature's domain what says whether its values are categories."""
    name = feature.WhichOneof("domain_info")
    if name not in {"domain", "string_domain", "int_domain", "float_domain", None}:
        getattr(plain, name).CopyFrom(getattr(feature, name))
    elif name == "domain" and kinds.get(feature.domain):
        plain.string_domain.is_categorical = kinds[feature.domain]
    elif name not in {"domain", None} and getattr(feature, name).is_categorical:
        getattr(plain, name).is_categorical = getattr(feature, name).is_categorical


SKETCH_ERROR = 0.01
"""Largest error of a quantile's rank, as a share of the rows: TFDV's own setting of its sketch."""


class Statistics:
    """Statistics of rows that arrive batch by batch, by all of TFDV's combiners.

    Args:
        schema: Says which numbers are categories, whose values are then counted one by one.
        uncounted: Columns whose values are not counted, such as a key: all are distinct.
    """

    def __init__(self, schema: Any, uncounted: Iterable[str] = ()) -> None:
        schema = counted_as(schema, uncounted)
        options = tfdv.StatsOptions(
            schema=schema, num_rank_histogram_buckets=VALUES_KEPT, num_quantiles_histogram_buckets=QUANTILES
        )
        values = _ValueCounts(
            schema=schema,
            num_top_values=options.num_top_values,
            num_rank_histogram_buckets=VALUES_KEPT,
            frequency_threshold=options.frequency_threshold,
            num_misragries_buckets=VALUES_KEPT,
            num_kmv_buckets=_DISTINCT_KEPT,
            length_counter_sampling_rate=0.0,  # a telemetry counter that walks single values in Python
        )
        self._combiners = [
            values if isinstance(generator, top_k.TopKUniquesSketchStatsGenerator) else generator
            for generator in stats_impl.get_generators(options, in_memory=True)
        ]
        self._parts = [combiner.create_accumulator() for combiner in self._combiners]

    def add(self, batch: pa.RecordBatch) -> Self:
        """Add rows."""
        return self.add_listed(listed(prepared(batch)))

    def add_listed(self, rows: pa.RecordBatch) -> Self:
        """Add rows in the form of :func:`trainwright.validate.columns.listed`."""
        pairs = zip(self._combiners, self._parts, strict=True)
        with np.errstate(invalid="ignore"):  # infinities have no mean and no variance: TFDV writes NaN
            self._parts = [combiner.add_input(part, rows) for combiner, part in pairs]
        return self

    def packed(self) -> bytes:
        """Return the statistics so far as bytes, for a process with the same schema."""
        return pickle.dumps(self._compact(), protocol=pickle.HIGHEST_PROTOCOL)

    def merge_packed(self, parts: bytes) -> Self:
        """Add the rows that another process has seen. Only for bytes that our own processes sent."""
        other = pickle.loads(parts)  # noqa: S301  # nosec B301
        pairs = zip(self._combiners, zip(self._compact(), other, strict=True), strict=True)
        with np.errstate(invalid="ignore"):
            self._parts = [combiner.merge_accumulators(list(both)) for combiner, both in pairs]
        return self

    def _compact(self) -> list[Any]:
        return [combiner.compact(part) for combiner, part in zip(self._combiners, self._parts, strict=True)]

    def finish(self) -> Any:
        """Return the statistics as TFDV's ``DatasetFeatureStatisticsList`` with one dataset."""
        return stats_impl.extract_statistics_output(self._parts, self._combiners)


def describe(batches: Iterable[pa.RecordBatch], schema: Any, uncounted: Iterable[str] = ()) -> Any:
    """Compute the statistics of some rows in this process."""
    statistics = Statistics(schema, uncounted)
    for batch in batches:
        statistics.add(batch)
    return statistics.finish()


def packed(statistics: Any) -> bytes:
    """Return statistics in their one form as bytes."""
    return bytes(statistics.SerializeToString(deterministic=True))


PIECE_ROWS = 2 * ROW_GROUP
"""Rows a piece, about: the unit of work."""


@dataclass(frozen=True)
class ScanRequest:
    """A request for statistics of ``columns`` and for counts in the bins of ``cuts``.

    ``schema``, a serialized ``Schema``, says which values are counted one by one.
    """

    schema: bytes
    columns: tuple[str, ...]
    cuts: Mapping[str, Cuts]

    def begin(self) -> Statistics:
        """Return the statistics of no rows."""
        return Statistics(schema_pb2.Schema.FromString(self.schema))


@dataclass(frozen=True)
class PartialResult:
    """Partial statistics of some rows, packed, and their counts."""

    parts: bytes
    counts: dict[str, Counts]


def take(folder: Path, piece: Piece, request: ScanRequest) -> PartialResult:
    """Scan one piece."""
    statistics = request.begin() if request.columns else None
    counts = no_counts(request.cuts)
    names = [*request.columns, *(name for name in request.cuts if name not in request.columns)]
    for batch in read_piece(folder, piece, names):
        columns = prepared(batch)
        add_counts(counts, columns, request.cuts)
        if statistics is not None:
            known = {name: columns[name] for name in request.columns if name in columns}
            statistics.add_listed(listed(known))
    return PartialResult(statistics.packed() if statistics is not None else b"", counts)


def merge(taken: Iterable[PartialResult], request: ScanRequest) -> PartialResult:
    """Add up partial results, in the order given."""
    statistics, counts = request.begin(), no_counts(request.cuts)
    for entry in taken:
        if request.columns:
            statistics.merge_packed(entry.parts)
        for name, rows in entry.counts.items():
            counts[name] += rows
    return PartialResult(statistics.packed() if request.columns else b"", counts)


def finish(total: PartialResult, request: ScanRequest) -> Any:
    """Return the statistics (``DatasetFeatureStatisticsList``) of merged partial results."""
    statistics = request.begin()
    return (statistics.merge_packed(total.parts) if request.columns else statistics).finish()


def scan(
    folder: Path, snapshot: Snapshot, split: str, request: ScanRequest, engine: DataEngine, shared: str = ""
) -> tuple[Any, dict[str, Counts]]:
    """Scan a split; the engine changes nothing of the result.

    Args:
        shared: Folder or URI that the engine's workers reach, too.

    Returns:
        TFDV's ``DatasetFeatureStatisticsList``, and the rows by bin and column.
    """
    found = pieces(folder, snapshot, [split], PIECE_ROWS)
    require_reachable((piece.entry.uri for piece in found), engine, "data.store")
    total = map_merge(
        partial(take, folder, request=request),
        partial(merge, request=request),
        found,
        engine,
        "validate",
        store=shared,
        describe=lambda task: f"{task[0].entry.uri}, row groups from {task[0].first} on",
    )
    return finish(total, request), total.counts
