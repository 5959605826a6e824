"""The outcome of a run: its state, the decision of its gates, its result in one line, its versions."""

from collections.abc import Sequence
from itertools import chain

from trainwright.artifacts import Record
from trainwright.summarize.run import Run
from trainwright.verdicts import DECISIONS


def state_of(run: Run) -> str:
    """Return ``done``, ``held`` by a gate, ``failed`` or ``cancelled``."""
    states = {step.state for step in run.steps}
    if "stopped" in states or run.ending.state == "CANCELLED":
        return "cancelled"
    if "failed" in states or run.ending.state not in {"SUCCEEDED", ""}:
        return "failed"
    gates = gates_of(run)
    held = gates and gates[-1].decision != "PASS" and not registration_of(run)
    return "held" if held else "done"


def registration_of(run: Run) -> Record | None:
    """Return the record of the registration; None without one."""
    return next((record for record in reversed(run.records) if record.step == "register"), None)


def outcome(run: Run) -> str:
    """Return in one sentence what the run registered, what held it, or what failed."""
    failed = next((step for step in run.steps if step.state == "failed"), None)
    if failed:
        return f"Failed in {failed.name}: {failed.error.get('what') or run.ending.error or 'see its log'}"
    if stopped := next((step for step in run.steps if step.state == "stopped"), None):
        return f"Cancelled in {stopped.name}"
    if run.ending.state not in {"SUCCEEDED", ""}:
        return f"{run.ending.state.capitalize()}: {run.ending.error or 'Kubeflow gives no reason'}"
    made = registration_of(run)
    if made:
        return f"Registered: {made.headline}"
    gate = gates_of(run)[-1:]
    if gate and gate[0].decision != "PASS":
        how = "Refused" if gate[0].decision == "FAIL" else "Held"
        return f"{how} by {gate[0].step}: {gate[0].headline}"
    return f"Finished: {run.records[-1].headline}" if run.records else "Finished"


def headline(run: Run) -> str:
    """Return in one line where the registered model came from, or how the run ended."""
    entry = registration_of(run)
    if entry is None:
        return "; ".join(line.strip() for line in outcome(run).splitlines())
    name = entry.headline.partition(",")[0].partition(" (")[0]
    made = versions_in(run.lineage)
    came = [f"{what} {made[what][:6]}" for what in ("model", "data", "source") if what in made]
    return f"{name} from {', '.join([*came, f'commit {short_commit(entry)}'])}"


def short_commit(entry: Record) -> str:
    """Shorten a commit as git does; keep the mark of uncommitted changes."""
    sha, dash, dirty = str(entry.config.get("commit") or "none").partition("-")
    return sha[:7] + dash + dirty


def versions_in(lineage: Sequence[Record]) -> dict[str, str]:
    """Return the digests of all inputs and outputs by name; the latest of each."""
    return dict(chain.from_iterable((record.inputs | record.outputs).items() for record in reversed(lineage)))


def gates_of(run: Run) -> list[Record]:
    """Return the records of the steps that decided."""
    return [record for record in run.records if record.decision]


def decision_of(run: Run) -> str:
    """Return the worst decision of all gates; empty if a step failed."""
    if any(step.state == "failed" for step in run.steps) or run.ending.state not in {"SUCCEEDED", ""}:
        return ""
    order = ("FAIL", "INCONCLUSIVE", "HOLD", "PASS")
    found = {gate.decision for gate in gates_of(run)} & set(DECISIONS)
    return next((decision for decision in order if decision in found), "")
