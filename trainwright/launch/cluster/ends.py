"""What is there when a launcher begins, and what it leaves when it ends."""

import dataclasses
import sys
from pathlib import Path

from trainwright.errors import Preempted, PreemptedUnsaved, TrainwrightError
from trainwright.launch import attempt, progress
from trainwright.launch.cluster import ledger
from trainwright.launch.cluster.api import Api, Object
from trainwright.launch.cluster.saved import saved_s
from trainwright.launch.cluster.selection import Selection
from trainwright.launch.failure import Failure
from trainwright.launch.job import Completion, Job, completed
from trainwright.launch.owner import find_owner

_NEVER_UNCHANGED = frozenset({"HOST_OOM", "CUDA_OOM"})


def finished(job: Job) -> tuple[Path, Completion] | None:
    """Return an attempt at this very job that has completed, whatever became of the object."""
    home = attempt.home_of(job.folder)
    for folder in reversed(attempt.folders(home) if home else [job.folder]):
        if completion := completed(folder, folder.name):
            return folder, completion
    return None


def require_changed(job: Job) -> None:
    """Refuse to run a job once more, unchanged, that ran out of memory.

    Raises:
        TrainwrightError: What its last attempt failed of.
    """
    found = ledger.last(job.folder)
    if found and found[1].final and found[1].job == job.digest and found[1].kind in _NEVER_UNCHANGED:
        failure = Failure.read(found[0])
        what = f"{failure.what} (attempt {found[0].name}; it is not run once more unchanged)"
        raise dataclasses.replace(failure, what=what).to_error()


def newest(job: Job) -> Path | None:
    """Return the newest attempt at a job."""
    home = attempt.home_of(job.folder)
    return attempt.newest_attempt(home) if home else None


def note(entry: ledger.Ended, folder: Path) -> None:
    """Note what became of an attempt in its folder."""
    try:
        entry.write(folder / entry.FILE)
    except OSError as error:
        sys.stderr.write(f"what became of attempt {folder.name} could not be noted: {error}\n")


def final(failure: Failure, past: ledger.Ledger) -> TrainwrightError:
    """Return the error of the last attempt; says how many there were, and what they cost."""
    if len(past.entries) == 1:
        return failure.to_error()
    more = f" (attempt {len(past.entries)}; {past.lost_gpu_s:,.0f} GPU seconds lost over all)"
    return dataclasses.replace(failure, what=failure.what + more).to_error()


def stopped(name: str, job: Job, asked: str) -> TrainwrightError:
    """Return what a step ends with that was told to stop: by whether there is a state to go on from."""
    home = attempt.home_of(job.folder)
    saved = saved_s(home) if home else 0.0
    done = progress.read(job.folder)
    state = f"; {progress.line(done)}" if done else ""
    what = f"stopped by {name}; job {asked or job.name} was deleted{state}"
    if saved:
        return Preempted(what, hint="Run the step again: it goes on from its last checkpoint.")
    return PreemptedUnsaved(what)


def own_workflow(api: Api) -> str:
    """Return the name of the workflow that this pod belongs to; empty, with a line that says why, if none."""

    def read(name: str) -> Object | None:
        pods, _ = api.retry(lambda: api.select(Selection(kind="pods", fields=f"metadata.name={name}")))
        return pods[0] if pods else None

    owner, why = find_owner(read)
    if owner is None:
        sys.stderr.write(f"the job goes with no workflow: {why}\n")
        return ""
    return owner.name
