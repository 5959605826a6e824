"""Predictions whose figures can be counted by hand, written as a real snapshot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.engines.beam_clusters import flink
from tests.report.browser import browser
from trainwright.artifacts import Snapshot
from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
from trainwright.evaluate.findings import Findings
from trainwright.experiment import Evaluation
from trainwright.report.page import MAX_BYTES
from trainwright.tables import write_snapshot
from trainwright.verdicts import Verdict

__all__ = ["browser", "flink"]


@dataclass(frozen=True)
class Group:
    """Rows of one slice: positives and how many are found, negatives and how many are taken for positives."""

    name: str
    positives: int
    hits: int
    negatives: int
    false: int


def rows_of(groups: Sequence[Group], *, seed: int = 0) -> dict[str, list[Any]]:
    """Rows with a score of at least 0.5 where they are selected; within a side the scores are random."""
    draw = np.random.default_rng(seed)
    origin: list[str] = []
    late: list[int | None] = []
    score: list[float] = []
    for group in groups:
        for label, count, selected in ((1, group.positives, group.hits), (0, group.negatives, group.false)):
            origin += [group.name] * count
            late += [label] * count
            score += [*draw.uniform(0.5, 1, selected), *draw.uniform(0, 0.4999, count - selected)]
    return {"id": list(range(len(origin))), "origin": origin, "late": late, "score": score}


@dataclass(frozen=True)
class Step:
    """A step's inputs and outputs, as the component would have them."""

    folder: Path
    version: str

    def judge(
        self, baseline: BaselinePredictions | None = None, most_bytes: int = MAX_BYTES, **asked: object
    ) -> Findings:
        """Run the step with an evaluation section."""
        out = self.folder
        evaluation = Evaluation.check({"resamples": 400} | asked, "test")
        places = {"verdict": out / "verdict", "report": out / "report.html", "summary": out / "summary.md"}
        more = {"baseline": baseline, "most_bytes": most_bytes}
        return evaluate_predictions(out / "predictions", self.version, evaluation, **more, **places)

    @property
    def verdict(self) -> Verdict:
        """The verdict that was left; its decision follows from its numbers."""
        found = Verdict.read(self.folder / "verdict")
        assert found.recomputed() == found.decision
        return found


KNOWN = {
    **{name: name for name in ("score", "weight", "estimate", "estimate_low", "estimate_high", "loss")},
    **{f"score_{k}": f"score_{k}" for k in range(4)},
    "key": "id",
    "label": "late",
}
"""Roles of the columns that tests write, where they are there."""


def write_predictions(
    folder: Path,
    columns: dict[str, Any],
    types: dict[str, pa.DataType] | None = None,
    **more: Any,
) -> Snapshot:
    """Write columns as predictions: split ``evaluate`` unless ``split`` says another."""
    arrays = {name: pa.array(values, (types or {}).get(name)) for name, values in columns.items()}
    splits = {more.pop("split", "evaluate"): [pa.table(arrays)], **more.pop("splits", {})}
    parents = more.pop("parents", {"model": "ab" * 32})
    roles = {role: name for role, name in KNOWN.items() if name in columns} | more.pop("roles", {})
    return write_snapshot(folder, splits, parents=parents, roles=roles, **more)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Step]:
    """Write columns as the predictions of split ``evaluate``."""

    def write(columns: dict[str, Any], types: dict[str, pa.DataType] | None = None, **more: Any) -> Step:
        return Step(tmp_path, write_predictions(tmp_path / "predictions", columns, types, **more).digest)

    return write


@pytest.fixture
def production(tmp_path: Path) -> Callable[..., BaselinePredictions]:
    """Write columns as what version 7, in production, said."""

    def write(columns: dict[str, Any], **more: Any) -> BaselinePredictions:
        more.setdefault("parents", {"model": "cd" * 32})
        snapshot = write_predictions(tmp_path / "baseline", columns, **more)
        return BaselinePredictions(tmp_path / "baseline", snapshot.digest, "7")

    return write


FAIR = (Group("EWR", 200, 160, 300, 30), Group("JFK", 100, 78, 200, 20), Group("LGA", 150, 120, 250, 20))
"""Recall 0.80, 0.78, 0.80."""

UNFAIR = (Group("EWR", 400, 200, 300, 30), Group("LGA", 400, 360, 250, 20), Group("JFK", 40, 30, 60, 5))
"""Recall 0.50, 0.90, 0.75."""
