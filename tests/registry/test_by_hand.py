"""What people do to MLflow beside the audit: versions deleted, aliases moved, an answer of the wrong kind."""

from pathlib import Path

import pytest

from tests.registry.shelf import MODEL, Shelf
from tests.registry.steps import Run
from tests.registry.test_interrupted import bury, killed
from trainwright.errors import InputError
from trainwright.registry.promote import restore
from trainwright.registry.register import register

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def third(shelf: Shelf) -> None:
    """Bring 1, 2 and 3 into production, one after the other."""
    shelf.ask("production", 1)
    shelf.ask("production", 2, expected="1")
    shelf.ask("production", 3, expected="2")


def test_a_version_in_production_that_is_deleted_in_mlflow_can_be_rolled_back(shelf: Shelf) -> None:
    third(shelf)
    shelf.client.delete_model_version(MODEL, "3")
    event = shelf.back()
    assert (event.intent.version, event.production) == ("2", "2")
    assert shelf.aliases() == {"production": "2", "previous-production": "1"}
    assert shelf.state().succession == ["1", "2"]


def test_a_version_to_fall_back_on_that_is_deleted_is_dropped_by_restore_and_the_next_is_promoted(
    shelf: Shelf,
) -> None:
    shelf.ask("production", 1)
    shelf.ask("production", 2, expected="1")
    shelf.client.delete_model_version(MODEL, "1")
    assert shelf.ask("production", 3, expected="2").decision == "HOLD"
    event = restore(shelf.registry, "ben", "1 was deleted")
    assert event is not None
    assert event.intent.facts["gone"] == "1"
    assert shelf.state().open is None
    assert shelf.ask("production", 3, expected="2").decision == "PASS"
    assert shelf.aliases() == {"production": "3", "previous-production": "2"}


def test_a_rollback_to_a_version_that_is_deleted_goes_to_the_one_before_it(shelf: Shelf) -> None:
    third(shelf)
    shelf.client.delete_model_version(MODEL, "2")
    assert shelf.back().production == "1"
    assert shelf.aliases() == {"production": "1"}
    with pytest.raises(InputError, match="nothing was in production before version 1"):
        shelf.back()


def test_restoring_what_cannot_be_restored_leaves_no_change_open(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    shelf.client.delete_model_version(MODEL, "1")
    restore(shelf.registry, "ben", "it was deleted")
    assert (shelf.state().open, shelf.aliases()) == (None, {})
    assert shelf.ask("production", 2).decision == "PASS"


def test_what_was_promoted_before_is_no_pass_while_the_alias_points_elsewhere(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    shelf.client.set_registered_model_alias(MODEL, "production", "3")
    made = shelf.ask("production", 1)
    assert (made.decision, made.done_before) == ("HOLD", True)


def test_a_rollback_of_another_version_than_the_one_that_was_begun_is_refused(shelf: Shelf) -> None:
    third(shelf)
    assert killed(lambda: shelf.back(out="3"), 3)
    assert shelf.state().open is not None
    bury(shelf)
    with pytest.raises(InputError, match="version 2 is in production, not 1"):
        shelf.back(out="1")
    assert shelf.aliases() == {"production": "2", "previous-production": "1"}


def test_rollback_of_a_named_version_twice_changes_production_once(shelf: Shelf) -> None:
    third(shelf)
    first = shelf.back(out="3")
    assert shelf.back(out="3") == first
    assert shelf.aliases()["production"] == "2"


@pytest.mark.parametrize("head", ["the end", "0 abc"])
def test_a_note_of_the_audits_end_that_is_none_is_a_broken_audit(shelf: Shelf, head: str) -> None:
    shelf.ask("production", 1)
    shelf.client.set_registered_model_tag(MODEL, "trainwright.audit_head", head)
    with pytest.raises(InputError, match="MLflow knows of"):
        shelf.ask("production", 2)


def test_a_promotion_that_is_tried_again_does_not_undo_a_rollback(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ask("production", 1)
    run = Run(tmp_path / "own" / "run", weights="own", baseline_version="1")
    made = register(*run.folders, shelf.registry, "abc", tmp_path / "own" / "r", tmp_path / "own" / "s.md")
    assert shelf.ask("production", made.version).decision == "PASS"
    shelf.back()
    assert shelf.ask("production", made.version).decision == "HOLD"
    assert shelf.aliases() == {"production": "1"}
    assert shelf.ask("production", made.version, expected="1").decision == "PASS"
