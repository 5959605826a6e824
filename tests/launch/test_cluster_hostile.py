"""An API server that answers as none should: every call ends, with a typed error."""

import pytest
from kubernetes import client as k8s

from tests.limits.hostile import ENDLESS, HEAD, NOISE, Behaviour, ends, every, fast, fixed, flood, hostile
from trainwright.errors import TrainwrightError
from trainwright.launch.cluster.api import PYTORCHJOB, Api, Selection
from trainwright.launch.cluster.responses import ApiConflict, ApiGone, ApiNotFound, ApiUnavailable
from trainwright.retries import RetryPolicy

__all__ = ["fast"]
pytestmark = pytest.mark.filterwarnings(NOISE)
TYPED = (TrainwrightError, ApiUnavailable, ApiNotFound, ApiConflict, ApiGone)
PODS = Selection(kind="pods")


def api(url: str) -> Api:
    settings = k8s.Configuration()
    settings.host, settings.retries = url, False
    return Api(k8s.ApiClient(settings), "team", PYTORCHJOB, RetryPolicy(outage_s=0.2, first_s=0.05))


@pytest.mark.covers("A19")
@every
def test_calls_of_the_launcher_end(behaviour: Behaviour) -> None:
    with hostile(behaviour) as server:
        there = api(server.url)
        with ends(*TYPED):
            there.job("x")
        with ends(*TYPED):
            there.select(PODS)
        with ends(*TYPED):
            there.log("x-master-0")


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("behaviour", ENDLESS.values(), ids=ENDLESS)
def test_watch_ends_after_its_time(behaviour: Behaviour) -> None:
    with hostile(behaviour) as server, ends(*TYPED), api(server.url).watch(PODS, "1", 60) as (_, events):
        list(events)


def test_line_without_an_end_is_cut() -> None:
    with (
        hostile(flood(HEAD, b"x" * 65536)) as server,
        api(server.url).log_lines("x", {"follow": "true"}) as (_, lines),
    ):
        assert len(next(lines)[1]) < 5 << 20


def test_last_line_without_an_end_is_left_out() -> None:
    """The connection broke there: the line comes again, whole."""
    said = b"2026-01-01T00:00:00Z first\n\n2026-01-01T00:00:01Z sec"
    with hostile(fixed(HEAD + said)) as server, api(server.url).log_lines("x", {}) as (_, lines):
        assert list(lines) == [("2026-01-01T00:00:00Z", "first")]
