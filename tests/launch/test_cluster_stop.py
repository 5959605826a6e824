"""A launcher that is killed leaves a job for the next one to go on with; one that is told to stop, none."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.launch.launching import cluster_job, complete, jobs, launcher, running
from tests.launch.standin import Cluster, cluster
from trainwright.errors import Preempted, PreemptedUnsaved, reported

POINTS = 13
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.launch.launching"])


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, operator=False) as found:
        yield found


class Elsewhere:
    """A cluster that runs in another process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def api_client(self, token: str) -> object:
        from kubernetes import client as k8s

        settings = k8s.Configuration()
        settings.host, settings.retries = self._url, False
        settings.api_key = {"authorization": f"Bearer {token}"}
        return k8s.ApiClient(settings)


def launch(url: str, root: str, pace: dict[str, float]) -> None:
    """What the process of a launcher does."""
    os.chdir(root)
    with reported("train"):
        launcher(Elsewhere(url), **pace).run(cluster_job(Path(root)))  # type: ignore[arg-type]


def started(there: Cluster, root: Path, **pace: float) -> BaseProcess:
    process = _FORKS.Process(target=launch, args=(there.url, str(root), {"renew_s": 0.05} | pace))
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    process.join(180)
    return process.exitcode


def test_a_launcher_that_is_killed_at_any_of_its_calls_is_followed_by_one_that_goes_on(
    there: Cluster, tmp_path: Path
) -> None:
    for point in range(1, POINTS + 1):
        before, process = len(there.calls), started(there, tmp_path)
        there.wait(lambda before=before, point=point: len(there.calls) >= before + point)  # type: ignore[misc]
        process.kill()
        assert ended(process) == -signal.SIGKILL
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: jobs(there))
        complete(jobs(there)[0])
        there.condition(job.name, "Succeeded")
    assert coming.result(0).folder.name == "0001"
    created = [
        call for call in there.calls if call.verb == "create" and not call.dry_run and call.code == 201
    ]
    assert len(created) == 1
    assert not [call for call in there.calls if call.verb == "delete"]


@pytest.mark.parametrize("saved", [False, True])
def test_a_launcher_that_is_told_to_stop_deletes_its_job_before_anything_else(
    there: Cluster, tmp_path: Path, saved: bool
) -> None:
    """It waits for hours between two looks: a deletion that waited for the next one would never come."""
    if saved:
        manifest = tmp_path / "home" / "checkpoints" / "step-00000001.0001" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
    process = started(there, tmp_path, renew_s=10_000, tick_s=10_000)
    waits = {("watch", "pods"), ("watch", "pytorchjobs"), ("list", "events")}
    there.wait(lambda: waits <= {(call.verb, call.resource) for call in there.calls})
    before = len(there.calls)
    assert process.pid
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == (Preempted if saved else PreemptedUnsaved).code
    assert [(call.verb, call.resource, call.code) for call in there.calls[before:]] == [
        ("delete", "pytorchjobs", 200)
    ]
    assert jobs(there) == []


def test_a_launcher_that_is_told_to_stop_while_the_api_is_silent_leaves_nothing(
    there: Cluster, tmp_path: Path
) -> None:
    there.faults.slow(1.0, verbs=("create",))
    process = started(there, tmp_path)
    there.wait((tmp_path / "home" / "attempts" / "0001").exists)
    assert process.pid
    os.kill(process.pid, signal.SIGTERM)
    code = ended(process)
    if code == PreemptedUnsaved.code:
        assert jobs(there) == []
    else:  # the signal came before the launcher's handler was there: nothing had been asked for
        assert (code, jobs(there)) == (-signal.SIGTERM, [])


def test_a_deletion_whose_reply_is_lost_is_asked_for_again(there: Cluster, tmp_path: Path) -> None:
    process = started(there, tmp_path)
    there.wait(lambda: any(call.verb == "patch" for call in there.calls))
    there.faults.drop(verbs=("delete",), times=2)
    assert process.pid
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == PreemptedUnsaved.code
    assert jobs(there) == []
