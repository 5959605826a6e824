"""What ``benchmarks/launcher_watch.py`` measures: ``python -m benchmarks.steps.launcher_watch WHAT ...``."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kubernetes import client as k8s

from tests.launch.launching import cluster_job, complete, folder_of, launcher
from tests.launch.programs import ROOT
from tests.launch.standin import Cluster, cluster
from tests.launch.standin.clusters import ADMIN
from trainwright.launch import local
from trainwright.launch.cluster.monitor import ClusterSettings
from trainwright.launch.job import Job

_TRAINING = ROOT / "tests" / "cluster" / "training.py"
_SPREAD_S, _POLL_S, _SETTLED_S = 20.0, 15.0, 40.0


class Elsewhere:
    """A cluster that runs in another process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def api_client(self, token: str = ADMIN) -> k8s.ApiClient:
        """Return a client of the server."""
        settings = k8s.Configuration()
        settings.host, settings.retries = self._url, False
        settings.api_key = {"authorization": f"Bearer {token}"}
        return k8s.ApiClient(settings)


def start(folder: Path) -> dict[str, float]:
    """Return what a launcher adds from its start to "running", beyond the API's and the pods' own time."""
    said = io.StringIO()
    with cluster(folder, processes=False) as there:
        there.nodes.plan(process=False, on_term=143)
        job, begun = cluster_job(folder), time.monotonic()
        with contextlib.redirect_stderr(said):
            thread = threading.Thread(
                target=lambda: launcher(there, tick_s=ClusterSettings.tick_s).run(job), daemon=True
            )
            thread.start()
            there.wait(lambda: _running(there) == job.nodes)
            ran = time.monotonic()
            there.wait(lambda: "running, 2 of 2 pods" in said.getvalue())
            told = time.monotonic()
            asked = next(call.at for call in there.calls if call.verb == "create")
            complete(there.objects("PyTorchJob")[0])
            there.nodes.end(f"{job.name}-master-0", 0)
            thread.join(30)
    return {"added_s": asked - begun + told - ran}


def idle(folder: Path, seconds: float) -> dict[str, float]:
    """Return the memory and the share of a core of a launcher's process while its job runs."""
    with cluster(folder, processes=False) as there:
        there.nodes.plan(process=False, on_term=143)
        with _process("follow", there.url, folder) as process:
            there.wait(lambda: _running(there) == 2)
            time.sleep(5)
            before = _spent_s(process.pid)
            time.sleep(seconds)
            share = (_spent_s(process.pid) - before) / seconds
            return {"memory_mib": _peak_mib(process.pid), "cpu": share}


def many(folder: Path, count: int, *, how: str = "followed") -> dict[str, float]:
    """Return how many ends of so many jobs at once were missed, and how late the latest was known."""
    chance = random.Random(7)  # noqa: S311
    with cluster(folder, operator=False) as there, _process(how, there.url, folder, count) as process:
        there.wait(lambda: len(there.objects("PyTorchJob")) == count, 120)
        time.sleep(5)
        ended: dict[str, float] = {}
        bodies = there.objects("PyTorchJob")
        moments = sorted((chance.uniform(0, _SPREAD_S), index) for index in range(count))
        begun, deletions = time.monotonic(), []
        for moment, index in moments:
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            body = bodies[index]
            complete(body)
            ended[body["metadata"]["name"]] = time.monotonic()
            there.condition(body["metadata"]["name"], "Succeeded")
            if index % 2:
                deletions.append(threading.Timer(1.0, _delete, (there, body["metadata"]["name"])))
                deletions[-1].start()
        stdout = process.stdout
        found: dict[str, float | None] = json.loads(stdout.readline()) if stdout else {}
    late = [known - ended[name] for name, known in found.items() if known is not None]
    return {"missed": sum(known is None for known in found.values()), "latest_s": max(late, default=0.0)}


def kill(folder: Path) -> dict[str, float]:
    """Return the seconds from the kill of a worker's pod to the next step of the training."""
    state = folder / "home" / "state.json"
    with cluster(folder, python=local.sibling_python("torch"), env={"PYTHONPATH": str(ROOT)}) as there:
        program = (str(_TRAINING), "{folder}", "talks", "1000000", "0.05")
        job = cluster_job(folder, program=program, timeout_s=600, grace_s=5)
        thread = threading.Thread(
            target=lambda: launcher(there, tick_s=ClusterSettings.tick_s).run(job), daemon=True
        )
        thread.start()
        there.wait(lambda: _step(state) > 5, 120)
        there.nodes.kill(f"{job.name}-worker-0")
        killed = time.monotonic()
        time.sleep(0.5)
        stood = _step(state)
        there.wait(
            lambda: _step(state) > stood and folder_of(there.objects("PyTorchJob")[0]).name == "0002", 120
        )
        seconds = time.monotonic() - killed
        complete(there.objects("PyTorchJob")[0])
        _delete(there, job.name)
        thread.join(60)
    return {"seconds": seconds}


