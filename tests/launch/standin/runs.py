"""A pod on a node, as its node knows it."""

from dataclasses import dataclass, field

from tests.launch.standin.containers import Process
from tests.launch.standin.logs import Logs
from tests.launch.standin.plans import Plan
from tests.launch.standin.podstates import Told
from tests.launch.standin.resources import Object
from tests.launch.standin.store import now


@dataclass
class Run:
    """A pod on a node.

    Attributes:
        pod: The pod as it was when it came.
        main: Its container.
        init: The container that waits for the master, if any.
        logs: What its starts wrote.
        started: When its node took it.
        phase: Its phase.
        process: Its process, while one runs.
        plan: What becomes of its present start.
        oom: Whether its memory was used up.
        ending: Whether it was told to end.
        number: Counts its starts, so that a late timer is known as such.
    """

    pod: Object
    main: Told
    init: Told | None
    logs: Logs = field(default_factory=Logs)
    started: str = field(default_factory=now)
    phase: str = "Pending"
    process: Process | None = None
    plan: Plan = field(default_factory=Plan)
    oom: bool = False
    ending: bool = False
    number: int = 0

    @property
    def uid(self) -> str:
        """Identity of the pod."""
        return str(self.pod["metadata"]["uid"])

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name of the pod."""
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]
