"""Identity of jobs, folders of attempts, and the choice of a launcher."""

import dataclasses
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import job
from tests.launch.test_manifests import FULL, asked
from trainwright.errors import Diverged, InputError, TrainwrightError, TransientError
from trainwright.experiment.resources import JobPlacement, Resources, RetryBudget, VolumeMount
from trainwright.launch import kubernetes_names, launcher, manifests
from trainwright.launch.agent.rank_errors import RankError, first_error
from trainwright.launch.job import placement_identity
from trainwright.launch.job_directory import Completion, completed, publish
from trainwright.launch.local import LocalLauncher


def test_a_job_has_the_same_name_at_every_attempt(tmp_path: Path) -> None:
    first = job(tmp_path, "")
    second = dataclasses.replace(first, folder=tmp_path / "attempt-2")
    assert (first.name, first.digest) == (second.name, second.digest)
    assert first.arguments != second.arguments


@pytest.mark.parametrize("change", [{"run": "other"}, {"image": "b"}, {"specification": "x"}, {"nodes": 2}])
def test_anything_else_gives_a_job_another_name(tmp_path: Path, change: dict[str, object]) -> None:
    first = job(tmp_path, "")
    assert dataclasses.replace(first, **change).name != first.name


@pytest.mark.covers("B53")
@pytest.mark.parametrize("task", ["train", "Train Flights 2013!", "9", "", "x" * 200, "-a-"])
def test_every_name_fits_the_pods_that_are_called_after_it(tmp_path: Path, task: str) -> None:
    name = job(tmp_path, "", task=task).name
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-worker-9999") <= 63


@pytest.mark.covers("B50")
def test_everything_wrong_with_the_size_of_a_job_is_said_at_once() -> None:
    wrong = {"nodes": 0, "processes": -1, "cpu": 0, "memory_gib": math.nan, "grace_s": 0, "restarts": -1}
    with pytest.raises(InputError) as caught:
        Resources.parse(wrong, "resources")
    for name, value in wrong.items():
        assert re.search(rf"{name}: .*; found {value}", caught.value.what)


@pytest.mark.covers("B50")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": 3, "placement": {"min_nodes": 4}}, "min_nodes 4 is above nodes 3"),
        ({"memory_gib": 8, "placement": {"shared_memory_gib": 8}}, "8 must be below memory_gib 8"),
        ({"gpus": 2, "processes": 1}, "processes 1 must equal gpus 2"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Resources.parse(wrong, "resources")


def test_a_folder_that_cannot_be_copied_whole_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(shutil.Error, match="No such file"):
        publish(tmp_path / "model", tmp_path / "out" / "model", keep=True)
    assert list((tmp_path / "out").iterdir()) == []


def test_the_error_of_a_rank_that_outlives_its_attempt_brings_no_folder_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    RankError.of(Diverged("the loss is not finite"), 0).save(tmp_path / "removed")
    assert list(tmp_path.iterdir()) == []
    assert "rank 0: the loss is not finite (could not be noted: " in capfd.readouterr().err


def test_a_published_folder_replaces_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    for name, text in (("old", "old"), ("new", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / text).touch()
    publish(tmp_path / "old", tmp_path / "out" / "model")
    publish(tmp_path / "new", tmp_path / "out" / "model")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "out" / "model").iterdir()] == ["new"]


def test_a_folder_is_published_to_another_disk_too(tmp_path: Path) -> None:
    other = Path("/dev/shm")  # noqa: S108 - the other disk that most machines have
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one disk only")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    with tempfile.TemporaryDirectory(dir=other, prefix="trainwright-test-") as folder:
        publish(tmp_path / "model", Path(folder) / "model")
        assert (Path(folder) / "model" / "weights").read_text() == "w"


def test_auto_is_a_cluster_where_there_is_a_service_account(tmp_path: Path) -> None:
    token = tmp_path / "token"
    assert launcher.resolve_launcher("auto", token) == "local"
    assert isinstance(launcher.create_launcher("local"), LocalLauncher)
    token.touch()
    assert launcher.resolve_launcher("auto", token) == "pytorchjob"
    assert launcher.resolve_launcher("local", token) == "local"


def test_an_unknown_launcher_is_named_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match="'auto', 'local', 'pytorchjob' or 'trainjob'; found 'slurm'"):
        Resources.parse({"launcher": "slurm"}, "resources")


def test_of_two_refusals_the_earlier_is_the_cause(tmp_path: Path) -> None:
    for rank in (1, 0):
        RankError.of(Diverged(f"rank {rank} saw it"), rank).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    assert first.what == "rank 1 saw it"


def test_a_ranks_own_word_is_not_overwritten_by_its_agent(tmp_path: Path) -> None:
    RankError.of(Diverged("not finite"), 0).save(tmp_path)
    RankError.of(TransientError("killed"), 0, witnessed=True).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    assert isinstance(first.to_error(), Diverged)


@pytest.mark.parametrize("kind", TrainwrightError.__subclasses__())
def test_every_error_of_ours_comes_back_as_itself(tmp_path: Path, kind: type[TrainwrightError]) -> None:
    RankError.of(kind("what", where="there", hint="next"), 3).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    error = first.to_error()
    assert type(error) is kind
    assert (error.what, error.where, error.hint) == ("what", "rank 3, there", "next")


def test_the_marker_of_another_attempt_does_not_count(tmp_path: Path) -> None:
    assert completed(tmp_path, "attempt-1") is None
    Completion(attempt="attempt-0", outputs={}).write(tmp_path)
    assert completed(tmp_path, "attempt-1") is None
    assert completed(tmp_path, "attempt-0") is not None


def test_no_error_file_is_no_error(tmp_path: Path) -> None:
    assert first_error(tmp_path) is None


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
    second = dataclasses.replace(first, placement=FULL.model_copy(update=change), budget=RetryBudget(user=3))
    assert first.placement != second.placement
    assert (first.name, first.digest) == (second.name, second.digest)


@pytest.mark.parametrize(
    "change",
    [
        {"accelerator": "NVIDIA-A100-SXM4-80GB"},
        {"service_account": "another"},
        {"shared_memory_gib": 2},
        {"disk_gib": 21},
        {"volumes": (VolumeMount(path="/data", claim="data"),)},
        {"env_from_secrets": ()},
        {"min_nodes": 1},
        {"devices": {"rdma/ib": 2}},
        {"ipc_lock": True},
        {"runtime": "another"},
    ],
)
def test_what_runs_makes_another_job(change: dict[str, Any]) -> None:
    first = asked(placement=FULL)
    second = dataclasses.replace(first, placement=FULL.model_copy(update=change))
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
    decides = {*placement_identity(JobPlacement()), "runtime_kind"}
    assert moves | decides == JobPlacement.model_fields.keys()
    assert not moves & decides


@pytest.mark.covers("B53")
@pytest.mark.parametrize("task", ["train", "x" * 200, "9", "-a-", "Train Flights 2013!"])
@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_pods_and_labels_that_are_called_after_a_job_fit(task: str, kind: str) -> None:
    body = manifests.make_manifest(asked(task=task), kind)
    name = body["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert max(len(f"{name}-worker-9999"), len(f"{name}-node-0-9999-abcde")) <= 63
    assert all(kubernetes_names.is_label(value) for value in body["metadata"]["labels"].values())


@pytest.mark.covers("B52")
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


@pytest.mark.covers("B51")
@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "-1", "1GB", "1,5", "0x1"])
def test_what_is_no_amount_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount"):
        kubernetes_names.amount_of(text)