def stop(folder: Path) -> dict[str, float]:
    """Return the seconds from SIGTERM to a launcher until the API gets the deletion of its job."""
    with cluster(folder, processes=False) as there:
        there.nodes.plan(process=False, on_term=143)
        with _process("follow", there.url, folder) as process:
            there.wait(lambda: _running(there) == 2)
            time.sleep(5)
            told = time.monotonic()
            process.terminate()
            there.wait(lambda: any(call.verb == "delete" for call in there.calls))
            return {"seconds": next(call.at for call in there.calls if call.verb == "delete") - told}


def follow(url: str, root: Path) -> None:
    """Be the process of a launcher."""
    launcher(Elsewhere(url), tick_s=ClusterSettings.tick_s, renew_s=60.0).run(cluster_job(root))  # type: ignore[arg-type]


def followed(url: str, root: Path, count: int) -> None:
    """Follow so many jobs at once; print when each end was known."""
    there = Elsewhere(url)
    _all(root, count, lambda job: launcher(there, tick_s=2.0, outage_s=60).run(job))  # type: ignore[arg-type]


def polled(url: str, root: Path, count: int) -> None:
    """Look at so many jobs now and then, as kubeflow-training's ``wait_for_job_conditions`` does."""
    from trainwright.launch import manifests

    jobs = k8s.CustomObjectsApi(Elsewhere(url).api_client())
    where = ("kubeflow.org", "v1", "team", "pytorchjobs")

    def poll(job: Job) -> None:
        jobs.create_namespaced_custom_object(*where, manifests.make_manifest(job, "pytorchjob", None))
        while True:
            found = jobs.get_namespaced_custom_object(*where, job.name)
            told = (found.get("status") or {}).get("conditions") or []
            if any(entry["type"] == "Succeeded" for entry in told):
                return
            time.sleep(_POLL_S)

    _all(root, count, poll)


def _all(root: Path, count: int, run: Callable[[Job], object]) -> None:
    known: dict[str, float | None] = {}

    def one(job: Job) -> None:
        try:
            run(job)
            known[job.name] = time.monotonic()
        except Exception as error:
            sys.stderr.write(f"{job.name}: {error!r:.200}\n")
            known[job.name] = None

    jobs = [cluster_job(root / str(number), run=str(number), mount=str(root)) for number in range(count)]
    threads = [threading.Thread(target=one, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SPREAD_S + _SETTLED_S + 60)
    print(json.dumps({job.name: known.get(job.name) for job in jobs}), flush=True)


@contextlib.contextmanager
def _process(what: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "benchmarks.steps.launcher_watch", what, *map(str, arguments)]
    quiet: Any = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _running(there: Cluster) -> int:
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in there.objects("Pod"))


def _delete(there: Cluster, name: str) -> None:
    k8s.CustomObjectsApi(there.api_client()).delete_namespaced_custom_object(
        "kubeflow.org", "v1", "team", "pytorchjobs", name
    )


def _step(state: Path) -> int:
    try:
        return int(json.loads(state.read_text())["step"])
    except (OSError, ValueError):
        return 0


def _spent_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def main(what: str, *given: str) -> None:
    """Run a measurement or one of its processes."""
    does: dict[str, Callable[[], dict[str, float] | None]] = {
        "start": lambda: start(Path(given[0])),
        "idle": lambda: idle(Path(given[0]), float(given[1])),
        "many": lambda: many(Path(given[0]), int(given[1])),
        "peer": lambda: many(Path(given[0]), int(given[1]), how="polled"),
        "kill": lambda: kill(Path(given[0])),
        "stop": lambda: stop(Path(given[0])),
        "follow": lambda: follow(given[0], Path(given[1])),
        "followed": lambda: followed(given[0], Path(given[1]), int(given[2])),
        "polled": lambda: polled(given[0], Path(given[1]), int(given[2])),
    }
    if (found := does[what]()) is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
