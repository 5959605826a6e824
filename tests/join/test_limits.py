"""What the audit found is held against limits, after it is written."""

import math
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.featurestore.repository import PRICES, at, make_repository
from tests.join.sales import Join, sale
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.join.audit import Audit


def test_a_feature_that_is_missing_more_often_than_allowed_is_refused_after_the_audit_is_written(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = {"train": [sale("a", 1), sale("b", 1), sale("c", 1, product=77)]}
    made, _, _, summary = join(repository, sales, limits={"max_missing": {"price": 0.4}})
    assert made.quality["missing_share.price"] == pytest.approx(1 / 3, abs=1e-6)
    assert "| price | prices | 33.33% |" in summary
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(DataRefused, match=r"price: no value in 33\.33% of the rows > 30\.00%") as raised:
        join(repository, sales, limits={"max_missing": {"price": 0.3}})
    assert raised.value.code == 11
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    assert Audit.read(tmp_path / "set").refusals == ("price: no value in 33.33% of the rows > 30.00%",)
    assert "Refused: 1 limits do not hold" in (tmp_path / "summary.md").read_text()


def test_a_default_limit_holds_for_every_feature_that_has_none_of_its_own(join: Join, tmp_path: Path) -> None:
    odd = [{"product": 1, "price": math.nan, "currency": None, "event": at(0), "created": at(0)}]
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=odd)])
    limits = {"max_missing": {"currency": 1}, "max_missing_default": 0.5}
    with pytest.raises(DataRefused, match=r"1 limits do not hold\n.*price: no value in 100\.00% of the rows"):
        join(repository, {"train": [sale("a", 1)]}, limits=limits)


def test_values_that_are_too_old_or_past_their_ttl_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, ttl=timedelta(hours=6))])
    sales = {"train": [sale("a", 1), sale("b", 5), sale("c", 20), sale("d", 29)]}
    made, _, _, _ = join(repository, sales)
    assert made.quality["median_age_s.prices"] == made.quality["max_age_s.prices"] == 5 * 3600
    assert made.quality["expired_share.prices"] == 0.25
    with pytest.raises(DataRefused) as raised:
        join(repository, sales, limits={"max_age_s": {"prices": 3600}, "max_expired": {"prices": 0.2}})
    assert "view prices: newest value past its TTL in 25.00% of rows > 20.00%" in raised.value.what
    assert "view prices: oldest joined value 18,000 s > 3,600 s" in raised.value.what


def test_limits_on_what_is_not_joined_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    limits = {"max_missing": {"pric": 0.1}, "max_age_s": {"weather": 60}}
    with pytest.raises(InputError) as raised:
        join(repository, {"train": [sale("a", 1)]}, limits=limits)
    assert "features.limits.max_missing: no column 'pric'; did you mean price?" in raised.value.what
    assert "features.limits.max_age_s: no view 'weather'; the service has prices" in raised.value.what
