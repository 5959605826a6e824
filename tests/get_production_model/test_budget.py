"""What runs in a real MLflow have spent, against the budgets that they share."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainwright.errors import DependencyError, PermissionRefused
from trainwright.experiment import Registry
from trainwright.get_production_model.production_version import check_budgets
from trainwright.tracking.run_log import RunEntry, RunLog, read_spending, start_of_month, write_log
from trainwright.tracking.server import open_client

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def log(uri: str, key: str, cost: float, started: datetime, experiment: str, **values: str) -> None:
    tags = {"currency": "EUR", "run": key, **values}
    milliseconds = int(started.timestamp() * 1000)
    entry = RunEntry(
        key=key,
        name=key,
        status="FINISHED",
        started_ms=milliseconds,
        ended_ms=milliseconds + 1,
        metrics={"cost": cost, "waste/idle": cost / 4},
        tags={f"trainwright.{name}": value for name, value in tags.items()},
    )
    made = RunLog(uri=uri, experiment=experiment, joined="", run=entry, steps=())
    write_log(made, open_client(uri))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    uri = f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db"
    now, before = datetime.now(UTC), start_of_month() - timedelta(seconds=1)
    log(uri, "a", 3.0, now, "one", owner="ada", pipeline="train-and-register")
    log(uri, "b", 4.0, start_of_month(), "two", owner="ada", pipeline="train_and_register")
    log(uri, "c", 50.0, before, "one", owner="ada", pipeline="train_and_register")
    log(uri, "d", 9.0, now, "one", owner="bob", pipeline="train_and_register")
    return Registry(model="m", tracking_uri=uri, retry_s=0)


def budget(most: float, **shared: object) -> dict[str, object]:
    return {"most": most, "currency": "EUR", "budgets": [shared]}


def test_runs_of_this_month_in_all_experiments_count_against_a_budget(registry: Registry) -> None:
    check_budgets({}, registry)
    check_budgets(budget(1.0, owner="ada", hard=8), registry)
    with pytest.raises(PermissionRefused, match=r"owner ada has spent 7 of 8 EUR this month, .* cost 1.5"):
        check_budgets(budget(1.5, owner="ada", hard=8), registry)
    check_budgets(budget(1.0, pipeline="train-and-register", hard=17), registry)
    with pytest.raises(PermissionRefused, match=r"pipeline train-and-register has spent 16 of 16\.5"):
        check_budgets(budget(1.0, pipeline="train-and-register", hard=16.5), registry)
    check_budgets(budget(1.0, owner="ada", model="other", hard=1), registry)


def test_spending_has_values_and_waste_of_each_run_of_all_pages(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.tracking.server._PAGE", 1)
    found = {one.run: one for one in read_spending(open_client(registry.tracking_uri), start_of_month())}
    assert sorted(found) == ["a", "b", "d"]
    assert (found["d"].values["owner"], found["d"].cost, found["d"].waste) == ("bob", 9.0, {"idle": 2.25})


def test_training_does_not_start_while_nobody_knows_what_was_spent(tmp_path: Path) -> None:
    away = Registry(model="m", tracking_uri="http://127.0.0.1:1", retry_s=0)
    with pytest.raises(DependencyError) as refused:
        check_budgets(budget(1.0, owner="ada", hard=8), away)
    assert "what budgets have left is not known" in refused.value.hint
