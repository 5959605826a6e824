"""The scenarios on the cluster that ``KUBECONFIG`` names; skipped without one."""

from collections.abc import Callable

import pytest

from tests.cluster.places import Place
from tests.cluster.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_the_cluster(scenario: Callable[[Place], None], place: Place) -> None:
    scenario(place)
