"""A cluster of the test's own."""

from collections.abc import Iterator

import pytest
from kubernetes import client as k8s

from tests.launch import cluster as stand_in


@pytest.fixture
def connected() -> Iterator[tuple[stand_in.Cluster, k8s.ApiClient]]:
    """A stand-in for the Kubernetes API, and a client of it."""
    with stand_in.running() as pair:
        yield pair
