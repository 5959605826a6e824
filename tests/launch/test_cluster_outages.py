"""Outages, restarts and odd answers of the API server."""

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.launching import api, cluster_job, complete, jobs, launcher, running, watches
from tests.launch.standin import Cluster, Refused, cluster
from tests.launch.test_cluster_logs import COUNT, lines, pod
from trainwright.errors import PermissionRefused, Preempted, TransientError
from trainwright.launch import manifests
from trainwright.launch.cluster import lease
from trainwright.launch.cluster.api import PYTORCHJOB, Api, Selection, ServerClock
from trainwright.launch.cluster.lease import LEASE_UNTIL, create_or_adopt
from trainwright.launch.cluster.monitor import LogFollower
from trainwright.launch.cluster.observer import LISTED, Watcher, WatchEvent
from trainwright.launch.cluster.responses import ApiUnavailable, split_timestamp
from trainwright.launch.janitor import SweepRules, judge_job
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
    monkeypatch.setattr("trainwright.retries.PATIENT_S", 0.0)
    for limit_s, told in (
        (float("inf"), "retrying until it answers"),
        (9.0, r"retrying for \d s more"),
    ):
        backoff = Backoff(RetryPolicy(outage_s=limit_s, first_s=0.01))
        backoff.wait(TransientError("no answer"))
        assert re.fullmatch(rf"no answer; for 0 s now, {told}\n", capsys.readouterr().err)


PAGES = [b"<!doctype html>\n<title>Sign in</title>", b"", b"[]", b"{}", b'{"metadata": 1}', b'"Sign in"']
NO_LIST = b'{"metadata": {}, "items": []}'
HOURS_S = 7200.0


@pytest.fixture
def without_processes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False) as found:
        found.nodes.plan(process=False, on_term=143)
        yield found


def runs(without_processes: Cluster) -> int:
    """Count the pods that run."""
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in without_processes.objects("Pod"))


def lease_s(without_processes: Cluster) -> float:
    """Return when the lease of the one job runs out, in seconds since 1970."""
    (body,) = jobs(without_processes)
    return datetime.fromisoformat(body["metadata"]["annotations"][LEASE_UNTIL]).timestamp()


@pytest.mark.parametrize("apart_s", [HOURS_S, -HOURS_S])
def test_a_launcher_whose_clock_is_wrong_goes_by_the_clock_of_the_api(
    without_processes: Cluster, tmp_path: Path, apart_s: float
) -> None:
    """By its own, the job would be pending for hours at its first look, or its lease over when written."""
    clock = ServerClock(lambda: time.time() + apart_s)
    start = launcher(without_processes, clock=clock, pending_s=1800, renew_s=0.05)
    with running(lambda: start.run(cluster_job(tmp_path, timeout_s=3600))) as coming:
        without_processes.wait(lambda: runs(without_processes) == 2 and watches(without_processes))
        without_processes.wait(lambda: 0 < lease_s(without_processes) - time.time() < 300)
        (body,) = jobs(without_processes)
        complete(body)
        without_processes.nodes.end(f"{body['metadata']['name']}-master-0", 0)
    assert coming.result(0).completion.outputs == {"model": "abc"}


def test_a_janitor_whose_clock_is_wrong_keeps_a_job_that_is_looked_after(
    without_processes: Cluster, tmp_path: Path
) -> None:
    made = manifests.make_manifest(cluster_job(tmp_path), "pytorchjob")
    until = datetime.now(UTC) + timedelta(seconds=180)
    made["metadata"]["annotations"][LEASE_UNTIL] = until.isoformat(timespec="seconds")
    without_processes.put(made)
    (body,) = jobs(without_processes)
    wrong = ServerClock(lambda: time.time() + HOURS_S)
    access, rules = (
        api(without_processes, clock=wrong),
        SweepRules(now=datetime.now(UTC) + timedelta(seconds=HOURS_S)),
    )
    assert judge_job(body, access, rules).left, "it has not heard the API yet"
    found = access.job(body["metadata"]["name"])
    assert found
    assert not judge_job(found, access, rules).left


def test_clocks_that_tell_about_the_same_are_one() -> None:
    clock = ServerClock(lambda: 1_790_000_000.0)
    for said in ("Mon, 21 Sep 2026 14:13:25 GMT", "no time", "", None):
        clock.adjust(said)
        assert clock.now() == 1_790_000_000.0, said
    clock.adjust("Mon, 21 Sep 2026 16:13:20 GMT")
    assert clock.ahead_s == pytest.approx(HOURS_S)


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Access to what answers every call with 200 and something that is none of the API's."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param + b"\n")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = k8s.Configuration()
        settings.host, settings.retries = f"http://127.0.0.1:{server.server_port}", False
        yield Api(k8s.ApiClient(settings), "team", PYTORCHJOB, RetryPolicy(outage_s=0.2, first_s=0.05))
        server.shutdown()


@pytest.mark.covers("B72")
@pytest.mark.parametrize("stranger", PAGES, indirect=True, ids=repr)
def test_a_page_to_log_in_is_an_outage_and_is_shown(stranger: Api) -> None:
    with pytest.raises(TransientError, match=r"answers to get pytorchjobs\.kubeflow\.org is not the Kub"):
        stranger.job("a")


