"""Diagnosis of recordings of real operators and of a real Kueue."""

import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.launch.objects import count_interruptions, losses_of, observe
from tests.launch.recordings import DATA, Recording, Seen, load
from tests.launch.streams import Change, bodies
from tests.launch.streams import load as load_stream
from trainwright.launch.diagnosis import state
from trainwright.launch.diagnosis.diagnosis import Success, diagnose
from trainwright.launch.diagnosis.incidents import find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.waiting import find_waiting, job_status
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import Completion

MARKER = Completion(attempt="attempt-1", outputs={"model": "abc"})
RUNS = "not ended"

# Scenario, job, how it ended if rank 0 left no marker, first failing pod, its rank, its exit code.
# With a marker, each of them that has ended is a success.
ENDED: list[tuple[str, str, str, str, int | None, int | None]] = [
    ("active-deadline", "ad", "DEADLINE", "", None, None),
    ("active-deadline-busy", "ad", "DEADLINE", "", None, None),
    ("backoff-zero-exitcode", "bz", "UNKNOWN", "bz-master-0", 0, 137),  # a program that exits 137 by itself
    ("clean-pod-all-failure", "cp", "USER_EXCEPTION", "cp-worker-0", 1, 1),
    (
        "clean-pod-all-success",
        "cp",
        "UNKNOWN",
        "",
        None,
        None,
    ),  # the operator's own cleaning is nobody's fault
    ("clean-pod-none-failure", "cp", "USER_EXCEPTION", "cp-worker-0", 1, 1),
    ("clean-pod-none-success", "cp", "UNKNOWN", "", None, None),
    ("clean-pod-running-failure", "cp", "USER_EXCEPTION", "cp-worker-0", 1, 1),
    ("clean-pod-running-success", "cp", "UNKNOWN", "", None, None),
    ("config-error", "ce", "CONFIG", "ce-master-0", None, None),
    ("delete-background", "df", "DELETED", "", None, None),
    ("delete-foreground", "df", "DELETED", "", None, None),
    ("delete-owner-cascade", "oc", "DELETED", "", None, None),
    ("elastic-ok-and-fail-together", "ef", "USER_EXCEPTION", "ef-worker-1", None, 1),  # says Succeeded
    ("elastic-one-fails-one-ok", "ef", "USER_EXCEPTION", "ef-worker-1", None, 1),
    ("elastic-one-ok-one-fails", "ef", "UNKNOWN", "", None, None),  # the other failed after the job had ended
    ("evicted-api-never", "ev", "PREEMPTED", "ev-worker-0", 1, 137),
    ("evicted-api-onfailure", "ev", "DELETED", "", None, None),  # evicted, replaced, running; then deleted
    ("evicted-master-exit0", "mz", "PREEMPTED", "mz-master-0", 0, 0),  # says Succeeded
    ("evicted-taint-exitcode", "tn", "DELETED", "", None, None),
    ("evicted-taint-never", "tn", "PREEMPTED", "tn-master-0", 0, 137),
    ("image-pull", "ip", "IMAGE_PULL", "ip-master-0", None, None),  # not an OOM, though it ends with 137
    ("image-pull-misc", "badname", "IMAGE_PULL", "badname-master-0", None, None),
    ("image-pull-misc", "never", "IMAGE_PULL", "never-master-0", None, None),
    ("kueue-label", "kq", "UNKNOWN", "", None, None),
    ("kueue-label", "kqs", "QUOTA_WAIT", "", None, None),
    ("lease-annotations", "la", "UNKNOWN", "", None, None),
    ("log-api", "crash", RUNS, "", None, None),
    ("log-api", "pend", RUNS, "", None, None),
    ("log-api", "pull", RUNS, "", None, None),
    ("log-api", "run", "DELETED", "", None, None),
    ("managed-by", "mb", RUNS, "", None, None),
    ("master-done-worker-fails-later", "md", "UNKNOWN", "", None, None),
    ("master-done-worker-fails-same-time", "md", "USER_EXCEPTION", "md-worker-0", 1, 1),  # says Succeeded
    ("nan-exit", "nan", "NAN_LOSS", "nan-worker-0", 1, 86),
    ("oom-killed-child", "oom", "HOST_OOM", "oom-master-0", 0, 1),
    ("oom-killed-exitcode", "oom", "HOST_OOM", "oom-master-0", 0, 137),  # loops until it is deleted
    ("oom-killed-never", "oom", "HOST_OOM", "oom-master-0", 0, 137),
    ("operator-outage", "both", "USER_EXCEPTION", "both-worker-1", None, 1),  # says Succeeded and Failed
    ("operator-outage", "mw", "USER_EXCEPTION", "mw-worker-0", 1, 1),
    ("operator-outage", "run", "DELETED", "", None, None),
    ("operator-outage-race", "mw0", "USER_EXCEPTION", "mw0-worker-0", 1, 1),  # these five are the same job:
    ("operator-outage-race", "mw1", "USER_EXCEPTION", "mw1-worker-0", 1, 1),  # four say Succeeded,
    ("operator-outage-race", "mw2", "USER_EXCEPTION", "mw2-worker-0", 1, 1),
    ("operator-outage-race", "mw3", "USER_EXCEPTION", "mw3-worker-0", 1, 1),
    ("operator-outage-race", "mw4", "USER_EXCEPTION", "mw4-worker-0", 1, 1),  # and one says Failed
    ("pod-deleted-elastic", "el", "UNKNOWN", "", None, None),  # recovered, and says Succeeded
    ("pod-deleted-elastic-exit0", "ez", "PREEMPTED", "ez-worker-1", None, 0),  # says Succeeded
    ("pod-deleted-elastic-exitcode", "el", "PREEMPTED", "el-worker-1", None, 1),  # torchrun: SIGTERM is 1
    ("pod-deleted-elastic-rdzv-host", "el", "UNKNOWN", "", None, None),
    ("pod-deleted-static-exit0", "sz", "PREEMPTED", "sz-worker-0", 1, 0),
    ("pod-deleted-static-exitcode", "pd", "DELETED", "", None, None),
    ("pod-deleted-static-never", "pd", "PREEMPTED", "pd-worker-1", 2, 137),
    ("pod-deleted-static-onfailure", "pd", "DELETED", "", None, None),
    ("success-elastic", "el", "UNKNOWN", "", None, None),
    ("success-static", "st", "UNKNOWN", "", None, None),
    ("success-static-torchrun", "st", "UNKNOWN", "", None, None),
    ("suspend-resume", "sr", "UNKNOWN", "", None, None),
    ("torchrun-exit86", "tx", "NAN_LOSS", "tx-worker-0", 1, 86),  # the container's exit code is 1
    ("torchrun-oom-child", "tx", "HOST_OOM", "tx-worker-0", 1, -9),  # and here
    ("torchrun-user-exception", "tx", "USER_EXCEPTION", "tx-worker-0", 1, 1),
    ("ttl", "ttl", "UNKNOWN", "", None, None),
    ("ttl-after-failure", "te", "USER_EXCEPTION", "te-master-0", 0, 1),
    ("ttl-after-failure", "tn", "USER_EXCEPTION", "tn-master-0", 0, 1),
    ("unschedulable", "un", "UNSCHEDULABLE", "un-master-0", None, None),
    ("user-exception-exitcode", "ue", "USER_EXCEPTION", "ue-worker-0", 1, 1),
    ("user-exception-never", "ue", "USER_EXCEPTION", "ue-worker-0", 1, 1),
    ("user-exception-onfailure", "ue", "USER_EXCEPTION", "ue-worker-0", 1, 1),
    ("worker-fails-then-master-done", "md", "USER_EXCEPTION", "md-worker-0", 1, 1),
    ("worker-hang", "wh", "DELETED", "", None, None),  # nothing tells of the hang; a limit of ours has to
]
JOBS = [row[:2] for row in ENDED]

