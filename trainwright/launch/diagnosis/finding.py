"""What one piece of evidence amounts to, before the whole story of a job is told."""

from dataclasses import dataclass, field

from trainwright.launch.failure import KINDS


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A class of failures, and what shows it.

    Attributes:
        kind: The class.
        what: What happened, in a sentence with its values.
        reason: The word of Kubernetes, torch or the program for it.
        exit_code: What the process ended with; negative for a signal.
        rank: The process, of the whole job.
        weak: Whether it only shows that something else had failed before.
        evidence: What shows it, beside ``what``.
        advice: What to do, where that is not what the class says.
        code: Exit code of the step, where that is not the class's.
        retryable: Whether to try again, where that is not what the class says.
        charged: Whose budget, where that is not the class's.
    """

    kind: str
    what: str
    reason: str = ""
    exit_code: int | None = None
    rank: int | None = None
    weak: bool = False
    evidence: tuple[str, ...] = field(default=())
    advice: str = ""
    code: int | None = None
    retryable: bool | None = None
    charged: str = ""

    @property
    def budget(self) -> str:
        """Whose restarts it counts against."""
        return self.charged or KINDS[self.kind].budget
