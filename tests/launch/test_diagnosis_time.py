"""GPU seconds and phases from the times in the objects alone; and what the refusals of a real API become."""

import copy
import itertools
import json

import pytest
from kubernetes import client as k8s

from tests.launch.objects import at, ended, job, pod, seen
from tests.launch.recordings import Recording, Seen, load, refusals
from tests.launch.test_diagnosis_recordings import JOBS, observe, told
from trainwright.errors import TrainwrightError
from trainwright.launch.cluster.failure_report import creation_failure
from trainwright.launch.cluster.responses import ApiCall, ApiConflict, ApiUnavailable, rejection
from trainwright.launch.diagnosis import state
from trainwright.launch.diagnosis.diagnosis import diagnose
from trainwright.launch.diagnosis.incidents import gpu_seconds
from trainwright.launch.diagnosis.status import timeline_of
from trainwright.launch.failure import Failure

# How long the phases of a recorded job took, in whole seconds as its objects tell them.
PHASES = {
    ("success-static", "st"): {"starting": 3, "running": 4, "ending": 2},
    ("success-elastic", "el"): {"starting": 1, "running": 40, "ending": 2},
    ("unschedulable", "un"): {"pending": 36},
    ("image-pull", "ip"): {"starting": 60},
    ("suspend-resume", "sr"): {"queued": 13, "starting": 3, "running": 12, "restarting": 2, "ending": 1},
    ("evicted-taint-exitcode", "tn"): {"pending": 1, "starting": 2, "running": 20, "restarting": 12},
    ("user-exception-onfailure", "ue"): {"starting": 3, "running": 4, "restarting": 18},
    ("worker-hang", "wh"): {"starting": 3, "running": 78},
    ("managed-by", "mb"): {},
}


def with_gpus(recording: Recording, count: int) -> Recording:
    """Give every pod of a recording GPUs; the cluster that it was made on had none."""
    events = []
    for event in recording.events:
        body = copy.deepcopy(event.body)
        if event.kind == "Pod":
            body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(count)}}
        events.append(Seen(event.kind, event.change, body))
    return Recording(recording.job, tuple(events), recording.logs)


def seconds(text: str) -> int:
    """The independent road: read the time of day by hand."""
    hours, minutes, rest = text.removesuffix("Z").partition("T")[2].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(rest)


def held_by_hand(recording: Recording) -> int:
    """Sum the seconds from a pod's PodScheduled to its container's last finishedAt, over finished pods."""
    spans = {}
    for event in recording.of("Pod"):
        status = event.body["status"]
        placed = [entry for entry in status.get("conditions", []) if entry["type"] == "PodScheduled"]
        ends = [entry["state"].get("terminated") for entry in status.get("containerStatuses", [])]
        if placed and ends and ends[0] and ends[0].get("finishedAt"):
            spans[event.body["metadata"]["uid"]] = (
                seconds(placed[0]["lastTransitionTime"]),
                seconds(ends[0]["finishedAt"]),
            )
    return sum(end - start for start, end in spans.values())


@pytest.mark.parametrize("scenario", ["oom-killed-never", "nan-exit", "torchrun-exit86", "oom-killed-child"])
def test_a_pod_holds_its_gpus_from_its_node_to_its_end(scenario: str) -> None:
    recording = with_gpus(load(scenario), 8)
    alone = [event for event in recording.events if "master" not in str(event.body["metadata"]["name"])]
    kept = recording if scenario.startswith("oom") else Recording(recording.job, tuple(alone), {})
    assert gpu_seconds(observe(kept, kept.events)) == 8 * held_by_hand(kept) > 0


def test_ten_pods_one_after_another_are_counted_each_although_all_are_gone() -> None:
    recording = with_gpus(load("oom-killed-exitcode"), 4)
    held = gpu_seconds(observe(recording, recording.events))
    assert 4 * held_by_hand(recording) <= held <= 4 * (held_by_hand(recording) + 2)
    assert held > 4 * 9 * 5


def test_what_was_done_before_the_last_checkpoint_is_not_lost() -> None:
    observed = seen(pod(gpus=2, state=ended(1, second=50), phase="Failed"), job("Failed:it failed"))
    assert gpu_seconds(observed) == 2 * (50 - 5)
    saved = at_s(40)
    assert gpu_seconds(observed, since_s=saved) == 2 * (50 - 40)
    assert gpu_seconds(observed, since_s=at_s(55)) == 0
    outcome = diagnose(observed, saved_s=saved)
    assert isinstance(outcome, Failure)
    assert outcome.lost_gpu_s == 20


def test_a_pod_that_never_had_a_node_held_nothing() -> None:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
    assert gpu_seconds(seen(job("Created"), pod(gpus=8, state={}, phase="Pending", scheduled=waits))) == 0


def test_what_runs_on_after_its_job_has_failed_is_counted_to_the_end_of_the_job() -> None:
    assert gpu_seconds(seen(pod(gpus=1), job("Failed:it failed"))) == 60 - 5


def at_s(second: int) -> float:
    found = state.parse_time(at(second))
    assert found is not None
    return found


@pytest.mark.parametrize(("key", "phases"), PHASES.items())
def test_where_the_time_of_a_recorded_job_went(key: tuple[str, str], phases: dict[str, float]) -> None:
    assert dict(timeline_of(told(load(*key))).totals) == phases


@pytest.mark.parametrize(("scenario", "name"), JOBS)
def test_phases_follow_one_another_without_a_gap(scenario: str, name: str) -> None:
    spans = timeline_of(told(load(scenario, name))).spans
    for (before, _, end), (after, start, _) in itertools.pairwise(spans):
        assert end == start
        assert before != after
    assert all(start < end for _, start, end in spans)


def test_every_recorded_refusal_of_the_api_has_a_class_and_says_what_it_said() -> None:
    call = ApiCall(verb="create", resource="pytorchjobs", group="kubeflow.org", namespace="team")
    kinds: dict[str, set[int]] = {}
    for entry in refusals():
        answer = k8s.ApiException(status=entry["code"], reason="")
        answer.body = entry["body"] if isinstance(entry["body"], str) else json.dumps(entry["body"])
        error = rejection(answer, call)
        if isinstance(error, ApiConflict):
            continue
        told = error.error if isinstance(error, ApiUnavailable) else error
        assert isinstance(told, TrainwrightError)
        failure = creation_failure(told)
        kinds.setdefault(failure.kind, set()).add(entry["code"])
        said = entry["body"]["message"] if isinstance(entry["body"], dict) else entry["body"].strip()
        assert said in failure.what
        assert failure.retryable == (failure.kind == "INFRASTRUCTURE"), entry["case"]
        assert failure.code == told.code
    assert kinds == {
        "CONFIG": {400, 401, 403, 404, 415, 422},
        "QUOTA_WAIT": {403},
        "INFRASTRUCTURE": {500},
    }
