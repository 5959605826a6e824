"""What stands around a launcher: clocks that differ, and what answers in the place of the API."""

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
from tests.launch.standin import Cluster, cluster
from trainwright.errors import TransientError
from trainwright.launch import manifests
from trainwright.launch.cluster.api import PYTORCHJOB, Api, Selection, ServerClock
from trainwright.launch.cluster.responses import ApiUnavailable
from trainwright.launch.janitor import SweepRules, judge_job
from trainwright.launch.manifests.annotations import LEASE_UNTIL
from trainwright.retries import RetryPolicy

PAGES = [b"<!doctype html>\n<title>Sign in</title>", b"", b"[]", b"{}", b'{"metadata": 1}', b'"Sign in"']
NO_LIST = b'{"metadata": {}, "items": []}'
HOURS_S = 7200.0


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False) as found:
        found.nodes.plan(process=False, on_term=143)
        yield found


def runs(there: Cluster) -> int:
    """Count the pods that run."""
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in there.objects("Pod"))


def lease_s(there: Cluster) -> float:
    """Return when the lease of the one job runs out, in seconds since 1970."""
    (body,) = jobs(there)
    return datetime.fromisoformat(body["metadata"]["annotations"][LEASE_UNTIL]).timestamp()


@pytest.mark.parametrize("apart_s", [HOURS_S, -HOURS_S])
def test_a_launcher_whose_clock_is_wrong_goes_by_the_clock_of_the_api(
    there: Cluster, tmp_path: Path, apart_s: float
) -> None:
    """By its own, the job would be pending for hours at its first look, or its lease over when written."""
    clock = ServerClock(lambda: time.time() + apart_s)
    start = launcher(there, clock=clock, pending_s=1800, renew_s=0.05)
    with running(lambda: start.run(cluster_job(tmp_path, timeout_s=3600))) as coming:
        there.wait(lambda: runs(there) == 2 and watches(there))
        there.wait(lambda: 0 < lease_s(there) - time.time() < 300)
        (body,) = jobs(there)
        complete(body)
        there.nodes.end(f"{body['metadata']['name']}-master-0", 0)
    assert coming.result(0).completion.outputs == {"model": "abc"}


def test_a_janitor_whose_clock_is_wrong_keeps_a_job_that_is_looked_after(
    there: Cluster, tmp_path: Path
) -> None:
    made = manifests.make_manifest(cluster_job(tmp_path), "pytorchjob")
    until = datetime.now(UTC) + timedelta(seconds=180)
    made["metadata"]["annotations"][LEASE_UNTIL] = until.isoformat(timespec="seconds")
    there.put(made)
    (body,) = jobs(there)
    wrong = ServerClock(lambda: time.time() + HOURS_S)
    access, rules = api(there, clock=wrong), SweepRules(now=datetime.now(UTC) + timedelta(seconds=HOURS_S))
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
