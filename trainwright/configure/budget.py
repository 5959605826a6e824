"""The most that the jobs of a run can cost, against the budget of the run and those that it shares."""

from typing import Any

from trainwright.errors import InputError, PermissionRefused
from trainwright.experiment import Experiment, Prices

SHOWN = ",.4g"


def check_budget(experiment: Experiment, pipeline: str) -> dict[str, Any]:
    """Check the hard limit of the run; return what `get_production_model` checks: the shared ones.

    Args:
        experiment: The configuration.
        pipeline: Name of the pipeline.

    Returns:
        ``most``: the most that its jobs can cost. ``currency``. ``budgets``: the shared ones with a hard
        limit that cover the run. Empty without any.

    Raises:
        PermissionRefused: The jobs can cost more than the run may.
        InputError: The GPUs have no price, or the run would not be logged where shared budgets are summed.
    """
    run, hard = experiment.run, experiment.run.budget.hard
    prices = run.priced(experiment.training.tracking.gpu_hour)
    if prices is None:
        return {}
    most = most_cost(experiment, prices)
    if hard is not None and most > hard:
        raise PermissionRefused(
            f"the jobs can cost {most:{SHOWN}} {prices.currency}, and the run may cost {hard:{SHOWN}}",
            where="run.budget.hard",
            hint="Lower resources.timeout_s, the size of the job or tuning.cost, or have the budget raised.",
        )
    values = {"pipeline": pipeline, "model": experiment.registry.model} | {
        name: getattr(run, name) for name in ("owner", "cost_centre")
    }
    shared = [budget for budget in prices.budgets if budget.hard is not None and budget.covers(values)]
    if shared and not run.mlflow:
        raise InputError(
            f"run.mlflow is false, and the budget of {shared[0]} is summed over the runs in MLflow",
            where="run.mlflow",
            hint="Remove it.",
        )
    if not shared:
        return {}
    budgets = [budget.to_parameter() for budget in shared]
    return {"most": most, "currency": prices.currency, "budgets": budgets}


def most_cost(experiment: Experiment, prices: Prices) -> float:
    """Return the most that the training job and a search can cost, each job within ``timeout_s``, once."""
    resources, tuning = experiment.resources, experiment.tuning
    hour = prices.job_hour(resources)
    job = hour * resources.timeout_s / 3600
    if tuning is None:
        return job
    limits = [tuning.trials * job]
    limits += [tuning.cost] if tuning.cost else []
    limits += [tuning.hours * tuning.parallel * hour] if tuning.hours else []
    confirm = tuning.confirm
    confirmed = (confirm.top + 1) * confirm.seeds if confirm.top else 0
    return min(limits) + (confirmed + 1) * job