# What the operator had written last, for those where it is not the truth; checked against the recordings.
LIES = {
    ("elastic-ok-and-fail-together", "ef"): "Succeeded",
    ("evicted-master-exit0", "mz"): "Succeeded",
    ("pod-deleted-elastic-exit0", "ez"): "Succeeded",
    ("operator-outage", "both"): "Succeeded and Failed",
    ("operator-outage-race", "mw0"): "Succeeded",
    ("operator-outage-race", "mw4"): "Failed",
}

# What holds a job up that has not ended.
HELD = {
    (
        "log-api",
        "pend",
    ): "pending: no node takes pod pend-master-0: 1 node(s) have too little nvidia.com/gpu free",
    ("log-api", "pull"): "pending: pod pull-master-0 does not get its image",
    ("log-api", "crash"): "restarting, 0 of 1 pods, 2 restart(s)",
    ("managed-by", "mb"): "queued: it was handed to kueue.x-k8s.io/multikueue, which has not taken it up",
}


def observed_events(recording: Recording, events: Sequence[Seen]) -> ObservedJob:
    observed = ObservedJob(recording.job)
    for event in events:
        observe(observed, event.kind, event.change, event.body)
    return observed


def told(recording: Recording) -> ObservedJob:
    observed = observed_events(recording, recording.events)
    for uid, text in recording.logs.items():
        observed.add_log(uid, text)
    return observed


