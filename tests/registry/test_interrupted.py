"""A process that is killed between any two things it does to the outside leaves what can be repeated."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.registry.shelf import MODEL, Shelf
from trainwright.errors import TransientError
from trainwright.registry import audit, changes, versions
from trainwright.registry.audit import ROLLBACK
from trainwright.registry.promote import restore
from trainwright.storage import lease

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

WRITES = (
    (lease, "create"),
    (audit, "create"),
    ("client", "set_registered_model_alias"),
    ("client", "delete_registered_model_alias"),
    ("client", "set_model_version_tag"),
    ("client", "set_registered_model_tag"),
)
"""All that a promotion changes outside of itself."""


def killed(work: Callable[[], Any], point: int) -> bool:
    """Do something in a process of its own that is killed right before its nth write; tell if it was."""
    child = os.fork()
    if child == 0:
        try:
            _count_down(point)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _count_down(point: int) -> None:
    from mlflow import MlflowClient

    left = [point]
    for owner, name in WRITES:
        place: Any = MlflowClient if owner == "client" else owner
        whole = getattr(place, name)

        def counted(*given: Any, whole: Any = whole, **more: Any) -> Any:
            if ".beat." in str(given[0]):  # a sign of life comes when it comes
                return whole(*given, **more)
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given, **more)

        setattr(place, name, counted)


def bury(shelf: Shelf) -> None:
    """Release the lease of the dead one, in place of waiting until it expires."""
    for path in (shelf.audit / "lease").glob("lease.*.json"):
        if ".beat." not in path.name and ".done." not in path.name:
            path.with_suffix(".done.json").write_text("{}")


def test_a_promotion_killed_at_any_point_is_done_once_when_it_is_asked_for_again(
    tmp_path: Path, stocked: Path
) -> None:
    points = 0
    for point in range(1, 20):
        shelf = Shelf.copy(stocked, tmp_path / str(point))
        if not killed(lambda shelf=shelf: shelf.ask("production", 1), point):
            break
        points += 1
        bury(shelf)
        made = shelf.ask("production", 1)
        assert (made.decision, made.production) == ("PASS", "1"), point
        assert shelf.aliases() == {"production": "1"}
        assert shelf.stage(1) == "production"
        state = shelf.state()
        assert [entry.kind for entry in state.entries] == ["intent", "commit"], point
        assert state.open is None
    assert points == 8, "lease, intent, note of it, alias, stage, commit, note of it, end of the lease"


def test_another_that_comes_after_the_kill_finishes_what_was_begun_and_is_then_judged(
    tmp_path: Path, stocked: Path
) -> None:
    decided = []
    for point in (2, 3, 6):  # before the intent, after it, and with alias and stage set
        shelf = Shelf.copy(stocked, tmp_path / str(point))
        assert killed(lambda shelf=shelf: shelf.ask("production", 1), point)
        bury(shelf)
        decided.append(shelf.ask("production", 2).decision)
        winner = "2" if decided[-1] == "PASS" else "1"
        assert shelf.aliases() == {"production": winner}
        assert [event.production for event in shelf.state().events] == [winner]
    assert decided == ["PASS", "FAIL", "FAIL"]


def test_a_rollback_killed_at_any_point_and_repeated_goes_back_once(tmp_path: Path, stocked: Path) -> None:
    """A second one would bring back the version before the one before."""
    first = Shelf.copy(stocked, tmp_path / "first")
    for version, there in ((1, ""), (2, "1"), (3, "2")):
        assert first.ask("production", version, expected=there).decision == "PASS"
    done = 0
    for point in range(1, 20):
        shelf = first.again(tmp_path / str(point))
        if not killed(lambda shelf=shelf: shelf.back(out="3"), point):
            break
        done += 1
        bury(shelf)
        if shelf.aliases().get("production") == "3" or shelf.state().open:
            assert shelf.back().intent.version == "2"
        state = shelf.state()
        assert shelf.aliases() == {"production": "2", "previous-production": "1"}, point
        assert [event.intent.action for event in state.events].count(ROLLBACK) == 1
        assert state.succession == ["1", "2"]
    assert done >= 9


def test_one_that_was_paused_right_before_it_moved_an_alias_mends_it_when_it_goes_on(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile another finished its change and made its own: no lease can stop a request on its way."""
    real, paused = versions.point_aliases, []

    def point(*given: Any, **more: Any) -> bool:
        if not paused:
            paused.append(True)
            bury(shelf)
            # Another process, for as long as this one is paused: it finishes what it finds, and asks again.
            assert [shelf.ask("production", 2, expected="1").decision for _ in range(2)] == ["HOLD", "PASS"]
            assert shelf.aliases() == {"production": "2", "previous-production": "1"}
        return real(*given, **more)

    monkeypatch.setattr(changes, "point_aliases", point)
    with pytest.raises(TransientError, match=r"the lease was lost|another wrote the next entry"):
        shelf.ask("production", 1)
    assert shelf.aliases() == {"production": "2", "previous-production": "1"}
    assert shelf.state().succession == ["1", "2"]
    assert restore(shelf.registry, "ben", "nothing is wrong") is None


def test_a_version_that_is_deleted_after_the_intent_is_taken_back_and_the_audit_says_so(shelf: Shelf) -> None:
    assert killed(lambda: shelf.ask("production", 1), 3)
    assert shelf.state().open is not None
    shelf.client.delete_model_version(MODEL, "1")
    bury(shelf)
    assert shelf.ask("production", 2).decision == "PASS"
    assert [entry.kind for entry in shelf.state().entries] == ["intent", "abort", "intent", "commit"]
    assert shelf.aliases() == {"production": "2"}
