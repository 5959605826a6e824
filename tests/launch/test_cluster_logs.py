"""The log of the pod of rank 0 reaches the step's own log: every line, once, whoever follows it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launching import api, cluster_job, complete, folder_of, jobs, launcher, running
from tests.launch.standin import Cluster, cluster
from trainwright.artifacts import Progress
from trainwright.launch import job_directory
from trainwright.launch.cluster.monitor import LogFollower
from trainwright.launch.job_directory import create_attempt

COUNT = "import time\nfor number in range({first}, {last}):\n    print('line', number, flush=True)\n"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as found:
        yield found


def pod(there: Cluster, script: str) -> str:
    """Run a pod of its own, and return its identity."""
    container = {"name": "pytorch", "image": "x", "command": ["python", "-c", script]}
    spec = {"containers": [container], "restartPolicy": "Never"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    return str(there.put({**body, "status": {"phase": "Pending"}})["metadata"]["uid"])


def lines(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]


@pytest.mark.covers("F23")
def test_whoever_follows_next_goes_on_where_the_last_one_stopped(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "gate"
    wait = f"import os\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    uid = pod(there, COUNT.format(first=0, last=50) + wait + COUNT.format(first=50, last=100))
    said = ""

    def passed_on() -> int:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said))

    with LogFollower(api(there), tmp_path, "a", uid):
        there.wait(lambda: passed_on() == 50)
    gate.touch()
    with LogFollower(api(there), tmp_path, "a", uid):
        there.wait(lambda: passed_on() >= 100)
    assert lines(said) == list(range(100))


def test_a_log_that_breaks_off_is_opened_again_where_it_stopped(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = pod(there, COUNT.format(first=0, last=30))
    there.faults.drop(resources=("pods",), verbs=("get",), times=1)
    said = ""

    def passed_on() -> int:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said))

    with LogFollower(api(there), tmp_path, "a", uid):
        there.wait(lambda: passed_on() >= 30)
    assert lines(said) == list(range(30))


def test_without_a_log_the_progress_is_told_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, processes=False) as there:
        there.nodes.plan(process=False, on_term=143)
        rules = [
            {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        ]
        token = there.account("runner", rules)
        job = cluster_job(tmp_path)
        with running(lambda: launcher(there, token=token).run(job)) as coming:
            there.wait(lambda: jobs(there))
            folder = folder_of(jobs(there)[0])
            Progress(
                step=300,
                total=1000,
                epoch=2,
                loss=0.25,
                samples_per_s=12_345.0,
                eta_s=70.0,
                time="2026-11-20T08:00:00+00:00",
                metrics={"gpu_use": 0.5},
            ).write(folder)
            said = ""

            def told() -> bool:
                nonlocal said
                said += capsys.readouterr().err
                return "step 300" in said

            there.wait(told)
            complete(jobs(there)[0])
            there.nodes.end(f"{job.name}-master-0", 0)
        assert coming.result(0).folder == folder
    line = "step 300 of 1,000 (30%), epoch 2, loss 0.2500, 12,345 samples/s, GPU 50%, 70 s left"
    assert said.splitlines().count(line) == 1


def test_a_prepared_document_names_the_attempt_it_is_for(tmp_path: Path) -> None:
    first = create_attempt(tmp_path)
    (first / "spec.json").write_text('{"attempt": "0001", "n": 1.5}')
    (first / "notes.txt").write_text("0001")
    fresh = job_directory.copy_attempt(first, job_directory.read_inputs(first))
    assert fresh.name == "0002"
    assert (fresh / "notes.txt").read_text() == "0001"
    assert '"attempt": "0002"' in (fresh / "spec.json").read_text()
