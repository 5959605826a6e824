"""The cost of a run and of each of its steps, and sums over runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from trainwright.documents import Document

GROUPS = ("owner", "cost_centre", "pipeline", "model")
"""Names that costs of runs are summed by."""


@dataclass(frozen=True, kw_only=True)
class JobUsage(Document):
    """The usage of a training job; it lies beside the model.

    Attributes:
        seconds: Time of its pods over all attempts, without queues.
        idle_s: Part of it without a step: start, data, the last checkpoint.
        repeated_s: Part of it in steps that a later start of the training took again.
        gpu_use: Mean use of the GPUs in [0, 1]; None without GPUs.
    """

    FILE: ClassVar[str] = "usage.json"
    seconds: float
    idle_s: float = 0.0
    repeated_s: float = 0.0
    gpu_use: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The cost of one step that a run executed; ``waste`` is the part of it that was lost, by reason."""

    step: str
    seconds: float
    cost: float
    waste: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunCost(Document):
    """The cost of a run.

    Attributes:
        currency: That of the price table.
        prices: Version of the table.
        cost: Sum over the steps.
        waste: Lost parts of the cost: ``restarts`` (steps repeated after one), ``idle`` (a job held its pods
            without a step), ``pruned`` (trials), ``failed`` (the rest of a failed step), ``gate`` (the rest
            of a run that a gate held).
        over_budget: A sentence for each soft limit that was reached.
    """

    FILE: ClassVar[str] = "cost.json"
    currency: str
    prices: str
    cost: float
    waste: dict[str, float]
    steps: tuple[StepCost, ...]
    over_budget: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The cost of one run and the waste in it; ``values`` are those by the names of :data:`GROUPS`."""

    run: str
    values: Mapping[str, str]
    currency: str
    cost: float
    waste: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CostGroup:
    """The cost of all runs with the same value, in one currency; ``value`` is empty where runs name none."""

    value: str
    currency: str
    runs: int
    cost: float
    waste: dict[str, float]


def sum_by(name: str, spendings: Iterable[Spending]) -> list[CostGroup]:
    """Sum costs by one of :data:`GROUPS`, the largest first."""
    groups: dict[tuple[str, str], list[Spending]] = {}
    for one in spendings:
        groups.setdefault((one.values.get(name, ""), one.currency), []).append(one)
    found = [
        CostGroup(
            value=value,
            currency=currency,
            runs=len(members),
            cost=sum(one.cost for one in members),
            waste=sum_waste(one.waste for one in members),
        )
        for (value, currency), members in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.cost, group.value))


def sum_waste(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum lost parts by their reasons, the largest first."""
    total: dict[str, float] = {}
    for part in parts:
        for reason, cost in part.items():
            total[reason] = total.get(reason, 0.0) + cost
    return dict(sorted(total.items(), key=lambda entry: -entry[1]))


def waste_line(waste: Mapping[str, float]) -> str:
    """Return lost parts in one line; empty without any."""
    return ", ".join(f"{reason} {cost:,.4g}" for reason, cost in waste.items() if cost)
