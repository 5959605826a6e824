"""The report of a study: its trials, and the confirmation of its winner."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from trainwright.documents import Document

TrialState: TypeAlias = Literal["running", "paused", "complete", "pruned", "infeasible"]
"""``paused``: stopped at a rung with its checkpoint, and may be promoted. ``infeasible``: its parameters
cannot be trained (out of memory, diverged, rejected configuration), which counts as the worst value. A
preempted trial is still ``running``: it is repeated for free."""


@dataclass(frozen=True, kw_only=True)
class RungValue:
    """The value of a trial at a rung.

    Attributes:
        rung: Number of the rung, from 0.
        step: Training step of the evaluation that counts: the first one at or after the rung.
        value: Best value of the metric up to this step.
    """

    rung: int
    step: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study.

    Attributes:
        number: Number in the study, from 0.
        params: Searched values by key, such as ``training.learning_rate``.
        value: Value of the metric; None unless ``complete``.
        rungs: Values at the rungs that it reached.
        steps: Training steps that it took, repeated ones included.
        total: Steps of its whole training; 0 if it never began.
        reason: Why it ended, or why it waits; one sentence.
        started: Start of its first attempt, ISO 8601 in UTC; empty if it never began.
        seconds: Run time of all its attempts.
        cost: Price of its job, for the time from the first step of each attempt on; None without a price.
        attempts: Starts of its job: 1, and 1 more for each promotion, preemption or retry of the step.
    """

    number: int
    params: dict[str, Any]
    state: TrialState
    value: float | None = None
    rungs: tuple[RungValue, ...] = ()
    steps: int = 0
    total: int = 0
    reason: str = ""
    started: str = ""
    seconds: float = 0.0
    cost: float | None = None
    attempts: int = 0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of the best trials, or the default, trained again with several seeds.

    Attributes:
        trial: Number of the trial; None for the default: the sections without any searched value.
        params: Its searched values.
        values: Value of the metric by seed; every candidate has the same seeds, in the same order.
        difference: Mean of value minus the default's, seed by seed; None for the default.
        low: Lower end of the interval of the difference; ``high`` the upper one.
        p_value: Of the paired test, corrected for the number of candidates and of trials looked at.
    """

    trial: int | None
    params: dict[str, Any]
    values: tuple[float, ...]
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The comparison of the best trials with the default on equal seeds.

    Attributes:
        outcome: ``better``: the winner is better than the default. ``no better``: the default wins.
            ``not confirmed``: no confirmation was configured, and the best trial wins.
        winner: Number of the winning trial; None for the default.
        seeds: Seeds of the trainings.
        candidates: The default first, then the best trials, best first.
        sentence: The outcome with its numbers.
    """

    outcome: Literal["better", "no better", "not confirmed"]
    winner: int | None
    seeds: tuple[int, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyReport(Document):
    """A finished study.

    Attributes:
        study: Name of the study.
        data_version: Digest of the training set that all trials share.
        metric: Metric that was optimized; ``direction`` says which way.
        tuning: Section ``tuning`` with every default.
        trials: All trials by number.
        importances: Share of each searched key in the variance of the metric (PED-ANOVA), summing to 1.
        ended: Why the search ended, such as ``20 trials`` or ``budget of 2 hours``.
        confirmation: The comparison with the default.
        network: The winner's section ``network``; ``training`` likewise: what `train` takes.
        seconds: Run time of the search and the confirmation.
        cost: Cost of all jobs; None without a price.
    """

    FILE: ClassVar[str] = "study.json"
    study: str
    data_version: str
    metric: str
    direction: Literal["minimize", "maximize"]
    tuning: dict[str, Any]
    trials: tuple[Trial, ...]
    confirmation: Confirmation
    network: dict[str, Any]
    training: dict[str, Any]
    importances: dict[str, float] = field(default_factory=dict)
    ended: str = ""
    seconds: float = 0.0
    cost: float | None = None
