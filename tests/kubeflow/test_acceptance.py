"""What a team checks on its own Kubeflow before it relies on it: ``make test-kubeflow HOST=…``."""

import re
from typing import Any

import pytest
import yaml

from tests.kubeflow.installation import Installation, Outcome, check
from tests.kubeflow.pipeline import ROWS


@pytest.fixture(scope="session")
def failed(kubeflow: Installation) -> Outcome:
    return kubeflow.submit("fails", "--param", "missing=-nowhere")


def policy(findings: dict[str, dict[str, Any]]) -> str:
    """Return the installation's retry policy, or skip: without it nothing can be expected."""
    found = re.match("OnError|OnFailure|Always", findings.get("retries", {}).get("text", ""))
    if found is None:
        pytest.skip("doctor may not read the retry policy: a kubeconfig is needed")
    return found[0]


def test_doctor_misses_nothing(findings: dict[str, dict[str, Any]]) -> None:
    missing = {name: one["text"] for name, one in findings.items() if one["state"] == "miss"}
    check("what doctor misses", {}, missing)


def test_a_run_ends_well_and_its_name_is_for_people(kubeflow: Installation, first: Outcome) -> None:
    check(f"exit code of submit --wait {first.errors}", 0, first.code)
    steps = first.last("run_finished")["steps"]
    expected = dict.fromkeys(("sample", "resolve", "ingest", "describes", "summarize"), "SUCCEEDED")
    check("state of each step", expected, steps)
    api, run_id = kubeflow.api, first.last("run_submitted")["run_id"]
    run = api.read("reading the run", api.runs.run_service_get_run, run_id)
    pattern = rf"{kubeflow.name} \d{{4}}-\d\d-\d\d \d\d:\d\d [0-9a-f]{{6}}"
    check(f"name {run.display_name!r} is NAME DATE KEY", True, bool(re.fullmatch(pattern, run.display_name)))
    check("first words of its description", "Acceptance", (run.description or "").split(",")[0].split(".")[0])


def test_the_same_again_is_taken_from_the_cache(kubeflow: Installation, first: Outcome) -> None:
    assert first.code == 0
    again = kubeflow.submit("again")
    check("exit code", 0, again.code)
    cached = {one["name"] for one in again.events if one.get("event") == "step_changed" and one["cached"]}
    check("steps from the cache", {"sample", "ingest", "describes"}, cached)


def test_the_metadata_of_a_dataset_names_its_version_rows_and_columns(
    kubeflow: Installation, first: Outcome
) -> None:
    assert first.code == 0
    seen = kubeflow.metadata(first.last("run_submitted")["run_id"])["describes.snapshot"]
    check("rows and columns of the snapshot", (ROWS, 5), (seen.get("rows"), seen.get("columns")))
    check("its version is a digest", True, bool(re.fullmatch("[0-9a-f]{64}", str(seen.get("version")))))
    check("its name", f"snapshot {str(seen.get('version'))[:12]}", seen.get("display_name"))


def test_a_step_with_bad_input_ends_with_its_code_and_the_exit_handler_runs(
    kubeflow: Installation, failed: Outcome, findings: dict[str, dict[str, Any]]
) -> None:
    finished = failed.last("run_finished")
    seen = (failed.code, finished.get("failed_step"))
    check("exit code, and the step that failed", (10, "resolve"), seen)
    check("state of the exit handler", "SUCCEEDED", finished["steps"].get("summarize"))
    tried = [
        name
        for name, state in kubeflow.tasks(finished["run_id"])
        if re.fullmatch(r"executor\(\d+\)", name) and state == "FAILED"
    ]
    attempts = {"OnError": 1, "OnFailure": 3, "Always": 3}[policy(findings)]
    check(f"attempts under {policy(findings)}", attempts, len(tried))


def test_the_code_of_a_failed_step_outlives_its_pod(
    kubeflow: Installation, failed: Outcome, findings: dict[str, dict[str, Any]]
) -> None:
    pods = kubeflow.pods()
    if pods is None or findings.get("logs", {}).get("state") != "ok":
        pytest.skip("it needs a kubeconfig, and an installation that archives logs")
    run_id = failed.last("run_submitted")["run_id"]
    for pod in kubeflow.executors(pods, run_id):
        pods.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace)
    kubeflow.until("pods are gone", lambda: not kubeflow.executors(pods, run_id), 120)
    check("exit code of status", 10, kubeflow.run("status", run_id).code)


def test_a_lost_pod_is_replaced(kubeflow: Installation, findings: dict[str, dict[str, Any]]) -> None:
    pods = kubeflow.pods()
    if pods is None:
        pytest.skip("it needs a kubeconfig")
    if policy(findings) == "OnFailure":
        pytest.skip("this installation does not retry lost pods: OnFailure")
    begun = kubeflow.submit("lost", "--param", "wait_s=90", "--param", "count=2001", wait=False)
    run_id = begun.last("run_submitted")["run_id"]

    def running() -> Any:
        if ("executor(0)", "RUNNING") not in kubeflow.tasks(run_id):
            return None
        listed = kubeflow.executors(pods, run_id)
        return next((pod for pod in listed if pod.status.phase == "Running"), None)

    pod = kubeflow.until("a step's pod runs", running, kubeflow.wait_s / 2)
    # Without a grace period, as the pod of a lost node is: with one, Argo may see the container end with 143
    # before the pod is gone, and then it calls the step failed, which OnError does not retry.
    pods.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)

    def replaced() -> Any:
        # Argo 4.0 makes the pod again under its name, or as a further attempt: executor(1).
        return {one.metadata.uid for one in kubeflow.executors(pods, run_id)} - {pod.metadata.uid}

    check("pods in its place", 1, len(kubeflow.until("another pod", replaced, kubeflow.wait_s / 2)))
    check("exit code of the run whose pod was deleted", 0, kubeflow.run("status", run_id, "--wait").code)


def test_a_terminated_run_ends_with_41(kubeflow: Installation) -> None:
    begun = kubeflow.submit("stopped", "--param", "wait_s=900", "--param", "count=2002", wait=False)
    run_id = begun.last("run_submitted")["run_id"]
    kubeflow.until(
        "sample runs", lambda: ("sample", "RUNNING") in kubeflow.tasks(run_id), kubeflow.wait_s / 2
    )
    kubeflow.run("terminate", run_id)
    check("exit code of status --wait", 41, kubeflow.run("status", run_id, "--wait").code)


def test_a_schedule_fires_and_a_second_apply_changes_nothing(kubeflow: Installation) -> None:
    schedule = {"pipeline": str(kubeflow.package), "interval_s": 60, "experiment": kubeflow.name}
    file = {"schema_version": 1, "owner": kubeflow.name, "schedules": {"often": schedule}}
    path = kubeflow.folder / "schedules.yaml"
    path.write_text(yaml.safe_dump(file))
    applied = kubeflow.run("schedules", "apply", str(path))
    check(f"exit code of apply {applied.errors}", 0, applied.code)
    again = kubeflow.run("schedules", "apply", str(path))
    check("second apply", ["keep"], [one["do"] for one in again.events if one.get("event") == "planned"])
    run = kubeflow.until("the schedule fires", kubeflow.fired, 300)
    path.write_text(yaml.safe_dump(file | {"schedules": {"often": schedule | {"enabled": False}}}))
    check("exit code of switching it off", 0, kubeflow.run("schedules", "apply", str(path)).code)
    check("exit code of the run it started", 0, kubeflow.run("status", run.run_id, "--wait").code)
