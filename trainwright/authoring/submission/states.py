"""The states of a run and of its steps: which end it, and the exit code that each end stands for."""

from typing import Any

from trainwright.errors import InternalError, PreemptedUnsaved

UNTOLD = "RUNTIME_STATE_UNSPECIFIED"
"""The first value of the enumeration: the server leaves it out of its answers, as it does every default."""

WAITING = frozenset({UNTOLD, "PENDING", "PAUSED"})
GOING_ON = frozenset({"RUNNING"})
STOPPING = frozenset({"CANCELING"})
SUCCEEDED = frozenset({"SUCCEEDED", "SKIPPED"})
CANCELED = "CANCELED"
TRIABLE = frozenset({"FAILED", "ERROR", CANCELED})
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


def outcome(run: Any, before: str = "") -> str:
    """Return the state that a run ended in, and ``CANCELED`` for a run that somebody terminated.

    The API server of KFP 2.17 sets CANCELING when a run is terminated and FAILED when its workflow has ended;
    nothing in it ever sets CANCELED. A retried run keeps its history, so only the entry before the last one
    counts. CANCELING enters the history with the first report of the persistence agent after it, so a run
    that ends before that report has it only in its state. An entry may lack its state: the server leaves out
    the first value of the enumeration.

    Args:
        run: As the API has it.
        before: The state at the look before this one; empty for none.
    """
    history = [entry.state for entry in run.state_history or () if entry.state]
    terminated = history[-2:] == ["CANCELING", "FAILED"] or before in STOPPING
    return CANCELED if run.state == "FAILED" and terminated else str(run.state)
