"""What a real cluster does to a launcher: lists that come late, launchers that come back, noise in logs."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launching import api, cluster_job, complete, jobs, launcher, running
from tests.launch.standin import Cluster, Refused, cluster
from trainwright.errors import Hang, PermissionRefused, Preempted
from trainwright.launch import manifests
from trainwright.launch.attempt import next_attempt
from trainwright.launch.cluster import lease
from trainwright.launch.cluster.api import Selection
from trainwright.launch.cluster.joining import create_or_attach
from trainwright.launch.cluster.watching import LISTED, News, Watcher

HOUR_S = 3600.0


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def test_a_job_that_is_found_is_not_pending_before_its_pods_were_listed(
    there: Cluster, tmp_path: Path
) -> None:
    job = dataclasses.replace(cluster_job(tmp_path), timeout_s=100_000)
    lists = there.faults.busy(verbs=("list",), resources=("pods",), times=20)
    with running(lambda: launcher(there, pending_s=-1.0).run(job)) as coming:
        there.wait(lambda: lists.hit > 4)
        complete(jobs(there)[0])
        there.condition(job.name, "Succeeded")
    assert coming.result(0).folder == job.folder


def test_a_job_that_has_left_its_marker_has_succeeded_at_its_deadline_too(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, later = cluster_job(tmp_path), [0.0]

    def now() -> float:
        import time

        return time.time() + later[0]

    with running(lambda: launcher(there, now=now).run(job)) as coming:
        there.wait(lambda: jobs(there))
        complete(jobs(there)[0])
        later[0] = 2 * HOUR_S
    assert coming.result(0).folder == job.folder
    assert jobs(there) == []
    assert "did not end within" in capsys.readouterr().err


def test_whoever_was_outdone_deletes_nothing(there: Cluster, tmp_path: Path) -> None:
    job, access = cluster_job(tmp_path), api(there)
    manifest = manifests.make(job, "pytorchjob", None)
    mine = create_or_attach(access, job, manifest, "mine", 5)
    theirs = create_or_attach(access, job, manifest, "theirs", 5)
    assert (mine.uid, theirs.found) == (theirs.uid, True)
    with pytest.raises(lease.Outdone, match="theirs"):
        lease.delete_mine(access, mine.name, mine.uid, "mine", mine.version)
    assert len(jobs(there)) == 1
    lease.delete_mine(access, mine.name, mine.uid, "theirs", mine.version)
    assert jobs(there) == []


def test_a_job_whose_pods_may_not_be_watched_is_not_left_running(there: Cluster, tmp_path: Path) -> None:
    there.faults.refuse(Refused(403, "Forbidden", "no"), verbs=("list",), resources=("pods",), times=None)
    with pytest.raises(PermissionRefused):
        launcher(there).run(cluster_job(tmp_path))
    assert jobs(there) == []


def test_the_time_after_the_end_of_a_job_is_not_time_that_it_took(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    again = dataclasses.replace(job, folder=next_attempt(tmp_path / "home"))
    assert again.digest == job.digest
