"""The log of served requests: the loss of every answer, and the differences between the two versions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.experiment import Data, Serving
from trainwright.significance.estimate import Floats
from trainwright.sources.sources import list_source, open_source
from trainwright.storage import Access, redacted

GUARDS = {
    "error_rate": ("error",),
    "slow_rate": ("latency_ms",),
    "score": ("score",),
    "brier": ("score", "outcome"),
    "zero_one_loss": ("prediction", "outcome"),
    "mae": ("prediction", "outcome"),
}
"""What `canary` can compare, and the columns that it needs."""

_OUTCOME_TIME = "outcome_time"


@dataclass(frozen=True)
class Comparison:
    """A loss of both versions: means, and candidate less production in order of time, divided by ``span``."""

    candidate: float
    production: float
    differences: Floats
    span: float


@dataclass(frozen=True)
class RequestLog:
    """The answers of candidate and production, in order of time.

    Attributes:
        digest: Digest of the files.
        is_candidate: Of each row.
    """

    serving: Serving
    digest: str
    table: pa.Table
    is_candidate: NDArray[np.bool_]

    @property
    def answers(self) -> int:
        """Number of answers of the candidate."""
        return int(self.is_candidate.sum())

    def compare(self, guard: str) -> Comparison:
        """Return the differences in one loss; answers whose loss is not known yet do not count.

        Raises:
            InputError: A value cannot be used for this loss.
        """
        losses, span = self._losses(guard)
        known = np.flatnonzero(~np.isnan(losses))
        if "outcome" in GUARDS[guard] and _OUTCOME_TIME in self.table.column_names:
            times = self.table[_OUTCOME_TIME].cast(pa.int64()).fill_null(np.iinfo(np.int64).max).to_numpy()
            known = known[np.argsort(times[known], kind="stable")]
        losses, arms = losses[known], self.is_candidate[known]
        if self.serving.shadow:
            requests = self.table["request"].combine_chunks().dictionary_encode().indices.to_numpy()
            differences = _paired(requests[known], losses, arms)
        else:
            differences = _blocked(losses, arms)
        candidate, production = (float(losses[own].mean()) if own.any() else 0.0 for own in (arms, ~arms))
        return Comparison(candidate, production, differences / span, span)

    def _losses(self, guard: str) -> tuple[Floats, float]:
        """Return the loss of every row, NaN where it is not known, and the width of its range."""
        serving = self.serving
        match guard:
            case "error_rate":
                return self._numbers("error", (0, 1)), 1.0
            case "slow_rate":
                latency = self._numbers("latency_ms")
                slow = (latency > (serving.slow_ms or 0)).astype(np.float64)
                return np.where(np.isnan(latency), np.nan, slow), 1.0
            case "score":
                low, high = serving.bounds or (0.0, 1.0)
                score = self._numbers("score", None if serving.bounds else (0, 1))
                return np.clip(score, low, high), high - low
            case "mae":
                low, high = serving.bounds or (0.0, 1.0)
                pair = [np.clip(self._numbers(role), low, high) for role in ("prediction", "outcome")]
                return np.abs(pair[0] - pair[1]), high - low
            case "zero_one_loss":
                predicted, outcome = (pc.cast(self.table[role], pa.string()) for role in GUARDS[guard])
                return _floats(pc.not_equal(predicted, outcome)), 1.0
        return self._brier()

    def _brier(self) -> tuple[Floats, float]:
        classes = _class_columns(self.serving, self.table.column_names)
        outcome = self._numbers("outcome", (0, max(len(classes) - 1, 1)))
        if not classes:
            return (self._numbers("score", (0, 1)) - outcome) ** 2, 1.0
        truths = [np.where(np.isnan(outcome), np.nan, outcome == index) for index in range(len(classes))]
        scores = [self._numbers(name, (0, 1)) for name in classes]
        squares = [(score - truth) ** 2 for score, truth in zip(scores, truths, strict=True)]
        total: Floats = np.sum(squares, axis=0)
        return total, 2.0

    def _numbers(self, name: str, limits: tuple[float, float] | None = None) -> Floats:
        """Return a column as numbers, NaN where it has no value."""
        column = self.table[name]
        where = f"column {self.serving.column(name)!r} of the serving log"
        if not (pa.types.is_boolean(column.type) or _is_number(column.type)):
            raise InputError(
                f"expected numbers, found {column.type}",
                where=where,
                hint="Log numbers; of named classes use the guard zero_one_loss.",
            )
        found = _floats(column)
        if limits and (wrong := found[(found < limits[0]) | (found > limits[1])]).size:
            raise InputError(
                f"expected numbers from {limits[0]:g} to {limits[1]:g}, found {wrong[0]:g}",
                where=where,
                hint="Of predicted numbers, set serving.bounds and use the guard mae.",
            )
        return found


def read_log(
    serving: Serving, guards: Collection[str], candidate: str, production: str, start: datetime | None
) -> RequestLog:
    """Read the answers of two versions from the log.

    Raises:
        InputError: There is no such log, or it lacks a column that a guard needs.
    """
    data = Data.check(
        {"source": serving.log, "format": serving.format, "splits": {"all": {"fraction": 1}}}, "log"
    )
    listing = list_source(serving.log, data, Access())
    source = open_source(listing, data, Access())
    names = _columns(serving, guards, source.schema.names)
    parts = [
        table.select(list(names.values())) for part in source.parts() for _, _, table in source.batches(part)
    ]
    table = pa.concat_tables([source.schema.empty_table().select(list(names.values())), *parts])
    table = table.rename_columns(list(names))
    for name in ("time", _OUTCOME_TIME):
        if name in names:
            table = table.set_column(table.column_names.index(name), name, _times(table[name], names[name]))
    table = table.set_column(
        table.column_names.index("version"), "version", table["version"].cast(pa.string())
    )
    rows = pc.is_in(table["version"], pa.array([candidate, production]))
    if start:
        rows = pc.and_(rows, pc.greater_equal(table["time"], pa.scalar(start, table["time"].type)))
    table = table.filter(rows).sort_by("time")
    return RequestLog(
        serving, listing.content_digest, table, _floats(pc.equal(table["version"], candidate)) > 0
    )


def _columns(serving: Serving, guards: Collection[str], there: Sequence[str]) -> dict[str, str]:
    """Return the columns to read, by role."""
    classes = _class_columns(serving, there)
    roles = ["time", "version", *(role for guard in guards for role in GUARDS[guard])]
    roles += ["request"] if serving.shadow else []
    names = {role: serving.column(role) for role in roles}
    if classes and "brier" in guards and serving.column("score") not in there:
        names = {role: name for role, name in names.items() if role != "score"}
        names |= {name: name for name in classes}
    if missing := sorted(set(names.values()) - set(there)):
        raise InputError(
            f"expected columns {missing}, found {list(there)}",
            where=redacted(serving.log),
            hint="Log them, name them in serving.columns, or remove the guard that needs them.",
        )
    if (late := serving.column(_OUTCOME_TIME)) in there:
        names[_OUTCOME_TIME] = late
    return names


def _class_columns(serving: Serving, there: Collection[str]) -> list[str]:
    """Return the columns with the scores of each class; none of two classes."""
    score = serving.column("score")
    names = (f"{score}_{index}" for index in range(len(there)))
    return [name for name in names if name in there]


def _times(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = pa.timestamp("us", "UTC")
    try:
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            return pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"expected times, found {column.type}: {error!s:.100}",
            where=f"column {name!r} of the serving log",
            hint="Log ISO 8601 times.",
        ) from None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _floats(column: Any) -> Floats:
    found: Floats = pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy()
    return found


def _paired(requests: NDArray[np.int32], losses: Floats, arms: NDArray[np.bool_]) -> Floats:
    """Return a difference per request that both versions answered, in order of the later answer."""
    ours, theirs = np.flatnonzero(arms), np.flatnonzero(~arms)
    _, one, two = np.intersect1d(requests[ours], requests[theirs], return_indices=True)
    first, second = ours[one], theirs[two]
    differences: Floats = losses[first] - losses[second]
    return differences[np.argsort(np.maximum(first, second), kind="stable")]


def _blocked(losses: Floats, arms: NDArray[np.bool_]) -> Floats:
    """Return a difference of means per block of requests, which ends when both versions have answered.

    Where a block ends depends on the routing alone, so its difference has the mean of all; and both sides are
    of the same time of day.
    """
    total = np.concatenate(([0.0], np.cumsum(losses)))
    differences, start = [], 0
    for change in (np.flatnonzero(np.diff(arms)) + 1).tolist():
        if change > start:
            mean = (total[change] - total[start]) / (change - start)
            difference = mean - losses[change]
            differences.append(difference if arms[start] else -difference)
            start = change + 1
    return np.array(differences, np.float64)
