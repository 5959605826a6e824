"""The limits of a job, and the launcher of a pod."""

import datetime
from pathlib import Path
from typing import Any, Self

import pytest
from kubernetes.config import incluster_config

from tests.launch.objects import at, ended, job, pod, seen
from tests.launch.programs import job as program
from trainwright.artifacts import Progress
from trainwright.launch.cluster import launcher as module
from trainwright.launch.cluster.api import JOB_KINDS
from trainwright.launch.cluster.launcher import ClusterLauncher
from trainwright.launch.cluster.monitor import ClusterSettings, LimitExceeded, Watchdog, active_s
from trainwright.launch.diagnosis import state
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.waiting import job_status
from trainwright.launch.launcher import create_launcher

START = state.parse_time(at(0)) or 0.0
WAITS = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
IDLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


def looks(dog: Watchdog, observed: ObservedJob, *times: float) -> list[LimitExceeded | None]:
    return [dog.check(observed, job_status(observed), START + second) for second in times]


def watchdog(folder: Path, *, earlier_s: float = 0.0, **changes: Any) -> Watchdog:
    """Return a watchdog with limits of the job and of the launcher."""
    limits = {name: changes.pop(name) for name in ("timeout_s", "stall_s") if name in changes}
    asked = program(folder, "", **{"timeout_s": 3600, "grace_s": 30, **limits})
    return Watchdog(asked, ClusterSettings(**changes), folder, earlier_s)


def suspended(*spans: tuple[str, int]) -> dict[str, Any]:
    entries = [
        {"type": "Suspended", "status": status, "reason": "x", "lastTransitionTime": at(second)}
        for status, second in spans
    ]
    body = job()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    body["status"] = {"conditions": entries}
    return body


@pytest.mark.covers("F32")
def test_the_deadline_counts_the_time_of_earlier_attempts_too(tmp_path: Path) -> None:
    observed = seen(job("Running"), pod("tw-master-0"), pod())
    assert looks(watchdog(tmp_path, timeout_s=100), observed, 99, 101)[0] is None
    (reached,) = looks(watchdog(tmp_path, timeout_s=100, earlier_s=60), observed, 50)
    assert reached is not None
    assert reached.kind == "DEADLINE"
    assert "within 100 s, over all attempts" in reached.what


@pytest.mark.covers("F29")
def test_time_in_a_queue_counts_for_no_limit(tmp_path: Path) -> None:
    queued = seen(suspended(("True", 0)))
    assert looks(watchdog(tmp_path, timeout_s=100, pending_s=50), queued, 10_000) == [None]
    queued.update_job(suspended(("False", 3000)))
    assert active_s(queued.job, START + 3040) == 40
    late = looks(watchdog(tmp_path, timeout_s=100, pending_s=50), queued, 3049, 3051)
    assert late[0] is None
    assert late[1] is not None


def test_a_job_that_was_resumed_before_anybody_looked_has_its_time_before_it(tmp_path: Path) -> None:
    found = seen(suspended(("False", 3000)))
    assert active_s(found.job, START + 3040) == 40
    dog = watchdog(tmp_path, timeout_s=10_000, pending_s=50)
    assert [bool(reached) for reached in looks(dog, found, 3049, 3051)] == [False, True]


def test_a_job_that_comes_out_of_the_queue_again_waits_for_its_pods_anew(tmp_path: Path) -> None:
    found = seen(suspended(("True", 0)))
    for status, second in (("False", 10), ("True", 2000), ("False", 3000)):
        found.update_job(suspended((status, second)))
    dog = watchdog(tmp_path, timeout_s=10_000, pending_s=50)
    assert [bool(reached) for reached in looks(dog, found, 3049, 3051)] == [False, True]


def test_the_time_after_the_end_of_a_job_is_not_time_that_it_took() -> None:
    body = suspended()
    body["status"]["conditions"] = [{"type": "Failed", "status": "True", "lastTransitionTime": at(600)}]
    assert active_s(seen(body).job, START + 72_000) == 600


@pytest.mark.covers("F29")
def test_an_image_that_does_not_come_is_waited_for_two_minutes(tmp_path: Path) -> None:
    observed = seen(job(), pod("tw-master-0"), pod(state=WAITS))
    reached = looks(watchdog(tmp_path), observed, 5, 124, 126)
    assert reached[:2] == [None, None]
    assert reached[2] is not None
    assert (reached[2].kind, "manifest unknown" in reached[2].what) == ("IMAGE_PULL", True)


def test_an_image_that_comes_in_time_after_all_is_no_failure(tmp_path: Path) -> None:
    dog, observed = watchdog(tmp_path), seen(job(), pod("tw-master-0"), pod(state=WAITS))
    assert looks(dog, observed, 5, 100) == [None, None]
    observed.update_pod(pod())
    assert looks(dog, observed, 126) == [None]


@pytest.mark.covers("F29")
def test_pods_without_a_node_are_waited_for_half_an_hour(tmp_path: Path) -> None:
    observed = seen(job(), pod("tw-master-0"), pod(state={}, scheduled=IDLE))
    reached = looks(watchdog(tmp_path), observed, 1799, 1801)
    assert reached[0] is None
    assert reached[1] is not None
    assert (reached[1].kind, "0/3 nodes" in reached[1].what) == ("UNSCHEDULABLE", True)


def test_a_job_that_runs_is_not_pending_however_long(tmp_path: Path) -> None:
    observed = seen(job("Running"), pod("tw-master-0"), pod())
    assert looks(watchdog(tmp_path, timeout_s=1e9), observed, 1e6) == [None]


def progress(folder: Path, step: int) -> None:
    Progress(
        step=step, total=10, epoch=0, loss=1.0, samples_per_s=5.0, eta_s=3.0, time="2026-11-20T08:00:00+00:00"
    ).write(folder)


