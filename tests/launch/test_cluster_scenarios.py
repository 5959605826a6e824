"""The scenarios of ``tests/cluster`` against the stand-in, so that they are known to run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.places import Place
from tests.cluster.scenarios import SCENARIOS, ends_when_it_is_told_to, succeeds
from tests.launch.programs import ROOT
from tests.launch.standin import Cluster, cluster
from trainwright.launch import local

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
        yield StandIn(
            kubeconfig=str(there.kubeconfig(tmp_path / "kubeconfig")),
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


@pytest.mark.parametrize("scenario", RUN, ids=lambda scenario: scenario.__name__)
def test_on_the_stand_in(scenario: Callable[[Place], None], place: StandIn) -> None:
    scenario(place if scenario is not succeeds else StandIn(**{**vars(place), "talks": True}))


def test_a_trainjob_of_two_pods_trains_on_the_stand_in(place: StandIn) -> None:
    succeeds(StandIn(**{**vars(place), "kind": "trainjob"}))
