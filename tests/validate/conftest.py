"""Small tables in known shapes, and the gate run on them from end to end."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from tests.engines.beam_clusters import flink
from tests.report.browser import browser
from trainwright.artifacts import Record
from trainwright.experiment import Validation
from trainwright.tables import write_snapshot
from trainwright.validate.judgement import SnapshotJudgement
from trainwright.validate.validate import (
    ValidationContext,
    ValidationOutputs,
    validate_snapshot,
)
from trainwright.verdicts import Verdict

__all__ = ["browser", "flink"]

SCHEMA = """
default_environment: "TRAINING" default_environment: "SERVING"
feature { name: "id" type: BYTES presence { min_fraction: 1 min_count: 1 }
  string_domain { is_categorical: CATEGORICAL_NO } }
feature { name: "at" type: INT presence { min_fraction: 1 min_count: 1 } }
feature { name: "hour" type: INT presence { min_fraction: 1 min_count: 1 } int_domain { min: 0 max: 23 } }
feature { name: "delay" type: FLOAT presence { min_fraction: 0.5 min_count: 1 } }
feature { name: "plan" type: BYTES domain: "plan" presence { min_fraction: 1 min_count: 1 } }
feature { name: "late" type: INT presence { min_fraction: 0.9 min_count: 1 }
  int_domain { min: 0 max: 1 is_categorical: true } not_in_environment: "SERVING" }
string_domain { name: "plan" value: "basic" value: "team" value: "free" }
"""
ROLES = {"key": "id", "time": "at", "label": "late"}


def make_table(rows: int, seed: int, **columns: Any) -> pa.Table:
    """Rows that fit :data:`SCHEMA`; a column given by name replaces the drawn one, None leaves it out."""
    draw = np.random.default_rng(seed)
    drawn: dict[str, Any] = {
        "id": pa.array([f"{seed}-{row}" for row in range(rows)]),
        "at": pa.array(np.arange(rows) * 60_000_000 + 1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        "hour": pa.array(draw.integers(5, 24, rows)),
        "delay": pa.array(np.where(draw.random(rows) < 0.7, -3.0, draw.exponential(40, rows)).round()),
        "plan": pa.array(draw.choice(["basic", "team", "free"], rows, p=[0.5, 0.3, 0.2])),
        "late": pa.array((draw.random(rows) < 0.2).astype(np.int64)),
    }
    drawn |= columns
    return pa.table({name: column for name, column in drawn.items() if column is not None})


@dataclass(frozen=True)
class Judged:
    """What the gate left behind."""

    folder: Path
    snapshot: Path
    outcome: SnapshotJudgement

    @property
    def verdict(self) -> Verdict:
        found = Verdict.read(self.folder / "verdict")
        assert found.recomputed() == found.decision
        return found

    @property
    def record(self) -> Record:
        return Record.read(self.folder / "verdict")

    @property
    def headline(self) -> str:
        return self.record.headline

    @property
    def page(self) -> str:
        return (self.folder / "report.html").read_text()

    @property
    def summary(self) -> str:
        return (self.folder / "summary.md").read_text()

    @property
    def account(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "verdict" / "anomalies.json").read_text())
        return content


Judge = Callable[..., Judged]
Table = Callable[..., pa.Table]


@pytest.fixture
def rows() -> Table:
    """Draw rows that fit the schema."""
    return make_table


@pytest.fixture
def schema_text() -> str:
    """The reviewed schema of those rows."""
    return SCHEMA


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Write a snapshot and judge it."""

    def run(
        splits: Mapping[str, pa.Table],
        schema: str = SCHEMA,
        roles: Mapping[str, str] = ROLES,
        given: Mapping[str, str] | None = None,
        quality: Mapping[str, float] | None = None,
        **section: Any,
    ) -> Judged:
        section = {"on_missing_baseline": "skip"} | section
        attempt = tmp_path / str(len(list(tmp_path.iterdir())))
        folder, out = attempt / "snapshot", attempt / "out"
        tables = {name: [table] for name, table in splits.items()}
        snapshot = write_snapshot(folder, tables, parents={}, roles=roles, quality=quality)
        outcome = validate_snapshot(
            folder,
            snapshot.digest,
            Validation.check(section, "test"),
            ValidationContext(schema, **(given or {})),
            ValidationOutputs(
                *(out / name for name in ("verdict", "quarantine", "report.html", "summary.md"))
            ),
        )
        return Judged(out, folder, outcome)

    return run