@pytest.mark.parametrize("stranger", [*PAGES, NO_LIST], indirect=True, ids=repr)
def test_an_answer_that_is_no_list_says_of_no_object_that_it_is_gone(stranger: Api) -> None:
    with pytest.raises(ApiUnavailable, match="not the Kubernetes API"):
        stranger.select(Selection(kind="job"))


@pytest.mark.parametrize("stranger", [page for page in PAGES if page], indirect=True, ids=repr)
def test_what_is_no_change_breaks_a_watch_and_not_the_launcher(stranger: Api) -> None:
    with (
        stranger.watch(Selection(kind="pods"), "1", 5) as (_, changes),
        pytest.raises(ApiUnavailable, match="not the Kubernetes API"),
    ):
        list(changes)


HOUR_S = 3600.0
THEIRS = {lease.HOLDER: "theirs"}


@pytest.fixture
def without_operator(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def test_a_job_that_is_found_is_not_pending_before_its_pods_were_listed(
    without_operator: Cluster, tmp_path: Path
) -> None:
    job = dataclasses.replace(cluster_job(tmp_path), timeout_s=100_000)
    lists = without_operator.faults.error(verbs=("list",), resources=("pods",), times=8)
    with running(lambda: launcher(without_operator, pending_s=-1.0).run(job)) as coming:
        without_operator.wait(lambda: lists.hit > 4)
        complete(jobs(without_operator)[0])
        without_operator.condition(job.name, "Succeeded")
    assert coming.result(0).folder == job.folder


def test_a_job_that_has_left_its_marker_has_succeeded_at_its_deadline_too(
    without_operator: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, later = cluster_job(tmp_path), [0.0]
    hurried = launcher(without_operator, now=lambda: time.time() + later[0])
    with running(lambda: hurried.run(job)) as coming:
        without_operator.wait(lambda: jobs(without_operator))
        complete(jobs(without_operator)[0])
        later[0] = 2 * HOUR_S
    assert coming.result(0).folder == job.folder
    without_operator.wait(lambda: not jobs(without_operator))
    assert "did not end within" in capsys.readouterr().err


def test_whoever_was_outdone_deletes_nothing(without_operator: Cluster, tmp_path: Path) -> None:
    job, access = cluster_job(tmp_path), api(without_operator)
    manifest = manifests.make_manifest(job, "pytorchjob", None)
    mine = create_or_adopt(access, job, manifest, "mine", 5)
    theirs = create_or_adopt(access, job, manifest, "theirs", 5)
    assert (mine.uid, theirs.adopted) == (theirs.uid, True)
    with pytest.raises(lease.LeaseLost, match="theirs"):
        mine.delete()
    assert len(jobs(without_operator)) == 1
    theirs.delete()
    without_operator.wait(lambda: not jobs(without_operator))


def test_a_job_whose_pods_may_not_be_watched_is_not_left_running(
    without_operator: Cluster, tmp_path: Path
) -> None:
    without_operator.faults.refuse(
        Refused(403, "Forbidden", "no"), verbs=("list",), resources=("pods",), times=None
    )
    with pytest.raises(PermissionRefused):
        launcher(without_operator).run(cluster_job(tmp_path))
    without_operator.wait(lambda: not jobs(without_operator))


def test_whoever_was_outdone_and_finds_the_job_failed_leaves_it_to_the_other(
    without_operator: Cluster, tmp_path: Path
) -> None:
    job, later = cluster_job(tmp_path), [0.0]
    late = launcher(without_operator, now=lambda: time.time() + later[0])
    with running(lambda: late.run(job)) as coming:
        without_operator.wait(lambda: sum(call.verb == "watch" for call in without_operator.calls) >= 2)
        # From now on it sees nothing any more, and it cannot renew.
        without_operator.faults.error(verbs=("watch", "list", "patch"), times=None)
        without_operator.close_watches()
        without_operator.edit(
            "PyTorchJob", job.name, lambda body: body["metadata"]["annotations"].update(THEIRS)
        )
        later[0] = 2 * HOUR_S
    with pytest.raises(Preempted, match="has taken over job"):
        coming.result(0)
    assert len(jobs(without_operator)) == 1
    assert not (job.folder / "attempt.json").exists()


@pytest.mark.covers("F27")
def test_a_watch_that_ends_at_once_is_not_opened_in_a_storm(without_operator: Cluster) -> None:
    access = api(without_operator)
    told: list[WatchEvent | Exception] = []
    opened = len(without_operator.calls)
    answer = Refused(410, "Expired", "too old resource version")
    without_operator.faults.refuse(answer, verbs=("watch",), times=None)
    with Watcher(access, Selection(kind="pods"), told.append):
        without_operator.wait(lambda: len(without_operator.calls) - opened >= 4)
        threading.Event().wait(0.3)
    assert len(without_operator.calls) - opened < 40
    assert all(isinstance(news, WatchEvent) and news.change == LISTED for news in told)


def test_what_a_node_says_between_the_lines_of_a_log_is_no_line_of_the_program() -> None:
    noise = "failed to create fsnotify watcher: too many open files"
    stamp = "2026-11-20T08:44:27.123Z"
    assert split_timestamp(noise) == ("", noise)
    assert split_timestamp(f"{stamp} failed to learn") == (stamp, "failed to learn")