def has_ended(events: Sequence[Seen]) -> bool:
    """An independent method: look at the raw objects of the job alone."""
    jobs = [event for event in events if event.kind == "PyTorchJob"]
    conditions = [entry for event in jobs for entry in event.body.get("status", {}).get("conditions", [])]
    last = any(entry["type"] in {"Succeeded", "Failed"} and entry["status"] == "True" for entry in conditions)
    return last or any(event.change == "DELETED" for event in jobs)


def test_the_table_names_every_job_of_every_recording() -> None:
    names = {path.name.removesuffix(".json.gz") for path in DATA.glob("*.json.gz")}
    assert {scenario for scenario, _ in JOBS} == names
    several = {"image-pull-misc": 2, "kueue-label": 2, "log-api": 4, "operator-outage": 3}
    several |= {"operator-outage-race": 5, "ttl-after-failure": 2}
    for name in names:
        assert sum(scenario == name for scenario, _ in JOBS) == several.get(name, 1), name


@pytest.mark.parametrize(("scenario", "job", "kind", "pod", "rank", "exit_code"), ENDED)
def test_how_a_recorded_job_ended_without_a_marker(
    scenario: str, job: str, kind: str, pod: str, rank: int | None, exit_code: int | None
) -> None:
    outcome = diagnose(told(load(scenario, job)))
    if kind == RUNS:
        assert outcome is None
        return
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.pod, outcome.rank, outcome.exit_code) == (kind, pod, rank, exit_code)
    assert outcome.evidence
    assert Failure.from_json(outcome.to_json() | {"evidence": list(outcome.evidence)}) == outcome


@pytest.mark.parametrize(("scenario", "job", "kind"), [row[:3] for row in ENDED])
def test_the_marker_of_rank_0_decides_whatever_the_operator_says(scenario: str, job: str, kind: str) -> None:
    outcome = diagnose(told(load(scenario, job)), MARKER)
    if kind == RUNS:
        assert outcome is None
    else:
        assert isinstance(outcome, Success)
        assert outcome.completion is MARKER


@pytest.mark.parametrize(("key", "said"), LIES.items())
def test_what_the_operator_says_is_kept_as_evidence_and_never_believed(
    key: tuple[str, str], said: str
) -> None:
    observed = told(load(*key))
    assert observed.job is not None
    assert observed.job.final == said
    outcome = diagnose(observed)
    assert isinstance(outcome, Failure)
    assert any(line.startswith("job: ") for line in outcome.evidence)


@pytest.mark.parametrize(("key", "line"), HELD.items())
def test_a_job_that_does_not_get_on_says_what_it_waits_for(key: tuple[str, str], line: str) -> None:
    assert str(job_status(told(load(*key)))) == line


