"""What a real cluster does to a launcher: lists that come late, launchers that come back, noise in logs."""

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launching import api, cluster_job, complete, jobs, launcher, running
from tests.launch.standin import Cluster, Refused, cluster
from trainwright.errors import PermissionRefused, Preempted
from trainwright.launch import manifests
from trainwright.launch.cluster import lease
from trainwright.launch.cluster.adoption import create_or_adopt
from trainwright.launch.cluster.api import Selection
from trainwright.launch.cluster.observer import LISTED, Watcher, WatchEvent
from trainwright.launch.cluster.responses import split_timestamp

HOUR_S = 3600.0
THEIRS = {lease.HOLDER: "theirs"}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def test_a_job_that_is_found_is_not_pending_before_its_pods_were_listed(
    there: Cluster, tmp_path: Path
) -> None:
    job = dataclasses.replace(cluster_job(tmp_path), timeout_s=100_000)
    lists = there.faults.error(verbs=("list",), resources=("pods",), times=8)
    with running(lambda: launcher(there, pending_s=-1.0).run(job)) as coming:
        there.wait(lambda: lists.hit > 4)
        complete(jobs(there)[0])
        there.condition(job.name, "Succeeded")
    assert coming.result(0).folder == job.folder


def test_a_job_that_has_left_its_marker_has_succeeded_at_its_deadline_too(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, later = cluster_job(tmp_path), [0.0]
    hurried = launcher(there, now=lambda: time.time() + later[0])
    with running(lambda: hurried.run(job)) as coming:
        there.wait(lambda: jobs(there))
        complete(jobs(there)[0])
        later[0] = 2 * HOUR_S
    assert coming.result(0).folder == job.folder
    there.wait(lambda: not jobs(there))
    assert "did not end within" in capsys.readouterr().err


def test_whoever_was_outdone_deletes_nothing(there: Cluster, tmp_path: Path) -> None:
    job, access = cluster_job(tmp_path), api(there)
    manifest = manifests.make_manifest(job, "pytorchjob", None)
    mine = create_or_adopt(access, job, manifest, "mine", 5)
    theirs = create_or_adopt(access, job, manifest, "theirs", 5)
    assert (mine.uid, theirs.found) == (theirs.uid, True)
    with pytest.raises(lease.LeaseLost, match="theirs"):
        lease.delete_if_held(access, mine.name, mine.uid, "mine", mine.version)
    assert len(jobs(there)) == 1
    lease.delete_if_held(access, mine.name, mine.uid, "theirs", mine.version)
    there.wait(lambda: not jobs(there))


def test_a_job_whose_pods_may_not_be_watched_is_not_left_running(there: Cluster, tmp_path: Path) -> None:
    there.faults.refuse(Refused(403, "Forbidden", "no"), verbs=("list",), resources=("pods",), times=None)
    with pytest.raises(PermissionRefused):
        launcher(there).run(cluster_job(tmp_path))
    there.wait(lambda: not jobs(there))


def test_whoever_was_outdone_and_finds_the_job_failed_leaves_it_to_the_other(
    there: Cluster, tmp_path: Path
) -> None:
    job, later = cluster_job(tmp_path), [0.0]
    late = launcher(there, now=lambda: time.time() + later[0])
    with running(lambda: late.run(job)) as coming:
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 2)
        # From now on it sees nothing any more, and it cannot renew.
        there.faults.error(verbs=("watch", "list", "patch"), times=None)
        there.close_watches()
        there.edit("PyTorchJob", job.name, lambda body: body["metadata"]["annotations"].update(THEIRS))
        later[0] = 2 * HOUR_S
    with pytest.raises(Preempted, match="has taken over job"):
        coming.result(0)
    assert len(jobs(there)) == 1
    assert not (job.folder / "attempt.json").exists()


def test_a_watch_that_ends_at_once_is_not_opened_in_a_storm(there: Cluster) -> None:
    access = api(there)
    told: list[WatchEvent | Exception] = []
    opened = len(there.calls)
    answer = Refused(410, "Expired", "too old resource version")
    there.faults.refuse(answer, verbs=("watch",), times=None)
    with Watcher(access, Selection(kind="pods"), told.append):
        there.wait(lambda: len(there.calls) - opened >= 4)
        threading.Event().wait(0.3)
    assert len(there.calls) - opened < 40
    assert all(isinstance(news, WatchEvent) and news.change == LISTED for news in told)


def test_what_a_node_says_between_the_lines_of_a_log_is_no_line_of_the_program() -> None:
    noise = "failed to create fsnotify watcher: too many open files"
    stamp = "2026-11-20T08:44:27.123Z"
    assert split_timestamp(noise) == ("", noise)
    assert split_timestamp(f"{stamp} failed to learn") == (stamp, "failed to learn")
