"""Attempts after a failure, and what counts as success."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import (
    Object,
    api,
    cluster_job,
    complete,
    folder_of,
    jobs,
    launcher,
    running,
    watches,
)
from tests.launch.objects import count_interruptions
from tests.launch.standin import Cluster, cluster
from trainwright.errors import (
    DependencyError,
    Diverged,
    Hang,
    InputError,
    InternalError,
    Preempted,
    PreemptedUnsaved,
    TrainwrightError,
)
from trainwright.experiment.resources import JobPlacement, RetryBudget
from trainwright.launch import manifests
from trainwright.launch.agent.rank_errors import RankError
from trainwright.launch.cluster.history import AttemptHistory, AttemptLosses, FailedAttempt
from trainwright.launch.failure import Failure
from trainwright.launch.job import Job, Result
from trainwright.launch.job_directory import create_attempt


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False) as found:
        found.nodes.plan(process=False, on_term=143)
        yield found


def each_attempt(there: Cluster, job: Job, count: int, act: Callable[[str, int], object]) -> list[str]:
    """Wait for each of some attempts to run, and act on its pods; return the identities of the jobs."""
    uids: list[str] = []

    def next_runs() -> bool:
        pods = [pod for pod in there.objects("Pod") if pod.get("status", {}).get("phase") == "Running"]
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods}
        fresh = [found for found in jobs(there) if found["metadata"]["uid"] not in uids]
        return bool(fresh) and len(pods) == job.nodes and owners == {fresh[0]["metadata"]["uid"]}

    for number in range(count):
        there.wait(lambda: next_runs() and watches(there))
        uids.append(jobs(there)[0]["metadata"]["uid"])
        act(job.name, number)
    return uids


def test_a_preempted_job_is_made_again_in_a_folder_of_its_own_until_it_succeeds(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = cluster_job(tmp_path)
    (job.folder / "specification.json").write_text('{"attempt": "0001", "home": "x"}')

    def act(name: str, number: int) -> None:
        if number < 2:
            there.nodes.evict(f"{name}-worker-0")
            return
        complete(jobs(there)[0])
        there.nodes.end(f"{name}-master-0", 0)

    with running(lambda: launcher(there).run(job)) as coming:
        uids = each_attempt(there, job, 3, act)
    result = coming.result(0)
    assert len(set(uids)) == 3
    assert result.folder.name == "0003"
    assert '"attempt": "0003"' in (result.folder / "specification.json").read_text()
    said = capsys.readouterr().err
    assert "Restarting (1 of 10 for preemption) after PREEMPTED" in said
    assert "Restarting (2 of 10 for preemption) after PREEMPTED" in said
    assert "succeeded at attempt 3" in said


@pytest.mark.covers("F31")
def test_a_budget_that_is_used_up_ends_it_and_says_how_often_it_was_tried(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path, budget=RetryBudget(preemption=1))
    with running(lambda: launcher(there).run(job)) as coming:
        each_attempt(there, job, 2, lambda name, _: there.nodes.evict(f"{name}-worker-0"))
    with pytest.raises(PreemptedUnsaved, match=r"\(attempt 2; 0 GPU seconds lost over all\)"):
        coming.result(0)
    failure = Failure.read(tmp_path / "home")
    assert any(entry.startswith("attempt 0001: PREEMPTED") for entry in failure.evidence)
    ends = [FailedAttempt.read(tmp_path / "home" / "attempts" / name) for name in ("0001", "0002")]
    assert [entry.final for entry in ends] == [False, True]


@pytest.mark.parametrize(
    ("end", "kind", "error"), [("oom", "HOST_OOM", InputError), ("exit", "USER_EXCEPTION", InternalError)]
)
def test_what_would_happen_again_is_not_tried_again(
    there: Cluster, tmp_path: Path, end: str, kind: str, error: type[Exception]
) -> None:
    job = cluster_job(tmp_path)

    def act(name: str, _: int) -> None:
        if end == "oom":
            there.nodes.end(f"{name}-worker-0", 137, reason="OOMKilled")
        else:
            there.nodes.end(f"{name}-worker-0", 1)

    with running(lambda: launcher(there).run(job)) as coming:
        each_attempt(there, job, 1, act)
    with pytest.raises(error, match=kind):
        coming.result(0)
    assert sum(call.verb == "create" and not call.dry_run for call in there.calls) == 1


def test_a_job_that_ran_out_of_memory_is_refused_when_the_step_is_run_again_unchanged(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as coming:
        each_attempt(
            there, job, 1, lambda name, _: there.nodes.end(f"{name}-worker-0", 137, reason="OOMKilled")
        )
    with pytest.raises(InputError):
        coming.result(0)
    before = len(there.calls)
    with pytest.raises(InputError, match="it is not run once more unchanged"):
        launcher(there).run(cluster_job(tmp_path))
    assert len(there.calls) == before


@pytest.mark.covers("F22")
def test_a_launcher_that_takes_over_counts_the_attempts_before_it(there: Cluster, tmp_path: Path) -> None:
    home, job = tmp_path / "home", cluster_job(tmp_path, budget=RetryBudget(preemption=1))
    lost = FailedAttempt(
        job=job.digest,
        kind="PREEMPTED",
        what="gone",
        counts={"preemption": 1},
        took_s=5.0,
        lost_gpu_s=7.0,
        final=False,
    )
    lost.write(job.folder)
    second = cluster_job(tmp_path, budget=RetryBudget(preemption=1))
    assert second.folder == home / "attempts" / "0002"
    with running(lambda: launcher(there).run(second)) as coming:
        each_attempt(there, second, 1, lambda name, _: there.nodes.evict(f"{name}-worker-0"))
    with pytest.raises(PreemptedUnsaved, match=r"\(attempt 2; 7 GPU seconds lost over all\)"):
        coming.result(0)


def test_what_was_given_up_does_not_count_against_the_next_launch(tmp_path: Path) -> None:
    folders = [create_attempt(tmp_path) for _ in range(3)]
    for folder, final in zip(folders[:2], (True, False), strict=True):
        FailedAttempt(
            job="x",
            kind="HANG",
            what="",
            counts={"infrastructure": 1},
            took_s=1,
            lost_gpu_s=0,
            final=final,
        ).write(folder)
    assert AttemptHistory.before(folders[2]).spent == {"infrastructure": 1}


def test_an_elastic_job_that_loses_pods_more_often_than_its_budget_is_ended(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path, placement=JobPlacement(min_nodes=1), budget=RetryBudget(preemption=0))
    with running(lambda: launcher(there).run(job)) as coming:
        each_attempt(there, job, 1, lambda name, _: there.nodes.evict(f"{name}-worker-1"))
    with pytest.raises(PreemptedUnsaved):
        coming.result(0)
    there.wait(lambda: there.objects("Pod") == [])


def test_a_launcher_that_takes_over_counts_the_pods_that_an_elastic_attempt_lost_before(
    there: Cluster, tmp_path: Path
) -> None:
    """Their objects are gone within seconds: what it cost is in the attempt's folder."""
    job = cluster_job(tmp_path, gpus=2, placement=JobPlacement(min_nodes=1), budget=RetryBudget(preemption=1))
    for node in ("node-0", "node-1"):
        there.edit("Node", node, lambda body: body["status"]["allocatable"].update({"nvidia.com/gpu": "8"}))

    def lose(count: int) -> None:
        there.wait(lambda: _all_run(there) and watches(there))
        there.nodes.evict(f"{job.name}-worker-1")
        there.wait(lambda: count_interruptions(AttemptLosses.of(job.folder).lost) == {"preemption": count})

    with running(lambda: launcher(there).run(job)) as first:
        lose(1)
        there.wait(lambda: _all_run(there))
        before = len(there.calls)
        with running(lambda: launcher(there).run(job)) as second:
            there.wait(
                lambda: any((call.verb, call.resource) == ("watch", "pods") for call in there.calls[before:])
            )
            lose(2)
    with pytest.raises(Preempted, match="has taken over"):
        first.result(0)
    with pytest.raises(PreemptedUnsaved, match="its preemption budget is used up"):
        second.result(0)


