"""The scenarios of ``tests/cluster`` against the stand-in, so that they are known to run."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.cluster.places import Place
from tests.cluster.scenarios import SCENARIOS, ends_when_it_is_told_to, succeeds
from tests.launch.programs import ROOT
from tests.launch.standin import Cluster, cluster
from trainwright.launch import local, manifests

RUN = [scenario for scenario in SCENARIOS if scenario is not ends_when_it_is_told_to]
"""All of them, but for one that another ends with: each starts torch a few times."""


@dataclass(frozen=True, kw_only=True)
class StandIn(Place):
    """The stand-in, where an administrator and the kernel are the test's own."""

    there: Cluster

    def evict(self, pod: str) -> None:
        self.there.nodes.evict(pod)

    def out_of_memory(self, pod: str) -> None:
        self.there.nodes.kill(pod, oom=True)

    def write(self, path: Path) -> Path:
        return self.plain.write(path)

    @property
    def plain(self) -> Place:
        told = {name: getattr(self, name) for name in Place.__dataclass_fields__}
        return Place(**told)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[StandIn]:
    shared = tmp_path / "shared"
    (shared / "tests").mkdir(parents=True)
    python = local.sibling_python("torch")
    with cluster(shared, python=python, env={"PYTHONPATH": str(ROOT)}) as there:
        there.apply_runtime()
        (role,) = yaml.safe_load_all((ROOT / "tests" / "cluster" / "rights.yaml").read_text())
        tester = there.account("tester", role["rules"], "team")
        yield StandIn(
            kubeconfig=str(there.kubeconfig(tmp_path / "kubeconfig", tester)),
            namespace="team",
            kind="pytorchjob",
            image="trainwright/torch:0.1.0",
            claim="shared",
            mount=str(shared),
            folder=str(shared / "tests"),
            talks=False,
            pause_s=0.05,
            tick_s=0.05,
            wait_s=240,
            nodes=1,
            there=there,
        )


def test_what_a_scenario_that_failed_has_left_is_cleared_and_nothing_else(place: StandIn) -> None:
    """As the fixture of ``tests/cluster`` does in the end."""
    mine = place.job("mine", "counts", nodes=1)
    other = dataclasses.replace(mine, run="somebody else's", task="other")
    for job in (mine, other):
        place.api.create(manifests.make_manifest(job, "pytorchjob"))
    place.clear()
    place.there.wait(lambda: place.api.job(mine.name) is None)
    assert place.api.job(other.name)
    assert not Path(place.folder).exists()


def test_pods_may_write_where_the_scenarios_on_a_cluster_make_folders(place: StandIn) -> None:
    """Image and pods have a user of their own; the one who runs the scenarios is another."""
    before = os.umask(0)
    try:
        job = place.job("folders", "counts", nodes=1)
        again = place.job("folders", "counts", nodes=1)
    finally:
        os.umask(before)
    made = [*job.folder.parents[:3], job.folder, again.folder]
    assert {path.name for path in made} >= {"folders", "home", "attempts", "0001", "0002"}
    assert all(path.stat().st_mode & 0o777 == 0o777 for path in made)


def test_the_cluster_on_one_machine_has_the_volume_that_the_scenarios_ask_for() -> None:
    folder = ROOT / "tests" / "cluster"
    made, claim = yaml.safe_load_all((folder / "volume.yaml").read_text())
    (mount,) = yaml.safe_load((folder / "kind.yaml").read_text())["nodes"][0]["extraMounts"]
    asked = (folder / "conftest.py").read_text()
    options = dict(re.findall(r'"--cluster-(\w+)", default="([^"]+)"', asked))
    assert options["mount"] == mount["hostPath"] == mount["containerPath"] == made["spec"]["hostPath"]["path"]
    assert options["claim"] == claim["metadata"]["name"]
    assert options["namespace"] == claim["metadata"]["namespace"]
    assert claim["spec"]["volumeName"] == made["metadata"]["name"]


@pytest.mark.parametrize("scenario", RUN, ids=lambda scenario: scenario.__name__)
def test_on_the_stand_in(scenario: Callable[[Place], None], place: StandIn) -> None:
    scenario(place if scenario is not succeeds else StandIn(**{**vars(place), "talks": True}))


def test_a_trainjob_of_two_pods_trains_on_the_stand_in(place: StandIn) -> None:
    succeeds(StandIn(**{**vars(place), "kind": "trainjob"}))
