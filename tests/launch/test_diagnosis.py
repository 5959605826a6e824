"""What recorded jobs and pods of a real operator are taken for."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.launch import diagnosis

OBSERVED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "observed.json").read_text())

PHASES = {
    "success-static": "succeeded",
    "nan-exit": "failed",
    "oom-killed-never": "failed",
    "evicted-master-exit0": "succeeded",
    "operator-outage": "disputed",
    "image-pull": "pending",
    "unschedulable": "pending",
    "managed-by": "pending",
    "suspend-resume": "pending",
    "worker-hang": "running",
    "delete-foreground": "running",
}

FAILURES = {
    "nan-exit": ("InternalError", "pod nan-worker-0 ended with exit code 86 (Error)"),
    "user-exception-never": ("InternalError", "pod ue-worker-0 ended with exit code 1 (Error)"),
    "oom-killed-never": (
        "InputError",
        "pod oom-master-0 ended with exit code 137 (OOMKilled): it needed more memory than it was given",
    ),
    "torchrun-oom-child": (
        "InputError",
        "pod tx-worker-0 ended with exit code 1 (OOMKilled): it needed more memory than it was given",
    ),
    "evicted-api-never": (
        "PreemptedUnsaved",
        "pod ev-worker-0 was taken off its node (EvictionByEvictionAPI)",
    ),
    "evicted-master-exit0": (
        "PreemptedUnsaved",
        "pod mz-master-0 was taken off its node (EvictionByEvictionAPI)",
    ),
    "operator-outage": ("InternalError", "pod both-worker-1 ended with exit code 1 (Error)"),
}

WAITING = {
    "image-pull": ("pod ip-master-0: ErrImagePull: failed to pull and unpack image", True),
    "config-error": ('pod ce-master-0: CreateContainerConfigError: secret "absent" not found', True),
    "unschedulable": (
        "pod un-master-0: Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu",
        False,
    ),
}


@pytest.mark.parametrize(("scenario", "expected"), PHASES.items())
def test_the_phase_of_a_recorded_job(scenario: str, expected: str) -> None:
    assert diagnosis.phase(OBSERVED[scenario]["job"]) == expected


@pytest.mark.parametrize(("scenario", "expected"), FAILURES.items())
def test_the_first_failure_of_a_recorded_job(scenario: str, expected: tuple[str, str]) -> None:
    failure = diagnosis.first_failure(OBSERVED[scenario]["pods"])
    assert failure is not None
    error = failure.to_error()
    assert (type(error).__name__, error.what) == expected


@pytest.mark.parametrize("scenario", ["success-static", "worker-hang", "image-pull", "unschedulable"])
def test_pods_that_have_not_failed_are_not_blamed(scenario: str) -> None:
    assert diagnosis.first_failure(OBSERVED[scenario]["pods"]) is None


@pytest.mark.parametrize(("scenario", "expected"), WAITING.items())
def test_why_a_recorded_pod_does_not_start(scenario: str, expected: tuple[str, bool]) -> None:
    found = diagnosis.waiting(OBSERVED[scenario]["pods"])
    assert found is not None
    assert str(found).startswith(expected[0])
    assert found.broken is expected[1]


@pytest.mark.parametrize("scenario", ["success-static", "worker-hang", "nan-exit", "delete-foreground"])
def test_pods_that_run_or_wait_for_each_other_are_not_stuck(scenario: str) -> None:
    assert diagnosis.waiting(OBSERVED[scenario]["pods"]) is None


def test_an_exit_code_of_ours_is_the_error_it_stands_for() -> None:
    ended = {"exitCode": 30, "reason": "Error", "finishedAt": "2026-11-20T08:00:00Z"}
    pod = {
        "metadata": {"name": "tw-train-0-master-0"},
        "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
    }
    failure = diagnosis.first_failure([pod])
    assert failure is not None
    assert type(failure.to_error()).__name__ == "Diverged"