def _all_run(there: Cluster) -> bool:
    pods = there.objects("Pod")
    phases = {pod["status"].get("phase") for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    return (
        len(pods) == 2
        and phases == {"Running"}
        and not [p for p in pods if "deletionTimestamp" in p["metadata"]]
    )


def test_the_log_of_a_container_that_was_started_again_is_that_of_the_one_that_failed(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path, placement=JobPlacement(min_nodes=1))
    there.put(manifests.make_manifest(job, "pytorchjob"))
    there.wait(lambda: _all_run(there))
    worker = f"{job.name}-worker-1"
    there.nodes.end(worker, 1, log="Traceback (most recent call last):\nValueError: row 7 has no label\n")
    there.wait(lambda: _restarts(there, worker) == 1 and _all_run(there))
    with pytest.raises(InternalError, match="row 7 has no label"):
        launcher(there).run(job)
    assert Failure.read(job.folder).kind == "USER_EXCEPTION"


def _restarts(there: Cluster, pod: str) -> int:
    found = (there.find("Pod", pod) or {"status": {}})["status"].get("containerStatuses") or [{}]
    return int(found[0].get("restartCount", 0))


ONCE = RetryBudget(preemption=0, infrastructure=0)
ELASTIC = JobPlacement(min_nodes=1)


def ran(there: Cluster, job: Job, then: Callable[[Object], object], **settings: Any) -> Result:
    """Run a job, and do something with it as soon as its pods run."""
    with running(lambda: launcher(there, **settings).run(job)) as coming:
        there.wait(lambda: jobs(there) and len(runs(there)) == job.nodes and watches(there))
        then(jobs(there)[0])
    return coming.result(0)


def runs(there: Cluster) -> list[str]:
    """Name the pods that run, without their job's name."""
    pods = [pod for pod in there.objects("Pod") if pod.get("status", {}).get("phase") == "Running"]
    return ["-".join(pod["metadata"]["name"].split("-")[-2:]) for pod in pods]


def pod(body: Object, place: str) -> str:
    return f"{body['metadata']['name']}-{place}"


def test_a_job_that_succeeds_returns_its_marker(there: Cluster, tmp_path: Path) -> None:
    def finish(body: Object) -> None:
        complete(body)
        there.nodes.end(pod(body, "master-0"), 0)

    job = cluster_job(tmp_path)
    result = ran(there, job, finish)
    assert (result.folder, result.completion.outputs) == (job.folder, {"model": "abc"})


def test_a_job_that_succeeds_without_its_marker_is_no_success(there: Cluster, tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match=r"without its completion marker result\.json"):
        ran(
            there,
            cluster_job(tmp_path),
            lambda body: there.nodes.end(pod(body, "master-0"), 0),
            settle_s=0.3,
        )


def test_an_evicted_master_that_exits_0_is_no_success(there: Cluster, tmp_path: Path) -> None:
    there.nodes.plan(process=False, on_term=0)
    with pytest.raises(PreemptedUnsaved, match=r"master-0 was taken off its node \(EvictionByEvictionAPI\)"):
        ran(
            there,
            cluster_job(tmp_path, budget=ONCE),
            lambda body: there.nodes.evict(pod(body, "master-0")),
        )


@pytest.mark.parametrize("marked", [True, False])
def test_when_a_job_is_succeeded_and_failed_the_marker_decides(
    there: Cluster, tmp_path: Path, marked: bool
) -> None:
    def end(body: Object) -> None:
        if marked:
            complete(body)
        there.operator.absent()
        for kind in ("Succeeded", "Failed"):
            there.condition(body["metadata"]["name"], kind, message=f"job {kind.lower()}")

    job = cluster_job(tmp_path, placement=ELASTIC)
    if marked:
        assert ran(there, job, end).completion.outputs == {"model": "abc"}
    else:
        with pytest.raises(
            TrainwrightError, match="the job says Succeeded and Failed without its completion"
        ):
            ran(there, job, end, settle_s=0.3, cleaned_s=0.1)


@pytest.mark.covers("F28")
@pytest.mark.parametrize("marked", [True, False])
def test_of_a_job_that_somebody_deleted_the_marker_decides(
    there: Cluster, tmp_path: Path, marked: bool
) -> None:
    def vanish(body: Object) -> None:
        if marked:
            complete(body)
        api(there).delete(body["metadata"]["name"])

    if marked:
        assert ran(there, cluster_job(tmp_path), vanish).completion.outputs == {"model": "abc"}
    else:
        with pytest.raises(DependencyError, match="deleted by someone else"):
            ran(there, cluster_job(tmp_path), vanish, settle_s=0.3)


def test_the_first_failing_rank_is_heard_with_its_pod(there: Cluster, tmp_path: Path) -> None:
    def diverge(body: Object) -> None:
        error = RankError.of(Diverged("the loss is not finite", hint="Lower the rate."), 1)
        error.save(folder_of(body))
        there.nodes.end(pod(body, "worker-0"), 30)

    with pytest.raises(Diverged, match="the loss is not finite") as caught:
        ran(there, cluster_job(tmp_path), diverge)
    assert re.fullmatch(r"pod tw-train-\w+-worker-0, rank 1", caught.value.where)


def test_a_failure_is_left_in_the_attempt_and_in_the_home_with_its_card(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: no column 'delay'\n"
    job = cluster_job(tmp_path)
    with pytest.raises(TrainwrightError, match="no column 'delay'"):
        ran(there, job, lambda body: there.nodes.end(pod(body, "worker-0"), 1, log=said))
    left = [Failure.read(place) for place in (job.folder, tmp_path / "home")]
    assert left[0] == left[1]
    assert (left[0].kind, left[0].pod) == ("USER_EXCEPTION", f"{job.name}-worker-0")
    card = (tmp_path / "home" / Failure.CARD).read_text()
    assert f"kubectl logs -n team {job.name}-worker-0 -c pytorch" in card
    assert f"kubectl logs -n team {job.name}-master-0 -c pytorch" in card
    assert "ValueError: no column" in card
    told = capsys.readouterr().err
    assert f"The end of the log of pod {job.name}-worker-0:\n" in told


@pytest.mark.covers("F30")
def test_of_a_job_that_failed_no_pod_goes_on_running(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with pytest.raises(TrainwrightError):
        ran(there, job, lambda body: there.nodes.end(pod(body, "worker-0"), 1))
    there.wait(lambda: runs(there) == [])


@pytest.mark.covers("F32")
def test_a_job_that_takes_too_long_is_deleted(there: Cluster, tmp_path: Path) -> None:
    with pytest.raises(Hang, match="did not end within 1 s and was ended: training had not begun"):
        launcher(there).run(cluster_job(tmp_path, timeout_s=1))
    there.wait(lambda: jobs(there) == [] and there.objects("Pod") == [])


@pytest.mark.parametrize(
    ("waits", "limits", "kind", "said"),
    [
        ("ErrImagePull", {"broken_s": 0.2}, DependencyError, "does not get its image"),
        ("CreateContainerConfigError", {"broken_s": 0.2}, InputError, "cannot be started as it is asked for"),
        ("Unschedulable", {"pending_s": 5}, DependencyError, "no node takes pod"),
    ],
)
def test_a_job_whose_pods_cannot_start_is_deleted_with_the_reason(
    there: Cluster,
    tmp_path: Path,
    waits: str,
    limits: dict[str, float],
    kind: type[TrainwrightError],
    said: str,
) -> None:
    there.nodes.plan(waits=waits, message="because of this")
    with pytest.raises(kind, match="start") as caught:
        launcher(there, **limits).run(cluster_job(tmp_path))
    assert said in caught.value.what
    assert "because of this" in caught.value.what
    there.wait(lambda: jobs(there) == [])


def test_why_a_queue_does_not_admit_a_job_is_found_in_what_kueue_keeps_of_it(tmp_path: Path) -> None:
    """Its workload has a name of its own: it is known by the job's identity, which Kueue labels it with."""
    with cluster(tmp_path, processes=False, kueue=True) as there:
        job = cluster_job(tmp_path, placement=JobPlacement(queue="gpus"))
        with running(lambda: launcher(there, broken_s=0.2).run(job)) as coming:
            pass  # time in a queue has no limit: should the reason not be found, it never ends
        with pytest.raises(InputError, match="LocalQueue gpus doesn't exist"):
            coming.result(0)
        there.wait(lambda: jobs(there) == [])
