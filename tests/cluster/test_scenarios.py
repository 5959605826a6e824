"""The scenarios on the cluster that ``KUBECONFIG`` names; skipped without one."""

from collections.abc import Callable

import pytest

from tests.cluster.places import Place
from tests.cluster.scenarios import SCENARIOS, goes_on_within_an_elastic_attempt


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_the_cluster(scenario: Callable[[Place], None], place: Place) -> None:
    if scenario is goes_on_within_an_elastic_attempt and place.kind == "trainjob":
        pytest.skip("a TrainJob cannot be elastic")
    scenario(place)
