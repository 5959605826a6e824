"""The cost of a run, computed by hand beside it: jobs, searches, gates, failures, budgets and GPUs."""

from dataclasses import replace
from typing import Any

import pytest

from tests.summarize.test_page import record
from trainwright.artifacts import JobUsage
from trainwright.experiment import RunSettings
from trainwright.summarize.cost import cost_line, cost_of, low_gpu_use, values_of
from trainwright.summarize.run import FinalStatus, Run, RunStep

HOUR = 3600.0
GPU = "NVIDIA-H100"
PRICES = {
    "version": "2026-11",
    "currency": "EUR",
    "cpu_hour": 0.5,
    "memory_gib_hour": 0.25,
    "gpu_hour": {GPU: 4.0, "default": 1.0},
    "spot": 0.5,
}
JOB = {"nodes": 2, "cpu": 8, "memory_gib": 16, "gpus": 2, "processes": 2}
ON_SPOT = {"placement": {"accelerator": GPU, "spot": True}}
JOB_HOUR = 2 * (8 * 0.5 + 16 * 0.25 + 2 * 4.0) * 0.5
"""Two pods, each with cores, memory and GPUs, on spot nodes: 16 an hour."""


def done(step: str, seconds: float, **more: Any) -> RunStep:
    return RunStep(step, "done", record(step, 1), seconds=seconds, **more)


def run(*steps: RunStep, state: str = "SUCCEEDED", **arguments: Any) -> Run:
    found = {"resources": JOB | ON_SPOT, "model_name": "late"} | arguments
    return Run("r", "runs/r", FinalStatus(state), steps, [], [], "train-and-register", found)


SETTINGS = RunSettings.check({"prices": PRICES, "owner": "ada", "cost_centre": "4711"}, "run")


def test_job_costs_its_pods_and_names_what_restarts_and_idle_pods_lost() -> None:
    usage = JobUsage(seconds=HOUR, idle_s=900.0, repeated_s=360.0)
    cost = cost_of(run(done("ingest", HOUR), done("train", 2 * HOUR, usage=usage)), SETTINGS)
    assert cost is not None
    ingest = 1 * 0.5 + 4e9 / 2**30 * 0.25
    assert cost.cost == pytest.approx(JOB_HOUR + ingest), "the job's own time counts, not that of its step"
    assert cost.waste == pytest.approx({"idle": JOB_HOUR / 4, "restarts": JOB_HOUR / 10})
    assert (cost.currency, cost.prices) == ("EUR", "2026-11")
    assert cost_line(cost) == f"{cost.cost:,.4g} EUR, of it lost: idle 4, restarts 1.6"


def test_size_of_a_step_is_an_argument_and_a_cached_step_costs_nothing() -> None:
    reused = replace(done("join", HOUR), state="cached")
    cost = cost_of(run(reused, done("ingest", HOUR), ingest_cpu="250m", ingest_memory="2Gi"), SETTINGS)
    assert cost is not None
    assert cost.cost == pytest.approx(0.25 * 0.5 + 2 * 0.25)
    assert [step.step for step in cost.steps] == ["ingest"]


def test_search_costs_what_its_trials_cost_and_loses_the_pruned_ones() -> None:
    searched = done("tune", HOUR, metrics={"cost": 7.0, "pruned_cost": 2.5})
    cost = cost_of(run(searched), SETTINGS)
    assert cost is not None
    assert (cost.cost, cost.waste) == (7.0, {"pruned": 2.5})


def test_run_that_a_gate_held_and_a_step_that_failed_are_lost() -> None:
    judged = RunStep("evaluate", "done", record("evaluate", 5, "FAIL"), seconds=HOUR)
    usage = JobUsage(seconds=HOUR, idle_s=HOUR / 2)
    held = cost_of(run(done("train", HOUR, usage=usage), judged), SETTINGS)
    assert held is not None
    assert sum(held.waste.values()) == pytest.approx(held.cost)
    assert held.waste["idle"] == pytest.approx(JOB_HOUR / 2)
    assert list(held.waste) == ["gate", "idle"]
    failed = cost_of(
        run(done("ingest", HOUR), RunStep("train", "failed", seconds=HOUR / 4), state="FAILED"), SETTINGS
    )
    assert failed is not None
    assert failed.waste == pytest.approx({"failed": JOB_HOUR / 4})


def test_step_on_a_cluster_counts_from_its_start_to_its_end() -> None:
    times = {"started": "2026-11-20T10:00:00Z", "ended": "2026-11-20T10:30:00Z"}
    cost = cost_of(run(RunStep("resolve", "done", record("resolve", 1), **times)), SETTINGS)
    assert cost is not None
    assert cost.cost == pytest.approx((0.5 * 0.5 + 1e9 / 2**30 * 0.25) / 2)


def test_price_of_a_gpu_hour_alone_prices_gpus_alone() -> None:
    training = {"tracking": {"gpu_hour": 3.0}}
    cost = cost_of(run(done("train", HOUR), done("ingest", HOUR), training=training), RunSettings())
    assert cost is not None
    assert cost.cost == 2 * 2 * 3.0
    assert cost_of(run(done("train", HOUR)), RunSettings()) is None


def test_soft_limit_of_a_run_and_low_use_of_gpus_are_reported() -> None:
    settings = SETTINGS.model_copy(update={"budget": RunSettings.check({"budget": {"soft": 16}}, "").budget})
    busy, lazy = (JobUsage(seconds=HOUR, gpu_use=use) for use in (0.3, 0.29))
    cost = cost_of(run(done("train", HOUR, usage=busy)), settings)
    assert cost is not None
    assert cost.over_budget == ("The run cost 16 EUR; run.budget.soft is 16.",)
    assert list(low_gpu_use(run(done("train", HOUR, usage=busy)), settings)) == []
    [said] = low_gpu_use(run(done("train", HOUR, usage=lazy)), settings)
    assert said.startswith("train used its GPUs at 29%; run.min_gpu_use is 30%.")


def test_run_is_charged_to_its_owner_cost_centre_pipeline_and_model() -> None:
    values = values_of(run(), SETTINGS)
    expected = {"owner": "ada", "cost_centre": "4711", "pipeline": "train-and-register", "model": "late"}
    assert values == expected