@pytest.mark.parametrize(("scenario", "job"), JOBS)
def test_a_job_that_has_not_ended_is_neither_a_success_nor_a_failure(scenario: str, job: str) -> None:
    recording = load(scenario, job)
    observed = ObservedJob(job)
    for uid, text in recording.logs.items():
        observed.add_log(uid, text)
    for count, event in enumerate(recording.events, 1):
        observe(observed, event.kind, event.change, event.body)
        ended = has_ended(recording.events[:count])
        assert (diagnose(observed) is not None) == ended
        assert (diagnose(observed, MARKER) is not None) == ended
        assert (job_status(observed).phase == "ended") == ended


@settings(max_examples=60)
@given(key=st.sampled_from(JOBS), seed=st.integers(0, 2**32))
def test_the_answer_does_not_depend_on_the_order_between_the_watches(key: tuple[str, str], seed: int) -> None:
    recording = load(*key)
    rows: list[list[Seen | tuple[str, str]]] = [
        list(recording.of(kind)) for kind in ("PyTorchJob", "Pod", "Event")
    ]
    rows.append(list(recording.logs.items()))
    draw = random.Random(seed)  # noqa: S311 - an order, not a secret
    turns = [index for index, row in enumerate(rows) for _ in row]
    draw.shuffle(turns)
    observed = ObservedJob(recording.job)
    for index in turns:
        entry = rows[index].pop(0)
        if isinstance(entry, Seen):
            observe(observed, entry.kind, entry.change, entry.body)
        else:
            observed.add_log(*entry)
    plain = told(recording)
    assert diagnose(observed) == diagnose(plain)
    assert job_status(observed) == job_status(plain)
    assert [entry.failure for entry in find_incidents(observed)] == [
        entry.failure for entry in find_incidents(plain)
    ]


REQUIRED = {"metadata", "name", "exitCode", "involvedObject", "kind", "type"}


