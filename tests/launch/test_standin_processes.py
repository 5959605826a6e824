"""Pods of the stand-in really run: they are killed, write logs, and leave nothing behind.

That they train together, and go on when one is lost, is in ``test_cluster_scenarios.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.programs import alive, gone
from tests.launch.standin import Cluster, cluster
from tests.launch.standin.calling import refused
from tests.launch.standin.jobs import holding, pytorchjob

DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)"
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, backoff_s=0.1) as found:
        yield found


def program(*command: str, **more: Any) -> dict[str, Any]:
    return {"command": ["python", *command], **more}


def log(running: Cluster, pod: str = "a-master-0", **how: Any) -> str:
    found: str = k8s.CoreV1Api(running.api_client()).read_namespaced_pod_log(pod, "team", **how)
    return found


def test_a_pod_that_does_not_listen_is_killed_with_all_that_it_started(running: Cluster) -> None:
    child = f"[sys.executable, '-c', {DEAF!r}], start_new_session=True"
    starts = f"import subprocess, sys; print(subprocess.Popen({child}).pid)"
    running.put(pytorchjob("Master", container=program("-uc", f"{starts}\n{DEAF}")))
    running.wait(lambda: len(log_if_any(running)) > 1)
    pids = [running.nodes.pid("a-master-0"), int(log(running).split()[0])]
    assert all(alive(pid) for pid in pids)
    k8s.CoreV1Api(running.api_client()).delete_namespaced_pod("a-master-0", "team")
    running.wait(lambda: not running.objects("Pod"))
    assert gone(pids, 5)
    told = [event["reason"] for event in running.objects("Event") if event["involvedObject"]["kind"] == "Pod"]
    assert "Killing" in told


def log_if_any(running: Cluster) -> list[str]:
    try:
        return [word for word in log(running).split() if word]
    except k8s.ApiException:
        return []


def test_a_log_is_read_as_the_recorded_api_gives_it(running: Cluster) -> None:
    running.nodes.plan("b-master-0", waits="ErrImagePull")
    for name, code in (("a", "print('one'); print('two'); import time; time.sleep(60)"), ("b", "")):
        running.put(pytorchjob("Master", name=name, container=program("-c", code)))
    running.wait(lambda: len(log_if_any(running)) == 2)
    assert log(running) == "one\ntwo\n"
    assert log(running, tail_lines=1) == "two\n"
    assert log(running, limit_bytes=2) == "on"
    stamp, _, text = log(running, timestamps=True).splitlines()[1].partition(" ")
    assert (stamp[10], stamp[-1], text) == ("T", "Z", "two")
    core = k8s.CoreV1Api(running.api_client())
    for pod, how, said in (
        ("a-master-0", {"container": "nope"}, "container nope is not valid for pod a-master-0"),
        (
            "a-master-0",
            {"previous": True},
            'previous terminated container "pytorch" in pod "a-master-0" not found',
        ),
        ("b-master-0", {}, "is waiting to start: image can't be pulled"),
    ):
        error = refused(core.read_namespaced_pod_log, pod, "team", **how)
        assert (error.status, said in error.body.replace('\\"', '"')) == (400, True)
    assert refused(core.read_namespaced_pod_log, "c", "team").status == 404


def test_a_log_is_followed_to_its_end_over_the_end_of_the_container(running: Cluster) -> None:
    wait = "import time\nfor i in range(5): print('line', i); time.sleep(0.05)"
    running.put(pytorchjob("Master", container=program("-uc", wait)))
    running.wait(lambda: log_if_any(running))
    answer = k8s.CoreV1Api(running.api_client()).read_namespaced_pod_log(
        "a-master-0", "team", follow=True, _preload_content=False
    )
    assert answer.data.decode().splitlines() == [f"line {index}" for index in range(5)]


def test_a_container_is_started_again_and_its_last_log_is_kept(running: Cluster, tmp_path: Path) -> None:
    fails = f"from pathlib import Path\np = Path({str(tmp_path / 'x')!r})\nprint(p.exists())\n"
    fails += "if not p.exists():\n  p.touch(); raise SystemExit(3)"
    running.put(pytorchjob("Master", policy="OnFailure", container=program("-c", fails)))
    running.wait(lambda: "Succeeded" in holding(running))
    assert (log(running), log(running, previous=True)) == ("True\n", "False\n")
    told = running.objects("Pod")[0]["status"]["containerStatuses"][0]
    assert (told["restartCount"], told["lastState"]["terminated"]["exitCode"]) == (1, 3)


def test_memory_that_is_used_up_is_told_from_other_kills(running: Cluster) -> None:
    running.put(pytorchjob("Worker", "Worker", container=program("-c", DEAF)))
    running.wait(lambda: "Running" in holding(running))
    running.settle()
    running.nodes.kill("a-worker-0", oom=True)
    running.nodes.signal("a-worker-1")
    running.wait(lambda: {pod["status"]["phase"] for pod in running.objects("Pod")} == {"Failed"})
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in running.objects("Pod")]
    assert [(end["exitCode"], end["reason"]) for end in ends] == [(137, "OOMKilled"), (137, "Error")]


def test_nothing_runs_on_when_the_cluster_is_gone(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        running.put(pytorchjob("Master", container=program("-c", DEAF)))
        running.wait(lambda: "Running" in holding(running))
        pid = running.nodes.pid("a-master-0")
    assert not alive(pid)
