"""The same statistics through Apache Beam, for splits that one machine is too small for.

Every piece is read by the same function, wherever Beam runs it, and what comes of the pieces is merged by
their place: the result is that of one machine. Beam's workers need the environment of this step, and they
need to reach the files: so those are URIs, or lie on a volume that all mount.
"""

import io
import itertools
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from trainwright import storage
from trainwright.tables import Piece
from trainwright.validate.columns import Counts
from trainwright.validate.scan import FAN_IN, PartialResult, ScanRequest, finish, levels, merge, take
from trainwright.validate.statistics import packed
from trainwright.validate.tfdv import statistics_pb2

_STATISTICS = "statistics"

Numbered = tuple[int, tuple[int, PartialResult]]
"""What was taken, with its place, and the place of the group that it is merged in."""


def scan_pieces(
    folder: Path, found: Sequence[Piece], wanted: ScanRequest, options: Sequence[str], shared: str = ""
) -> tuple[Any, dict[str, Counts]]:
    """Take what is wanted of all pieces.

    Args:
        found: The pieces, in their order; at least one.
        shared: Folder or URI that Beam's workers and this process reach, for the result; a folder of this
            machine if empty.

    Returns:
        As :func:`trainwright.validate.scan.scan`.
    """
    with tempfile.TemporaryDirectory(prefix="trainwright-statistics-") as here:
        result = storage.join(shared or here, f"{uuid.uuid4().hex}.npz")
        pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
        rows = pipeline | beam.Create(list(enumerate(found)))  # type: ignore[no-untyped-call]
        steps = [
            ("spread", beam.Reshuffle()),  # type: ignore[no-untyped-call]
            ("take", _each(partial(_take, folder=folder, wanted=wanted))),
            *itertools.chain.from_iterable(_merged(level, wanted) for level in range(levels(len(found)))),
            ("write", _each(partial(_write, wanted=wanted, result=result))),
        ]
        for name, step in steps:
            rows = rows | name >> step
        pipeline.run().wait_until_finish()  # type: ignore[no-untyped-call]
        try:
            return _read(storage.read_bytes(result), wanted)
        finally:
            storage.remove([result])


def _each(function: Any) -> Any:
    return beam.Map(function)  # type: ignore[no-untyped-call]


def _merged(level: int, wanted: ScanRequest) -> list[tuple[str, Any]]:
    return [
        (f"group {level}", beam.GroupByKey()),  # type: ignore[no-untyped-call]
        (f"merge {level}", _each(partial(_merge, wanted=wanted))),
    ]


def _take(numbered: tuple[int, Piece], folder: Path, wanted: ScanRequest) -> Numbered:
    place, piece = numbered
    return place // FAN_IN, (place, take(folder, piece, wanted))


def _merge(group: tuple[int, Iterable[tuple[int, PartialResult]]], wanted: ScanRequest) -> Numbered:
    place, numbered = group
    in_order = [taken for _, taken in sorted(numbered, key=lambda entry: entry[0])]
    return place // FAN_IN, (place, merge(in_order, wanted))


def _write(numbered: Numbered, wanted: ScanRequest, result: str) -> None:
    total = numbered[1][1]
    statistics = np.frombuffer(packed(finish(total, wanted)), np.uint8)
    content = io.BytesIO()
    np.savez(content, **{_STATISTICS: statistics}, **_by_place(total.counts))
    storage.create(result, content.getvalue())


def _by_place(counts: dict[str, Counts]) -> dict[str, Counts]:
    """Name counts by their place: a column's own name may be no name for a file."""
    return {f"counts-{place}": rows for place, rows in enumerate(counts.values())}


def _read(content: bytes, wanted: ScanRequest) -> tuple[Any, dict[str, Counts]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        counts = {name: found[f"counts-{place}"] for place, name in enumerate(wanted.cuts)}
        statistics = found[_STATISTICS].tobytes()
    return statistics_pb2.DatasetFeatureStatisticsList.FromString(statistics), counts
