"""How a job on a cluster ended: the marker of rank 0 decides, whatever the operator says."""

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
from tests.launch.standin import Cluster, cluster
from trainwright.errors import DependencyError, Diverged, Hang, InputError, PreemptedUnsaved, TrainwrightError
from trainwright.launch.agent.rank_errors import RankError
from trainwright.launch.failure import Failure
from trainwright.launch.job import Budget, Job, Result
from trainwright.launch.placement import Placement

ONCE = Budget(preemption=0, infrastructure=0)
ELASTIC = Placement(min_nodes=1)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False) as found:
        found.nodes.plan(process=False, on_term=143)
        yield found


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


def test_of_a_job_that_failed_no_pod_goes_on_running(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with pytest.raises(TrainwrightError):
        ran(there, job, lambda body: there.nodes.end(pod(body, "worker-0"), 1))
    there.wait(lambda: runs(there) == [])


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
        job = cluster_job(tmp_path, placement=Placement(queue="gpus"))
        with running(lambda: launcher(there, broken_s=0.2).run(job)) as coming:
            pass  # time in a queue has no limit: should the reason not be found, it never ends
        with pytest.raises(InputError, match="LocalQueue gpus doesn't exist"):
            coming.result(0)
        there.wait(lambda: jobs(there) == [])
