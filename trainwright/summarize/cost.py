"""The cost of a run: each step's resources over its time, what of it was lost, and soft limits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainwright.artifacts.cost import RunCost, StepCost, sum_waste, waste_line
from trainwright.documents import flatten
from trainwright.experiment import Prices, Resources, RunSettings, Steps
from trainwright.launch.kubernetes_names import amount_of
from trainwright.report.page import Block, Paragraph, ReportSection, Table
from trainwright.report.svg import duration
from trainwright.summarize.run import Run, RunStep, span, state_of
from trainwright.tracking.run_log import read_spending, start_of_month
from trainwright.tracking.server import open_client, persist

_SMALL = {"cpu": "500m", "memory": "1G"}
"""Size of a step that has none in the experiment, as the pipelines set it."""

_GIB = 2**30
_RETRY_S = 5.0


def cost_of(run: Run, settings: RunSettings) -> RunCost | None:
    """Return the cost of a run; None without prices.

    Raises:
        InputError: The GPUs of the job have no price.
    """
    gpu_hour = flatten(run.arguments).get("training.tracking.gpu_hour")
    prices = settings.priced(None if gpu_hour is None else float(gpu_hour))
    if prices is None:
        return None
    steps = [_step_cost(step, prices, run.arguments) for step in run.executed]
    if state_of(run) == "held":
        steps = [_lost(step, "gate") for step in steps]
    total = sum(step.cost for step in steps)
    waste = sum_waste(step.waste for step in steps)
    cost = RunCost(
        currency=prices.currency, prices=prices.version, cost=total, waste=waste, steps=tuple(steps)
    )
    soft = settings.budget.soft
    if soft is not None and total >= soft:
        said = f"The run cost {total:,.4g} {prices.currency}; run.budget.soft is {soft:,.4g}."
        cost = replace(cost, over_budget=(said,))
    return cost


def _step_cost(step: RunStep, prices: Prices, arguments: Mapping[str, Any]) -> StepCost:
    verb = step.record.step if step.record else step.name
    seconds, waste = _seconds(step), dict[str, float]()
    if verb in {"train", "tune"}:
        hour = prices.job_hour(Resources.parse(arguments.get("resources", {}), "resources"))
    else:
        sizes = Steps().parameters() | dict(arguments)
        cpu, memory = (amount_of(str(sizes.get(f"{verb}_{name}", small))) for name, small in _SMALL.items())
        hour = prices.hour(cpu, memory / _GIB)
    usage = step.usage
    seconds = usage.seconds if usage else seconds
    cost = seconds / 3600 * hour
    if usage:
        waste = {"restarts": usage.repeated_s / 3600 * hour, "idle": usage.idle_s / 3600 * hour}
    elif verb == "tune":  # of a search that failed only its time is known
        cost = step.metrics.get("cost", cost)
        waste = {"pruned": step.metrics.get("pruned_cost", 0.0)}
    waste = {name: lost for name, lost in waste.items() if lost}
    made = StepCost(step=step.name, seconds=seconds, cost=cost, waste=waste)
    return _lost(made, "failed") if step.state == "failed" else made


def _lost(step: StepCost, reason: str) -> StepCost:
    """Count the rest of a step as lost."""
    rest = step.cost - sum(step.waste.values())
    return replace(step, waste=step.waste | {reason: rest}) if rest > 0 else step


def _seconds(step: RunStep) -> float:
    """Return for how long a step ran in this run."""
    if step.seconds is not None and step.state != "cached":
        return step.seconds
    if step.started and step.ended:
        start, end = (datetime.fromisoformat(time) for time in (step.started, step.ended))
        return (end - start).total_seconds()
    return (span(step.record)[1] - span(step.record)[0]).total_seconds() if step.record else 0.0


def check_shared(run: Run, cost: RunCost, settings: RunSettings, uri: str) -> RunCost:
    """Add a sentence for each soft limit of a shared budget that this run and those before it reach.

    Raises:
        TrainwrightError: What was spent before cannot be read from MLflow.
    """
    values = values_of(run, settings)
    budgets = settings.prices.budgets if settings.prices else ()
    shared = [budget for budget in budgets if budget.soft is not None and budget.covers(values)]
    if not shared:
        return cost
    spent = persist(lambda: read_spending(open_client(uri), start_of_month()), uri, _RETRY_S)
    said = list(cost.over_budget)
    for budget in shared:
        used = cost.cost + sum(one.cost for one in spent if one.run != run.id and budget.covers(one.values))
        if budget.soft is not None and used >= budget.soft:
            said.append(
                f"{budget} has spent {used:,.4g} {cost.currency} this month; soft is {budget.soft:,.4g}."
            )
    return replace(cost, over_budget=tuple(said))


def values_of(run: Run, settings: RunSettings) -> dict[str, str]:
    """Return what costs are summed by: owner, cost centre, pipeline and model."""
    arguments = flatten(run.arguments)
    model = str(arguments.get("model_name") or arguments.get("registry.model") or "")
    names = {"owner": settings.owner, "cost_centre": settings.cost_centre}
    return names | {"pipeline": run.pipeline, "model": model}


def low_gpu_use(run: Run, settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for each job that used its GPUs little."""
    for step in run.executed:
        use = step.usage.gpu_use if step.usage else None
        if use is not None and use < settings.min_gpu_use:
            yield (
                f"{step.name} used its GPUs at {use:.0%}; run.min_gpu_use is {settings.min_gpu_use:.0%}. "
                "Its report has the curve: look at samples/s, the batch size and data feeding."
            )


def cost_line(cost: RunCost) -> str:
    """Return the cost and what of it was lost in one line."""
    lost = waste_line(cost.waste)
    return f"{cost.cost:,.4g} {cost.currency}" + (f", of it lost: {lost}" if lost else "")


def cost_section(cost: RunCost) -> ReportSection:
    """Return the section of the run's page."""
    rows = [
        (step.step, duration(step.seconds), f"{step.cost:,.4g}", waste_line(step.waste))
        for step in cost.steps
    ]
    header = ("step", "time", f"cost, {cost.currency}", "of it lost")
    blocks: list[Block] = [Paragraph(said) for said in cost.over_budget]
    blocks.append(Table(header, rows, numeric=(1, 2)))
    intro = f"{cost_line(cost)}. Price table: version {cost.prices}."
    return ReportSection("Cost", blocks, intro=intro)