@pytest.mark.parametrize("phase", ["steps", "evaluation"])
def test_silence_is_a_stall_only_while_steps_are_to_be_expected(tmp_path: Path, phase: str) -> None:
    (tmp_path / "pulse").mkdir()
    (tmp_path / "pulse" / "rank-0").write_text(f"{phase} 3\n")
    progress(tmp_path, 3)
    observed = seen(job("Running"), pod("tw-master-0"), pod())
    dog = watchdog(tmp_path, stall_s=60)
    reached = looks(dog, observed, 20, 109, 111)
    assert reached[:2] == [None, None]
    assert (reached[2] is not None) == (phase == "steps")
    if reached[2]:
        assert reached[2].kind == "STUCK"
        assert "made no progress for 90 s and was ended: step 3 of 10 (30%)" in reached[2].what


def test_whoever_gets_on_does_not_stall(tmp_path: Path) -> None:
    observed, dog = seen(job("Running"), pod("tw-master-0"), pod()), watchdog(tmp_path, stall_s=60)
    for number in range(5):
        progress(tmp_path, number)
        assert looks(dog, observed, 100 * number, 100 * number + 85) == [None, None]


def test_before_the_first_step_nothing_stalls(tmp_path: Path) -> None:
    observed = seen(job("Running"), pod("tw-master-0"), pod())
    assert looks(watchdog(tmp_path, stall_s=1), observed, 10, 3000) == [None, None]


def test_a_pod_that_failed_once_is_not_taken_for_a_pending_one(tmp_path: Path) -> None:
    observed = seen(job("Running"), pod("tw-master-0"), pod(state=ended(1)))
    assert looks(watchdog(tmp_path, pending_s=10), observed, 3000) == [None]


def lost(second: int) -> dict[str, Any]:
    """A pod that was evicted, and is gone; nothing came in its place."""
    told = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    gone = {"deletionTimestamp": at(second), "deletionGracePeriodSeconds": 0}
    return pod(conditions=[{**told, "lastTransitionTime": at(second)}], metadata=gone)


def test_pods_that_do_not_come_back_are_waited_for_as_long_as_at_first(tmp_path: Path) -> None:
    observed = seen(job("Running"), pod("tw-master-0"), pod())
    dog = watchdog(tmp_path, timeout_s=1e6, pending_s=600)
    assert looks(dog, observed, 1000) == [None]
    observed.update_pod(lost(1100), gone=True)
    assert job_status(observed).phase == "restarting"
    reached = looks(dog, observed, 1100, 1699, 1701)
    assert reached[:2] == [None, None]
    assert reached[2] is not None
    assert reached[2].kind == "PREEMPTED"
    assert "did not get its pods back within 600 s" in reached[2].what


def test_pods_that_come_back_in_time_are_waited_for_anew_the_next_time(tmp_path: Path) -> None:
    observed = seen(job("Running"), pod("tw-master-0"), pod())
    dog = watchdog(tmp_path, timeout_s=1e6, pending_s=600)
    observed.update_pod(lost(100), gone=True)
    assert looks(dog, observed, 100, 650) == [None, None]
    observed.update_pod(pod(metadata={"uid": "another"}))
    assert looks(dog, observed, 660) == [None]
    observed.update_pod(pod(metadata={"uid": "another"}, state=ended(143)))
    assert looks(dog, observed, 700, 1290) == [None, None]


def test_an_elastic_job_that_runs_is_not_ended_for_a_pod_that_cannot_start(tmp_path: Path) -> None:
    waits = pod(state=WAITS)
    fixed = seen(job(), pod("tw-master-0"), waits)
    elastic = seen(job(elasticPolicy={"minReplicas": 1}), pod("tw-master-0"), waits)
    found = [looks(watchdog(tmp_path), observed, 0, 300)[1] for observed in (fixed, elastic)]
    assert [reached.kind if reached else None for reached in found] == ["IMAGE_PULL", None]


def test_an_elastic_job_whose_first_pods_have_ended_well_is_not_ended_for_a_pod_that_cannot_start(
    tmp_path: Path,
) -> None:
    done = pod("tw-master-0", state=ended(0, "Completed"))
    observed = seen(job(elasticPolicy={"minReplicas": 1}), done, pod(state=WAITS))
    assert job_status(observed).phase == "ending"
    assert looks(watchdog(tmp_path), observed, 60, 300) == [None, None]


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process what Kubernetes gives to every pod; nobody listens at that address."""
    places = {"token": "secret", "ca.crt": "certificate", "namespace": "team"}
    for name, text in places.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(module, "_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")


@pytest.mark.usefixtures("in_a_pod")
def test_a_token_that_kubernetes_renews_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token lasts for an hour, and a training for days: the node puts a new one into the file."""

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return super().now(tz) + datetime.timedelta(minutes=2)

    sent = ClusterLauncher.in_cluster(JOB_KINDS["pytorchjob"])._api.client.configuration
    assert sent.auth_settings()["BearerToken"]["value"] == "bearer secret"
    (tmp_path / "token").write_text("renewed")
    monkeypatch.setattr(incluster_config.datetime, "datetime", Later)
    assert sent.auth_settings()["BearerToken"]["value"] == "bearer renewed"


@pytest.mark.usefixtures("in_a_pod")
@pytest.mark.parametrize("name", list(JOB_KINDS))
def test_a_launcher_has_the_limits_that_it_is_created_with(name: str) -> None:
    made = create_launcher(name, outage_s=77, pending_s=88)
    assert isinstance(made, ClusterLauncher)
    assert (made.name, made._workflow, made._api.namespace) == (name, None, "team")
    assert (made._api.policy.outage_s, made._settings.pending_s) == (77, 88)
