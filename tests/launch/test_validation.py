"""Validation of jobs: the typed models first, then a dry run on the server."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import api, cluster_job, complete, jobs, launcher, running
from tests.launch.standin import Cluster, Refused, cluster
from tests.launch.test_manifests import asked
from trainwright.errors import InputError
from trainwright.launch import manifests
from trainwright.launch.failure import Failure
from trainwright.launch.placement import Placement, SecretVariable, Toleration, Volume

DATA = Path(__file__).parent / "data" / "standin" / "admission.json.gz"
RECORDED = {entry["case"]: entry for entry in json.loads(gzip.decompress(DATA.read_bytes()))}

BY_OTHERS = ("namespace", "created", "409", "generateName", "update", "403", "404", "401", "list", "label")
"""How recordings begin that are not about the content of a job."""

REJECTED = [
    case
    for case, entry in RECORDED.items()
    if isinstance(entry.get("body"), dict)
    and "spec" in entry["body"]
    and not case.startswith((*BY_OTHERS, "metadata.namespace", "method", "unsupported"))
    and entry["code"] in (400, 403, 422)
]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def test_enough_rejections_are_recorded() -> None:
    assert len(REJECTED) >= 15
    assert {RECORDED[case]["code"] for case in REJECTED} == {400, 403, 422}


@pytest.mark.parametrize("case", REJECTED)
def test_dry_run_of_an_invalid_job_is_an_input_error_and_creates_nothing(there: Cluster, case: str) -> None:
    with pytest.raises(InputError):
        api(there).validate(RECORDED[case]["body"])
    assert jobs(there) == []


def test_dry_run_of_a_valid_job_creates_nothing(there: Cluster, tmp_path: Path) -> None:
    body = manifests.make_manifest(cluster_job(tmp_path), "pytorchjob")
    api(there).validate(body)
    assert jobs(there) == []
    assert api(there).create(body)["metadata"]["uid"] == jobs(there)[0]["metadata"]["uid"]


def test_launcher_ends_with_10_and_names_the_field_when_the_dry_run_fails(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path, placement=Placement(affinity={"nodeAfinity": {}}))
    with pytest.raises(InputError, match=r'unknown field "spec\.\S+\.affinity\.nodeAfinity"') as caught:
        launcher(there).run(job)
    assert caught.value.code == 10
    assert [(call.verb, call.code) for call in there.calls] == [("create", 400)]
    assert jobs(there) == []
    failure = Failure.read(job.folder)
    assert (failure.kind, failure.code) == ("CONFIG", 10)
    assert "nodeAfinity" in failure.what


def test_job_is_created_where_a_webhook_does_not_support_dry_runs(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    said = 'admission webhook "quota.example.com" does not support dry run'
    there.faults.refuse(Refused(400, "BadRequest", said), verbs=("create",))
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: jobs(there))
        complete(jobs(there)[0])
        there.condition(job.name, "Succeeded")
    assert coming.result(0).folder == job.folder
    assert [call.code for call in there.calls if call.verb == "create"] == [400, 201]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"placement": Placement(volumes=(Volume(path="/shared", claim="other"),))}, "has /shared twice"),
        ({"image": "Two Words"}, "'Two Words' is not a reference to an image"),
        ({"image": "a/b@sha256:12"}, "is not a reference to an image"),
        ({"claim": "c" * 254}, "is not the name of a PersistentVolumeClaim"),
        ({"claim": ""}, "is not on a mounted claim"),
    ],
)
def test_manifest_is_refused_for_what_no_server_rejects(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        manifests.make_manifest(asked(**change), "pytorchjob")


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: asked(env={"RANK": "1"}), "env RANK is set by"),
    (lambda: asked(gpus=-1), "gpus is -1"),
    (lambda: asked(memory_gib=float("nan")), "memory_gib is nan"),
    (lambda: asked(placement=Placement(min_nodes=4)), "min_nodes 4 is above nodes 3"),
    (lambda: asked(placement=Placement(shared_memory_gib=8)), "leaves nothing of memory_gib 8"),
    (lambda: asked(placement=Placement(labels={"trainwright/run": "x"})), "belongs to the system"),
    (lambda: asked(placement=Placement(labels={"team": "a b"})), "labels.team 'a b'"),
    (lambda: asked(placement=Placement(workload_priority="high")), "mean nothing without a queue"),
    (lambda: asked(placement=Placement(queue="Team A")), "queue 'Team A' is not the name"),
    (lambda: asked(placement=Placement(tolerations=(Toleration(operator="Exist"),))), "'Exist' is not one"),
    (lambda: asked(placement=Placement(tolerations=(Toleration(value="x"),))), "operator has to be Exists"),
    (lambda: asked(placement=Placement(volumes=(Volume(path="/a"),))), "has 0 of claim, secret, config"),
    (lambda: asked(placement=Placement(volumes=(Volume(path="a", claim="b"),))), "is not an absolute path"),
    (
        lambda: asked(placement=Placement(volumes=(Volume(path="/a", claim="b", sub_path="../c"),))),
        "leads out of the volume",
    ),
    (
        lambda: asked(
            placement=Placement(env_from_secrets=(SecretVariable(name="RANK", secret="a", key="b"),))  # noqa: S106
        ),
        "RANK is set by",
    ),
    (lambda: asked(placement=Placement(runtime_kind="Runtime")), "runtime_kind 'Runtime'"),
    (lambda: asked(placement=Placement(devices={"gpu": 1})), "'gpu' is not the name of an extended resource"),
    (lambda: asked(placement=Placement(devices={"nvidia.com/gpu": 1})), "nvidia.com/gpu belongs into gpus"),
    (lambda: asked(placement=Placement(devices={"rdma/ib": 0})), "devices.rdma/ib is 0, must be at least 1"),
    (lambda: asked(placement=Placement(required_topology="rack")), "mean nothing without a queue"),
    (
        lambda: asked(placement=Placement(queue="q", required_topology="a", preferred_topology="b")),
        "exclude one another",
    ),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_invalid_job_is_rejected_when_it_is_described(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert said in caught.value.what
