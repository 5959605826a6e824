"""An API server that has just started rejects what its roles allow: that passes, a missing right does not."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launching import api, cluster_job, complete, jobs, launcher, running
from tests.launch.standin import Cluster, cluster
from tests.launch.standin.answers import Refused
from tests.launch.test_cluster_logs import COUNT, lines, pod
from trainwright.errors import PermissionRefused, TransientError
from trainwright.launch.cluster.api import Selection
from trainwright.launch.cluster.log_follower import LogFollower
from trainwright.launch.cluster.responses import ApiUnavailable
from trainwright.launch.job import JobReference
from trainwright.retries import Backoff, RetryPolicy

FORBIDDEN = Refused(403, "Forbidden", 'pytorchjobs.kubeflow.org is forbidden: User "runner" cannot create')


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as found:
        yield found


def test_a_launcher_sits_out_an_api_server_that_rejects_everything_while_it_starts(
    there: Cluster, tmp_path: Path
) -> None:
    there.nodes.plan(process=False)
    there.faults.refuse(FORBIDDEN, times=12)  # each call is followed by one of /readyz
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: [body["status"].get("phase") for body in there.objects("Pod")] == ["Running"] * 2)
        complete(jobs(there)[0])
        for body in there.objects("Pod"):
            there.nodes.end(body["metadata"]["name"], 0)
    assert coming.result(0).folder == job.folder
    noted, name = JobReference.read(job.folder), jobs(there)[0]["metadata"]["name"]
    assert (noted.kind, noted.name) == ("PyTorchJob", name)
    assert noted.commands[1] == f"kubectl describe -n {noted.namespace} pytorchjobs.kubeflow.org {name}"


def test_a_server_that_is_not_ready_is_an_outage_however_long(there: Cluster) -> None:
    there.faults.error(503, resources=("",))  # /readyz
    there.faults.refuse(FORBIDDEN, resources=("pytorchjobs",))
    assert api(there).job("tw") is None


def test_a_missing_right_is_reported_within_the_bound_although_other_calls_succeed(
    there: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator closed ``/readyz``: the success of other calls must not begin the minute anew."""
    monkeypatch.setattr("trainwright.launch.cluster.api._SETTLING_S", 0.3)
    there.faults.refuse(FORBIDDEN, resources=("",), times=None)  # /readyz
    there.faults.refuse(FORBIDDEN, resources=("pytorchjobs",), times=None)
    access, began_s = api(there), time.monotonic()
    jobs_, pods = Selection(kind="job"), Selection(kind="pods")

    def list_jobs_until_refused() -> None:
        while time.monotonic() - began_s < 5:
            access.select(pods)
            with contextlib.suppress(ApiUnavailable):
                access.select(jobs_)

    with pytest.raises(PermissionRefused):
        list_jobs_until_refused()
    assert time.monotonic() - began_s >= 0.3
    there.faults.clear()
    access.select(jobs_)
    there.faults.refuse(FORBIDDEN, times=2)
    with pytest.raises(ApiUnavailable):  # the next start of the server has its own minute
        access.select(jobs_)


def test_a_missing_right_is_reported_at_once_by_a_server_without_anonymous_requests(there: Cluster) -> None:
    there.reject_anonymous()
    with pytest.raises(PermissionRefused, match="not allowed to"):
        api(there, token=there.account("runner", [])).select(Selection(kind="job"))


def test_a_right_that_is_missing_is_said_at_once(there: Cluster, tmp_path: Path) -> None:
    token = there.account("runner", [])
    began_s = time.monotonic()
    with pytest.raises(PermissionRefused, match="not allowed to"):
        launcher(there, token=token, outage_s=60).run(cluster_job(tmp_path))
    assert time.monotonic() - began_s < 10


def test_a_log_that_was_refused_once_is_shown_as_soon_as_it_is_allowed(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = pod(there, COUNT.format(first=0, last=30))
    there.wait(lambda: (there.find("Pod", "a") or {})["status"].get("containerStatuses"))
    fault = there.faults.refuse(FORBIDDEN, resources=("pods",), verbs=("get",), times=2)
    said = ""

    def passed_on() -> int:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said))

    with LogFollower(api(there), tmp_path, "a", uid, retry_s=0.1):
        there.wait(lambda: passed_on() >= 30)
    assert (fault.hit, said.count("cannot be shown")) == (2, 1)
    assert lines(said)[:30] == list(range(30))  # a busy machine shows the next life of the container too


def test_an_outage_without_an_end_names_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.retries.QUIET_S", 0.0)
    for limit_s, told in (
        (float("inf"), "retrying until it answers"),
        (9.0, r"retrying for \d s more"),
    ):
        backoff = Backoff(RetryPolicy(outage_s=limit_s, first_s=0.01))
        backoff.wait(TransientError("no answer"))
        assert re.fullmatch(rf"no answer; for 0 s now, {told}\n", capsys.readouterr().err)