def without(value: Any, draw: random.Random, share: float) -> Any:
    """Leave out a share of the fields of an object, or set them to null, as older and other servers do."""
    if isinstance(value, list):
        return [without(entry, draw, share) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, entry in value.items():
        if key in REQUIRED or draw.random() >= share:
            kept[key] = without(entry, draw, share)
        elif draw.random() < 0.5:
            kept[key] = None
    return kept


@settings(max_examples=40)
@given(key=st.sampled_from(JOBS), seed=st.integers(0, 2**32), share=st.sampled_from([0.01, 0.05, 0.2]))
def test_a_field_that_is_missing_is_no_error(key: tuple[str, str], seed: int, share: float) -> None:
    recording, draw = load(*key), random.Random(seed)  # noqa: S311
    events = [Seen(event.kind, event.change, without(event.body, draw, share)) for event in recording.events]
    observed = observed_events(recording, events)
    for uid, text in recording.logs.items():
        observed.add_log(uid, text)
    outcome = diagnose(observed)
    assert str(job_status(observed))
    assert isinstance(outcome, Failure) == (observed.job is not None and observed.job.ended)


@settings(max_examples=40)
@given(row=st.sampled_from(ENDED), every=st.integers(1, 40))
def test_one_who_only_looks_now_and_then_knows_less_and_nothing_wrong(
    row: tuple[str, str, str, str, int | None, int | None], every: int
) -> None:
    recording, expected = load(*row[:2]), row[2]
    outcome = diagnose(polled(recording, every))
    kind = outcome.kind if isinstance(outcome, Failure) else RUNS
    less = {"UNKNOWN", "DELETED"} | ({"PREEMPTED"} if expected == "DELETED" else set())
    assert kind in {expected, *less}


@pytest.mark.parametrize("scenario", ["clean-pod-all-failure", "clean-pod-all-success"])
@pytest.mark.parametrize("every", [14, 22, 32])
def test_one_who_misses_the_end_of_a_pod_does_not_take_the_cleaning_for_an_eviction(
    scenario: str, every: int
) -> None:
    outcome = diagnose(polled(load(scenario), every))
    assert isinstance(outcome, Failure)
    assert outcome.kind in {"UNKNOWN", "USER_EXCEPTION"}


def polled(recording: Recording, every: int) -> ObservedJob:
    """Look at the cluster after so many events each, until the job is seen to have ended."""
    observed, pods = ObservedJob(recording.job), {}
    for uid, text in recording.logs.items():
        observed.add_log(uid, text)
    job, gone = None, False
    for count, event in enumerate(recording.events, 1):
        match event.kind, event.change:
            case "PyTorchJob", change:
                job, gone = event.body, change == "DELETED"
            case "Pod", "DELETED":
                pods.pop(event.body["metadata"]["uid"], None)
            case "Pod", _:
                pods[event.body["metadata"]["uid"]] = event.body
        if job is None or (count % every and count < len(recording.events)):
            continue
        if gone:
            observed.mark_job_removed()
        else:
            observed.update_job(job)
            observed.replace_pods(pods.values())
        if job_status(observed).phase == "ended":
            break
    return observed


def test_ten_pods_that_ran_out_of_memory_are_ten_incidents_on_the_users_budget() -> None:
    found = find_incidents(told(load("oom-killed-exitcode")))
    assert [entry.failure.kind for entry in found] == ["HOST_OOM"] * 9
    assert [entry.recovered for entry in found] == [True] * 8 + [False]
    assert count_interruptions(losses_of(found)) == {"user": 9}


def test_an_eviction_that_is_recovered_from_counts_on_the_preemption_budget() -> None:
    found = find_incidents(told(load("evicted-api-onfailure")))
    assert [(entry.failure.kind, entry.recovered) for entry in found] == [("PREEMPTED", True)]
    assert count_interruptions(losses_of(found)) == {"preemption": 1}


def test_the_processes_that_only_lost_the_others_are_not_charged() -> None:
    found = find_incidents(told(load("pod-deleted-elastic")))
    assert found[0].failure.reason == "PodDeleted"
    assert [entry.weak for entry in found[1:]] == [True, True]
    assert count_interruptions(losses_of(found)) == {"preemption": 1}


JOBS_STREAMS = ("trainjobs", "pytorchjobs")


def observe_streams(name: str, *, until: int | None = None, preemptor: str = "") -> ObservedJob:
    """Observe a stream as a launcher does: the job, its pods, its events and its workload."""
    observed = ObservedJob(
        next(change.body for change in load_stream(name) if change.kind in JOBS_STREAMS)["metadata"]["name"]
    )
    for change in load_stream(name)[:until]:
        take(observed, change, preemptor)
    return observed


def take(observed: ObservedJob, change: Change, preemptor: str = "") -> None:
    gone = change.type == "DELETED"
    if change.kind in JOBS_STREAMS:
        observed.update_job(change.body, gone=gone)
    elif change.kind == "pods":
        observed.update_pod(change.body, gone=gone)
    elif change.kind == "events":
        observed.add_event(change.body)
    elif change.kind == "workloads" and not gone:
        observed.update_workload(change.body, preemptor=preemptor)


def waits(name: str) -> list[tuple[str, bool, str]]:
    """Return what a launcher says of a job from its first to its last version, each once."""
    said = []
    observed = observe_streams(name, until=0)
    for change in load_stream(name):
        take(observed, change, "PyTorchJob other")
        if observed.job and not observed.job.gone and (held := find_waiting(observed)):
            said.append((held.kind, held.broken, held.words))
    return list(dict.fromkeys(said))


ENDS = {
    "quota": ("QUOTA_WAIT", False, "the namespace's quota is used up"),
    "limitrange": ("CONFIG", True, "its pods are not allowed to be created"),
    "stuck": ("CONFIG", True, "Kubeflow Trainer cannot make its JobSet"),
    "too-much-pytorchjob": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: it asks for more than the queue can ever give",
    ),
    "too-much-trainjob": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: it asks for more than the queue can ever give",
    ),
    "no-queue": ("CONFIG", True, "its queue does not exist: LocalQueue nope doesn't exist"),
    "deactivated": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: the queue has given it up, somebody has to activate its workload",
    ),
    "deactivated-trainjob": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: the queue has given it up, somebody has to activate its workload",
    ),
    "overtime": ("DEADLINE", True, "its queue stopped it: it ran longer than the queue lets it"),
    "preempted": (
        "QUOTA_WAIT",
        False,
        "it is in queue training: it was preempted by PyTorchJob other (prioritization in the ClusterQueue) "
        "and waits for quota",
    ),
    "preempted-trainjob": (
        "QUOTA_WAIT",
        False,
        "it is in queue training: it was preempted by PyTorchJob other (prioritization in the ClusterQueue) "
        "and waits for quota",
    ),
}


