"""What makes another job, and what only moves it; names that fit everything that is called after them."""

import dataclasses
import re
from typing import Any

import pytest

from tests.launch.test_manifests import FULL, asked
from trainwright.launch import kubernetes_names, manifests
from trainwright.launch.job import Budget
from trainwright.launch.placement import Placement, Volume


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "another"},
        {"workload_priority": "another"},
        {"priority_class": "another"},
        {"max_exec_time_s": 1},
        {"tolerations": ()},
        {"node_selector": {}},
        {"affinity": {}},
        {"spot": False},
        {"labels": {}},
        {"image_pull_secrets": ()},
    ],
)
def test_where_and_when_a_job_runs_does_not_make_another_one(change: dict[str, Any]) -> None:
    first = asked(placement=FULL)
    second = dataclasses.replace(first, placement=dataclasses.replace(FULL, **change), budget=Budget(user=3))
    assert first.placement != second.placement
    assert (first.name, first.digest) == (second.name, second.digest)


@pytest.mark.parametrize(
    "change",
    [
        {"accelerator": "NVIDIA-A100-SXM4-80GB"},
        {"service_account": "another"},
        {"shared_memory_gib": 2},
        {"disk_gib": 21},
        {"volumes": (Volume(path="/data", claim="data"),)},
        {"env_from_secrets": ()},
        {"min_nodes": 1},
        {"devices": {"rdma/ib": 2}},
        {"ipc_lock": True},
        {"runtime": "another"},
    ],
)
def test_what_runs_makes_another_job(change: dict[str, Any]) -> None:
    first = asked(placement=FULL)
    second = dataclasses.replace(first, placement=dataclasses.replace(FULL, **change))
    assert first.name != second.name


def test_every_part_of_a_placement_was_thought_of() -> None:
    """A new field has to be put on one side or the other."""
    moves = {
        "queue",
        "workload_priority",
        "priority_class",
        "max_exec_time_s",
        "tolerations",
        "node_selector",
        "scheduler",
        "required_topology",
        "preferred_topology",
    }
    moves |= {"affinity", "spot", "labels", "image_pull_secrets", "accelerator_label", "spot_label"}
    decides = {*Placement().decisive, "runtime_kind"}
    assert moves | decides == {entry.name for entry in dataclasses.fields(Placement)}
    assert not moves & decides


@pytest.mark.parametrize("task", ["train", "x" * 200, "9", "-a-", "Train Flights 2013!"])
@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_pods_and_labels_that_are_called_after_a_job_fit(task: str, kind: str) -> None:
    body = manifests.make_manifest(asked(task=task), kind)
    name = body["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert max(len(f"{name}-worker-9999"), len(f"{name}-node-0-9999-abcde")) <= 63
    assert all(kubernetes_names.is_label(value) for value in body["metadata"]["labels"].values())


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("python", True),
        ("registry:5000/a/b:1.0", True),
        ("a.b/c@sha256:" + "0" * 64, True),
        ("a/b:tag@sha256:" + "f" * 64, True),
        ("gcr.io/a__b/c-d", True),
        ("localhost/x", True),
        ("", False),
        ("a/B", False),
        ("a//b", False),
        ("a:b:c", False),
        ("a@sha256:xyz", False),
        ("http://a/b", False),
        ("a b", False),
    ],
)
def test_a_reference_to_an_image_is_known_by_its_form(text: str, holds: bool) -> None:
    assert kubernetes_names.is_image(text) is holds


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("500m", 0.5),
        ("1.5Gi", 1.5 * 2**30),
        ("2k", 2000),
        ("1e3", 1000),
        ("3E", 3e18),
        ("1Ei", 2**60),
    ],
)
def test_an_amount_is_the_number_that_it_stands_for(text: str, amount: float) -> None:
    assert kubernetes_names.amount_of(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "-1", "1GB", "1,5", "0x1"])
def test_what_is_no_amount_is_none(text: str) -> None:
    assert not kubernetes_names.is_quantity(text)
    with pytest.raises(ValueError, match="is not an amount"):
        kubernetes_names.amount_of(text)
