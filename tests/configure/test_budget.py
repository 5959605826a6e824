"""The most that jobs can cost, and a run that may not cost so much."""

from pathlib import Path
from typing import Any

import pytest

from tests.configure.test_configuration import GOOD, SCHEMA
from trainwright.configure.configuration import FILE, Configuration, Overrides, configure
from trainwright.errors import InputError, PermissionRefused

RESOURCES = {"cpu": 4, "memory_gib": 8, "timeout_s": 1800}
PRICES: dict[str, Any] = {"version": "1", "currency": "EUR", "cpu_hour": 0.5, "memory_gib_hour": 0.25}
JOB = (4 * 0.5 + 8 * 0.25) / 2
"""Half an hour: 2."""


def configured(folder: Path, run: dict[str, Any], pipeline: str = "", **sections: Any) -> Configuration:
    given = GOOD | {"resources": RESOURCES, "run": run, **sections}
    return configure(given, Overrides(schema=SCHEMA), folder, pipeline)


def test_job_that_can_cost_more_than_the_run_may_is_not_allowed(tmp_path: Path) -> None:
    assert configured(tmp_path, {"prices": PRICES, "budget": {"hard": JOB}}).budget == {}
    with pytest.raises(PermissionRefused, match=r"can cost 2 EUR, and the run may cost 1\.99") as refused:
        configured(tmp_path / "second", {"prices": PRICES, "budget": {"hard": 1.99}})
    assert refused.value.where == "run.budget.hard"
    assert not (tmp_path / "second" / FILE).exists()


def test_search_can_cost_its_budget_its_confirmation_and_the_training(tmp_path: Path) -> None:
    space = {"training.learning_rate": {"float": [0.01, 0.1]}}
    confirm = {"top": 1, "seeds": 6}
    shared = {"prices": PRICES | {"budgets": [{"model": "m", "hard": 1000}]}}
    most = []
    for limit in ({"trials": 4}, {"trials": 4, "cost": 5.0}, {"trials": 4, "hours": 0.5, "parallel": 2}):
        tuning = {"space": space, "confirm": confirm, **limit}
        made = configured(tmp_path / str(len(most)), shared, tuning=tuning)
        assert made.tuning["job_hour"] == 2 * JOB
        most.append(made.budget["most"])
    assert most == [(4 + 12 + 1) * JOB, 5 + 13 * JOB, 0.5 * 2 * 2 * JOB + 13 * JOB]


def test_shared_budgets_that_cover_the_run_are_passed_on(tmp_path: Path) -> None:
    budgets = [
        {"owner": "ada", "hard": 10},
        {"pipeline": "train_and_register", "model": "m", "hard": 20},
        {"owner": "bob", "hard": 1},
        {"cost_centre": "4711", "soft": 1},
    ]
    run = {"owner": "ada", "cost_centre": "4711", "prices": PRICES | {"budgets": budgets}}
    made = configured(tmp_path, run, "train-and-register").budget
    assert made == {"most": JOB, "currency": "EUR", "budgets": budgets[:2]}
    with pytest.raises(InputError, match="the budget of owner ada is summed over the runs in MLflow"):
        configured(tmp_path, run | {"mlflow": False})


def test_configuration_without_one_price_for_everything_is_rejected(tmp_path: Path) -> None:
    training = {"tracking": {"gpu_hour": 2.0}}
    with pytest.raises(InputError, match=r"gpu_hour 2 and run.prices are both set"):
        configured(tmp_path, {"prices": PRICES}, training=training)
    with pytest.raises(InputError, match=r"nothing has a price; set run.prices"):
        configured(tmp_path, {"budget": {"soft": 1}})
    gpus = RESOURCES | {"gpus": 1, "placement": {"accelerator": "A100"}}
    with pytest.raises(InputError, match=r"no price for GPU A100; the table has H100"):
        configured(tmp_path, {"prices": PRICES | {"gpu_hour": {"H100": 3}}}, resources=gpus)
    with pytest.raises(InputError, match=r"expected one of pipeline, model, owner and cost_centre"):
        configured(tmp_path, {"prices": PRICES | {"budgets": [{"hard": 1}]}})
