"""What becomes of pods: whether their processes run, or how they end instead."""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Plan:
    """What becomes of the pods that it is for.

    Attributes:
        pods: Pattern of their names, such as ``*-worker-0``.
        process: Whether their command runs; otherwise nothing does, and they end when they are told to.
        code: What they end with by themselves after ``runs_s``; ``None``: they run until something ends them.
        runs_s: Seconds that they run.
        log: What they write; with ``process`` false only.
        on_term: What they end with when they are told to stop; ``None``: they do not listen, and are killed.
        start_s: Seconds that they take to start.
        waits: Why they never start: ``ErrImagePull``, ``ErrImageNeverPull``, ``InvalidImageName``,
            ``CreateContainerConfigError`` or ``Unschedulable``.
        message: What is said of that.
        times: How many starts it is for; ``None``: all.
    """

    pods: str = "*"
    process: bool = True
    code: int | None = None
    runs_s: float = 0
    log: str = ""
    on_term: int | None = None
    start_s: float = 0
    waits: str = ""
    message: str = ""
    times: int | None = None


class Plans:
    """The plans, of which the latest that is for a pod counts."""

    def __init__(self, default: Plan) -> None:
        self._plans: list[Plan] = []
        self._default = default

    def add(self, plan: Plan) -> None:
        """Add a plan."""
        self._plans.append(plan)

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()

    def of(self, name: str, *, take: bool = False) -> Plan:
        """Return the plan for a pod; ``take`` counts one start."""
        for plan in reversed(self._plans):
            if fnmatch.fnmatch(name, plan.pods) and plan.times != 0:
                if take and plan.times is not None:
                    plan.times -= 1
                return plan
        return self._default


@dataclass
class Actor:
    """A container without a process: it runs until it is told what to end with.

    Attributes:
        plan: What it does.
        ended: Called with its exit code.
    """

    plan: Plan
    ended: Callable[[int], None]
