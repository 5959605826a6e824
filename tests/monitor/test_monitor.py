"""Served rows against an accepted baseline that `validate` made of other rows."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.validate.conftest import ROLES, SCHEMA, make_table
from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.experiment import Features, Validation
from trainwright.monitor.monitor import References, monitor
from trainwright.storage import take_listing
from trainwright.tables import write_snapshot
from trainwright.validate.baseline import accept
from trainwright.validate.validate import ValidationContext, ValidationOutputs, validate_snapshot

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SECTION: dict[str, Any] = {"serving_log": {"source": "unused"}, "ignore": ["id", "at", "late"]}
Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An accepted baseline of 4,000 rows."""
    folder = tmp_path_factory.mktemp("baseline")
    tables = {"train": [make_table(4000, 1)], "evaluate": [make_table(1000, 2)]}
    snapshot = write_snapshot(folder / "snapshot", tables, parents={}, roles=ROLES)
    validate_snapshot(
        folder / "snapshot",
        snapshot.digest,
        Validation.check({"on_missing_baseline": "bootstrap"}, "test"),
        ValidationContext(SCHEMA),
        ValidationOutputs(*(folder / name for name in ("verdict", "quarantine", "page", "summary.md"))),
    )
    accept(folder / "verdict", str(folder / "baseline.json"), reason="the test's")
    return str(folder / "baseline.json")


@pytest.fixture
def run(baseline: str, tmp_path: Path) -> Run:
    """Compare served rows, without key, time and label, with the baseline."""

    def call(table: pa.Table, *, accepted: str = baseline, **section: Any) -> tuple[str, str]:
        place = tmp_path / "served.parquet"
        pq.write_table(table, place)
        digests = {
            "baseline_version": take_listing(baseline).content_digest,
            "serving_version": take_listing(str(place)).content_digest,
        }
        return monitor(
            Validation.check(SECTION | section, "test"),
            Features(),
            References(baseline=accepted, serving=str(place), **digests),
            tmp_path / "record",
            tmp_path / "summary.md",
            NOW,
        )

    return call


def served(seed: int = 3, **columns: Any) -> pa.Table:
    return make_table(2000, seed, **({"id": None, "at": None, "late": None} | columns))


def test_rows_like_the_baselines_pass_and_every_column_is_compared(run: Run, tmp_path: Path) -> None:
    decision, headline = run(served())
    assert decision == "PASS"
    assert headline.startswith("0 of 3 columns moved")
    assert Record.read(tmp_path / "record").decision == "PASS"
    assert all(f"| {name} |" in (tmp_path / "summary.md").read_text() for name in ("hour", "delay", "plan"))


def test_moved_numbers_texts_and_missing_values_hold(run: Run) -> None:
    decision, headline = run(served(delay=pa.array(np.full(2000, 90.0))))
    assert (decision, "delay" in headline) == ("HOLD", True)
    decision, headline = run(served(plan=pa.array(["free"] * 2000)))
    # 20 % were free: the share of one value moved by 0.8, in which the sample may differ a little
    assert decision == "HOLD"
    assert "plan against serving 0.79" in headline or "plan against serving 0.80" in headline
    hours = [None if row % 2 else 12 for row in range(2000)]
    assert run(served(hour=pa.array(hours, pa.int64())))[0] == "HOLD"


def test_own_limit_of_a_column_applies(run: Run) -> None:
    moved = served(plan=pa.array(["free"] * 2000))
    wide = {"plan": {"comparator": "infinity_norm", "threshold": 0.9}}
    assert run(moved, drift=wide)[0] == "PASS"
    assert run(moved, ignore=["id", "at", "late", "plan"])[0] == "PASS"


def test_column_that_cannot_be_compared_is_inconclusive(run: Run) -> None:
    decision, headline = run(served(plan=pa.nulls(2000, pa.string())), missing_threshold=1.0)
    assert decision == "INCONCLUSIVE"
    assert "no values of it in serving log" in headline


def test_whole_numbers_that_are_categories_are_compared_by_value(run: Run) -> None:
    rare = pa.array((np.random.default_rng(4).random(2000) < 0.2).astype(np.int64))
    assert run(served(late=rare), ignore=["id", "at"])[0] == "PASS"
    decision, headline = run(served(late=pa.array(np.ones(2000, np.int64))), ignore=["id", "at"])
    assert (decision, "late" in headline) == ("HOLD", True)


def test_input_that_the_log_lacks_is_inconclusive(run: Run) -> None:
    for log in (served(hour=None), served(hour=pa.array(["9"] * 2000)), served(plan=None)):
        decision, headline = run(log)
        assert decision == "INCONCLUSIVE"
        assert "the serving log does not have it as a text or a number" in headline


def test_log_without_rows_and_without_baseline_is_an_error(run: Run) -> None:
    with pytest.raises(InputError, match="the serving log has no rows"):
        run(served().slice(0, 0))
    with pytest.raises(InputError, match=r"needs validation.serving_log and validation.baseline"):
        run(served(), accepted="")