@pytest.mark.parametrize(("name", "expected"), ENDS.items(), ids=ENDS)
def test_a_wait_is_given_its_reason(name: str, expected: tuple[str, bool, str]) -> None:
    assert expected in waits(name)


@pytest.mark.parametrize("name", ["success", "preemptor"])
def test_a_job_that_runs_at_once_is_never_said_to_be_broken(name: str) -> None:
    assert not [said for said in waits(name) if said[1]]


@pytest.mark.parametrize("name", ["success", "preemptor", "preempted", "preempted-trainjob"])
def test_a_success_is_never_said_to_restart(name: str) -> None:
    observed, phases = observe_streams(name, until=0), []
    for change in load_stream(name):
        take(observed, change)
        phases.append(job_status(observed).phase)
        if observed.job and observed.job.final == "Succeeded":
            break
    assert phases[-1] == "ended"
    last = phases[len(phases) - phases[::-1].index("running") :]
    assert "ending" in last
    assert set(last) <= {"ending", "ended"}


def test_a_workload_that_no_priority_class_lets_kueue_make_is_missed_after_a_minute() -> None:
    observed = observe_streams("no-priority", until=4)
    begun = datetime.fromisoformat(bodies("no-priority", "pytorchjobs")[0]["metadata"]["creationTimestamp"])
    for second in (0, 30, 59):
        observed.mark_workload_missing(begun.timestamp() + second)
        held = find_waiting(observed)
        assert held is not None
        assert (held.kind, held.broken) == ("QUOTA_WAIT", False)
    observed.mark_workload_missing(begun.timestamp() + 61)
    held = find_waiting(observed)
    assert held is not None
    assert (held.kind, held.broken) == ("CONFIG", True)
    assert held.words == (
        "it names queue training, and Kueue makes no workload of it: is there a WorkloadPriorityClass nope?"
    )


def test_the_queue_and_the_flavor_of_an_admission_are_said_until_the_pods_run() -> None:
    name, lines = "preempted-trainjob", []
    observed = observe_streams(name, until=0)
    for change in load_stream(name):
        take(observed, change)
        lines.append(str(job_status(observed)))
    assert any(
        line.startswith("pending, 0 of 2 pods; admitted by cluster queue training, flavor on-demand-gpu")
        for line in lines
    )


def test_the_one_who_preempted_is_read_from_the_workload() -> None:
    found = [state.read_workload(body).preemptor for body in bodies("preempted", "workloads")]
    (job,) = {body["metadata"]["uid"] for body in bodies("preemptor", "pytorchjobs")}
    assert set(found) == {"", job}


def test_a_flavor_that_is_only_in_use_now_is_waited_for() -> None:
    said = (
        "couldn't assign flavors to pod set node: insufficient quota for cpu in flavor small, previously "
        "considered podsets requests (0) + current podset request (20) > maximum capacity (16), "
        "insufficient unused quota for cpu in flavor large, 4 more needed"
    )
    assert not state.can_never_be_admitted("Pending", said)
    other = "couldn't assign flavors to pod set b: resource x/y unavailable in ClusterQueue"
    assert state.can_never_be_admitted("Pending", f"{said}; {other}")
