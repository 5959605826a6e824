"""What a launcher has to get right on any cluster. Each scenario leaves nothing running."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.places import Place
from tests.launch.objects import count_interruptions
from trainwright.errors import InputError, Preempted, PreemptedUnsaved, TrainwrightError
from trainwright.launch.cluster.history import AttemptLosses
from trainwright.launch.failure import Failure
from trainwright.launch.job import Job

ROOT = Path(__file__).resolve().parents[2]
_MANY = 2000


def until(place: Place, holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + place.wait_s
    while not holds():
        assert time.monotonic() < end, f"not within {place.wait_s:g} s: {what}"
        time.sleep(0.05)


def nothing_runs(place: Place, job: Job) -> bool:
    """Tell whether no pod of a job runs any more."""
    return not place.pods(job.name)


@contextmanager
def process(place: Place, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a launcher in a process of its own until its job takes steps."""
    told = place.write(Path(place.folder) / f"{name}.json")
    command = [sys.executable, "-m", "tests.cluster.submit", str(told), name, str(_MANY)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as started:
        try:
            until(place, lambda: place.step(name) or started.poll() is not None, f"{name} takes a step")
            assert started.poll() is None, f"the launcher of {name} ended with {started.returncode}"
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def succeeds(place: Place) -> None:
    """Two pods find one another, train, and the marker of rank 0 says so."""
    job = place.job("succeeds", "counts")
    result = place.launcher().run(job)
    assert result.completion.outputs == {"begun": "0", "steps": "6", "world": "2"}
    assert result.folder == job.folder
    until(place, lambda: nothing_runs(place, job), "the pods end")


def fails_with_its_reason(place: Place) -> None:
    """An error of the program in the last process is the reason that is given, with its place."""
    job = place.job("fails", "fails", nodes=place.nodes, processes=2 // place.nodes, steps=_MANY)
    with pytest.raises(TrainwrightError, match="row 7 has no label") as caught:
        place.launcher().run(job)
    assert "rank 1" in caught.value.where
    assert Failure.read(job.folder).kind == "USER_EXCEPTION"
    until(place, lambda: nothing_runs(place, job), "the pods end")


def goes_on_after_a_pod_was_taken_away(place: Place) -> None:
    """A pod is evicted; the next attempt goes on where this one was."""
    job = place.job("evicted", "counts", steps=30)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(place.launcher().run, job)
        until(place, lambda: place.step("evicted") >= 3 or result.done(), "steps are taken")
        place.evict(next(pod for pod in place.pods(job.name) if not pod.endswith(("master-0", "-0-0"))))
        ended = result.result(place.wait_s)
    assert int(ended.completion.outputs["begun"]) >= 3
    assert ended.folder.name == "0002"
    assert Failure.read(job.folder).budget == "preemption"


def goes_on_within_an_elastic_attempt(place: Place) -> None:
    """A pod of an elastic job is evicted; the one in its place joins the others, in the same attempt."""
    job = place.job("elastic", "returns")
    job = dataclasses.replace(job, placement=job.placement.model_copy(update={"min_nodes": 1}), restarts=3)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(place.launcher().run, job)
        until(place, lambda: place.step("elastic") >= 3 or result.done(), "steps are taken")
        place.evict(f"{job.name}-worker-1")
        ended = result.result(place.wait_s)
    assert ended.folder == job.folder
    assert (int(ended.completion.outputs["begun"]) >= 3, ended.completion.outputs["world"]) == (True, "2")
    assert count_interruptions(AttemptLosses.of(job.folder).lost) == {"preemption": 1}
    until(place, lambda: nothing_runs(place, job), "the pods end")


def ends_when_it_is_told_to(place: Place) -> None:
    """A launcher that is told to stop deletes its job, and says whether anything was lost."""
    with process(place, "stopped") as started:
        stop(place, started, place.job("stopped", "counts", nodes=1, steps=_MANY))


def stop(place: Place, started: "subprocess.Popen[bytes]", job: Job) -> None:
    """Tell a launcher to stop: the job is deleted and nothing of it runs."""
    started.send_signal(signal.SIGTERM)
    assert started.wait(place.wait_s) in {Preempted.code, PreemptedUnsaved.code}
    until(place, lambda: place.api.job(job.name) is None, "the job is gone")
    # The garbage collector deletes pods after their job, and each has its grace period.
    until(place, lambda: nothing_runs(place, job), "the pods end")


def is_taken_over(place: Place) -> None:
    """A launcher is killed; the next one finds its job, makes no second one, and ends it when told to."""
    with process(place, "adopted") as started:
        started.kill()
        started.wait(place.wait_s)
    job = place.job("adopted", "counts", nodes=1, steps=_MANY)
    before = place.api.job(job.name)
    assert before
    with process(place, "adopted") as started:
        until(place, lambda: _holder(place, job) != _of(before, "trainwright/holder"), "it is taken over")
        now = place.api.job(job.name)
        assert now
        assert now["metadata"]["uid"] == before["metadata"]["uid"]
        assert _of(now, "trainwright/attempt") == "0001"
        stop(place, started, job)


def is_not_repeated_out_of_memory(place: Place) -> None:
    """A pod that is killed for its memory ends the job; asked for again unchanged, it is refused."""
    job = place.job("memory", "fills" if place.talks else "counts", nodes=1, steps=_MANY)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(place.launcher().run, job)
        until(place, lambda: place.step("memory") or result.done(), "steps are taken")
        for pod in place.pods(job.name):
            place.out_of_memory(pod)
        with pytest.raises(InputError, match="memory"):
            result.result(place.wait_s)
    assert Failure.read(job.folder).kind == "HOST_OOM"
    again = place.job("memory", "fills" if place.talks else "counts", nodes=1, steps=_MANY)
    with pytest.raises(InputError, match="not run once more unchanged"):
        place.launcher().run(again)


def _holder(place: Place, job: Job) -> str:
    return _of(place.api.job(job.name), "trainwright/holder")


def _of(body: dict[str, object] | None, annotation: str) -> str:
    metadata = (body or {}).get("metadata") or {}
    assert isinstance(metadata, dict)
    return str(metadata.get("annotations", {}).get(annotation, ""))


SCENARIOS = (
    succeeds,
    fails_with_its_reason,
    goes_on_after_a_pod_was_taken_away,
    goes_on_within_an_elastic_attempt,
    ends_when_it_is_told_to,
    is_taken_over,
    is_not_repeated_out_of_memory,
)
