"""Failures of a job: class, budget, exit code, evidence and advice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainwright.documents import Document
from trainwright.errors import ERRORS, InputError, TrainwrightError
from trainwright.report.markdown import escape, table

BUDGETS = ("preemption", "infrastructure", "user")
"""Budgets that a failure can be charged to: the cluster took the job away, broke it, or the job failed."""


@dataclass(frozen=True)
class FailureClass:
    """A class of failures.

    ``meaning`` is a sentence without a subject; the launcher retries as long as the budget lasts; ``code`` is
    the exit code of the step.
    """

    meaning: str
    budget: str
    retryable: bool
    code: int


FAILURE_CLASSES: dict[str, FailureClass] = {
    "HOST_OOM": FailureClass("ran out of main memory", "user", False, 10),
    "CUDA_OOM": FailureClass("ran out of GPU memory", "user", False, 10),
    "NAN_LOSS": FailureClass("met a loss or a gradient that is not finite", "user", False, 30),
    "DIVERGED": FailureClass("saw its loss run away", "user", False, 30),
    "NCCL_TIMEOUT": FailureClass("waited in vain for a collective operation", "infrastructure", True, 31),
    "HANG": FailureClass("stopped making steps", "infrastructure", True, 31),
    "PREEMPTED": FailureClass("was stopped from outside", "preemption", True, 41),
    "EVICTED_DISK": FailureClass("was taken off a node whose disk was full", "infrastructure", True, 21),
    "IMAGE_PULL": FailureClass("could not get its image", "user", False, 21),
    "UNSCHEDULABLE": FailureClass("found no node with room for it", "infrastructure", False, 21),
    "QUOTA_WAIT": FailureClass("was not admitted by its queue", "infrastructure", False, 21),
    "CONFIG": FailureClass("cannot run as it is asked for", "user", False, 10),
    "USER_EXCEPTION": FailureClass("ended with an error of the program", "user", False, 70),
    "STUCK": FailureClass("made no progress within its limit", "infrastructure", True, 31),
    "DEADLINE": FailureClass("did not end within its time", "user", False, 31),
    "NODE_GPU": FailureClass("met a broken GPU", "infrastructure", True, 21),
    "INFRASTRUCTURE": FailureClass("lost its node, its network or a dependency", "infrastructure", True, 21),
    "DELETED": FailureClass("was deleted by someone else", "user", False, 21),
    "UNKNOWN": FailureClass("ended, and nothing that was seen says why", "user", False, 21),
}
FAILURE_KINDS = tuple(FAILURE_CLASSES)

ADVICE = {
    "HOST_OOM": "Give it more memory (resources.memory_gib), or use fewer processes a node or a smaller "
    "batch.",
    "CUDA_OOM": "Use a smaller micro-batch and accumulate gradients, or a GPU with more memory.",
    "NAN_LOSS": "Lower the learning rate; if that does not help, look for extreme values in the inputs.",
    "DIVERGED": "Lower the learning rate, warm it up longer, or clip the gradients.",
    "NCCL_TIMEOUT": "One rank did not arrive: look at which one did least. If it stays on one node, take "
    "that node out.",
    "HANG": "Look at the stack that its watchdog wrote into the log, and at what reads the data.",
    "PREEMPTED": "Nothing is wrong with the job: it goes on from its last checkpoint. Save more often to "
    "lose less.",
    "EVICTED_DISK": "Write less to local disks, or ask for ephemeral storage so that the node has room.",
    "IMAGE_PULL": "Look at the image's name and digest, and whether the service account may pull from that "
    "registry.",
    "UNSCHEDULABLE": "Ask for less, tolerate the nodes' taints, or wait until nodes are free.",
    "QUOTA_WAIT": "Wait for the queue, ask for less, use another queue, or have its quota raised.",
    "CONFIG": "Correct the specification; Kubernetes' own words are in the evidence.",
    "USER_EXCEPTION": "Look at the log of that process; the first error in it is the cause.",
    "STUCK": "Its log shows where it stood. If steps are that slow, allow more time between two of them.",
    "DEADLINE": "If it was still getting on, allow more time; if not, its log shows where it stood.",
    "NODE_GPU": "Have the node drained and looked at; the next attempt should run elsewhere.",
    "INFRASTRUCTURE": "Run the step again; if it comes back, look at the node and the network between the "
    "pods.",
    "DELETED": "Ask who deleted it, then run the step again.",
    "UNKNOWN": "Look at the logs of its pods; what was seen is listed as evidence.",
}


@dataclass(frozen=True, kw_only=True)
class Failure(Document):
    """The reason why a job failed.

    Attributes:
        kind: One of ``FAILURE_KINDS``.
        budget: The budget that it is charged to, one of ``BUDGETS``.
        retryable: Whether another attempt of the same job, unchanged, can succeed.
        exit_code: Exit code of the process that failed first; negative for a signal, None if unknown.
        code: The exit code of the step.
        pod: The pod that failed first; empty if there is none.
        rank: The process that failed first, of the whole job. None if unknown.
        what: What happened, in a sentence with its values.
        reason: The word of Kubernetes, torch or the program for it.
        evidence: States, events and log lines, the strongest first; bounded, no secrets.
        advice: What to do next.
        lost_gpu_s: GPU seconds that have to be spent again, at least 0.
    """

    FILE: ClassVar[str] = "failure.json"
    CARD: ClassVar[str] = "failure.md"
    kind: str
    budget: str
    retryable: bool
    exit_code: int | None = None
    code: int
    pod: str = ""
    rank: int | None = None
    what: str
    reason: str = ""
    evidence: tuple[str, ...] = ()
    advice: str
    lost_gpu_s: float = 0.0

    def __post_init__(self) -> None:
        """Reject what is not in the lists.

        Raises:
            InputError: The class, the budget, the code or the loss is out of range.
        """
        wrong = []
        if self.kind not in FAILURE_CLASSES:
            wrong.append(f"kind {self.kind!r} is not one of {', '.join(FAILURE_KINDS)}")
        if self.budget not in BUDGETS:
            wrong.append(f"budget {self.budget!r} is not one of {', '.join(BUDGETS)}")
        if self.code not in ERRORS:
            wrong.append(f"code {self.code} is not one of {sorted(ERRORS)}")
        if not self.lost_gpu_s >= 0:
            wrong.append(f"lost_gpu_s is {self.lost_gpu_s}, must be at least 0")
        if wrong:
            raise InputError("; ".join(wrong), where=self.FILE)

    @classmethod
    def of(cls, kind: str, what: str, **fields: Any) -> "Failure":
        """Return a failure of a class, with the class's values for fields that are absent or empty."""
        default = FAILURE_CLASSES.get(kind, FAILURE_CLASSES["UNKNOWN"])
        body: dict[str, Any] = {
            "budget": default.budget,
            "retryable": default.retryable,
            "code": default.code,
            "advice": ADVICE.get(kind, ADVICE["UNKNOWN"]),
        }
        if "evidence" in fields:
            fields["evidence"] = tuple(fields["evidence"])
        return cls(
            kind=kind,
            what=what,
            **body | {name: value for name, value in fields.items() if value is not None and value != ""},
        )

    @property
    def place(self) -> str:
        """The pod and the rank that failed first, as far as they are known."""
        known = [f"pod {self.pod}"] if self.pod else []
        return ", ".join(known + ([f"rank {self.rank}"] if self.rank is not None else []))

    def to_error(self) -> TrainwrightError:
        """Return the error to end the step with."""
        return ERRORS[self.code](f"{self.kind}: {self.what}", where=self.place, hint=self.advice)

    def card(self) -> str:
        """Return the failure as Markdown for the page of the run."""
        again = "yes" if self.retryable else "no"
        rows: Sequence[tuple[str, object]] = [
            ("what", self.what),
            ("where", self.place),
            ("reason", self.reason),
            ("exit code", self.exit_code),
            ("tried again", f"{again}, {self.budget} budget"),
            ("step ends with", self.code),
            ("lost", f"{self.lost_gpu_s:,.0f} GPU seconds" if self.lost_gpu_s else ""),
        ]
        body = table(("", ""), [row for row in rows if row[1] not in ("", None)])
        evidence = "".join(_item(entry) for entry in self.evidence)
        shown = f"\nWhat shows it:\n\n{evidence}" if evidence else ""
        head = f"### {escape(self.kind)}: the job {FAILURE_CLASSES[self.kind].meaning}\n\n"
        return f"{head}{body}{shown}\nNext: {escape(self.advice)}\n"


def _item(entry: str) -> str:
    """Return an entry of the evidence as an item of a list, its further lines as code."""
    first, *rest = entry.splitlines() or [""]
    code = "".join(f"      {line}\n" for line in rest if line.strip())
    return f"- {escape(first)}\n" + (f"\n{code}\n" if code else "")
