"""The states of a run and of its steps: which end it, and the exit code that each end stands for."""

from trainwright.errors import InternalError, PreemptedUnsaved

UNTOLD = "RUNTIME_STATE_UNSPECIFIED"
"""The first value of the enumeration: the server leaves it out of its answers, as it does every default."""

WAITING = frozenset({UNTOLD, "PENDING", "PAUSED"})
GOING_ON = frozenset({"RUNNING"})
STOPPING = frozenset({"CANCELING"})
SUCCEEDED = frozenset({"SUCCEEDED", "SKIPPED"})
TRIABLE = frozenset({"FAILED", "ERROR", "CANCELED"})
ENDED = SUCCEEDED | TRIABLE
KNOWN = ENDED | WAITING | GOING_ON | STOPPING
"""Those of the description of the API, and ``ERROR``, which older servers have."""

WORDS = {
    UNTOLD: "waiting",
    "PENDING": "waiting",
    "PAUSED": "paused",
    "RUNNING": "running",
    "CANCELING": "stopping",
    "SUCCEEDED": "done",
    "SKIPPED": "not run",
    "FAILED": "failed",
    "ERROR": "failed",
    "CANCELED": "stopped",
}
"""What a state is called on the screen, as ``trainwright run`` has it."""

CODES = {
    "SUCCEEDED": 0,
    "SKIPPED": 0,
    "FAILED": InternalError.code,
    "ERROR": InternalError.code,
    "CANCELED": PreemptedUnsaved.code,
}
"""Exit code of an end of which nothing else is known.

A failed step says its own code in its log. Where the log is gone, the failure is not one that is known to
pass: CI must not try it again by itself. Whoever stopped a run did not see to it that its state was saved.
"""


def word(state: str | None) -> str:
    """Return what a state is called; one that is new to us keeps its name."""
    return WORDS.get(state or UNTOLD, str(state).lower())
