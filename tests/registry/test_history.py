"""Who was in production at a time, and why: told by the audit alone, loudly when MLflow says otherwise."""

import json
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.registry.shelf import MODEL, Shelf
from trainwright.errors import InputError
from trainwright.experiment import Registry
from trainwright.registry.__main__ import main
from trainwright.registry.audit import BrokenAuditError
from trainwright.registry.history import (
    history_json,
    history_lines,
    moment_lines,
    parse_moment,
    production_at,
    read_history,
)
from trainwright.registry.promote import restore, rollback

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


@pytest.fixture(scope="module")
def life(stocked: Path, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """1, then 2, then 3, then back to 2."""
    shelf = Shelf.copy(stocked, tmp_path_factory.mktemp("life"))
    for version, there in ((1, ""), (2, "1"), (3, "2")):
        made = shelf.ask("production", version, expected=there, reason=f"reason {version}", approver="carl")
        assert made.decision == "PASS"
    shelf.back()
    return shelf


@pytest.fixture
def lived(life: Shelf, tmp_path: Path) -> Shelf:
    return life.again(tmp_path / "lived")


def down(shelf: Shelf) -> Registry:
    """The same audit, and an MLflow that nobody listens at."""
    return shelf.registry.model_copy(
        update={"tracking_uri": "http://127.0.0.1:9", "audit": str(shelf.folder / "audit")}
    )


def test_the_version_at_every_time_is_the_one_of_the_last_change_before_it(lived: Shelf) -> None:
    history = read_history(down(lived))
    assert history.unknown.startswith("MLflow did not answer")
    changes = [event.commit.moment for event in history.state.events]
    second = timedelta(microseconds=1)
    for moment, version in zip(changes, ["1", "2", "3", "2"], strict=True):
        found, since, _ = production_at(history, moment)
        assert (found, since and since.commit.moment) == (version, moment)
    for moment, version in zip(changes, ["", "1", "2", "3"], strict=True):
        found, _, until = production_at(history, moment - second)
        assert (found, until and until.commit.moment) == (version, moment)
    version, since, until = production_at(history, datetime(2100, 1, 1, tzinfo=UTC))
    assert (version, until) == ("2", None)
    assert since is not None
    assert since.intent.reason == "it errs"


def test_why_and_by_whom_is_told_with_the_evidence(lived: Shelf) -> None:
    history = read_history(lived.registry)
    assert (history.warning, history.unknown) == ("", "")
    moment = history.state.events[1].commit.moment
    told = "\n".join(moment_lines(history, moment, moment))
    assert "version 2" in told
    assert "why      reason 2" in told
    assert "approver carl" in told
    assert history.state.events[1].intent.evidence["model_verdict"] in told
    page = list(history_lines(history))
    assert page[0].startswith("flight_late   8 entries, signed, each follows from the one before")
    assert "2 back in production, 3 out" in page[4]
    assert page[5] == "  production is 2, before it 1"
    assert json.loads(history_json(history))["succession"] == ["1", "2"]


def test_a_time_during_a_change_says_so(lived: Shelf) -> None:
    history = read_history(down(lived), compare=False)
    event = history.state.events[1]
    assert "  it was being changed just then: 2 from candidate to production" in list(
        moment_lines(history, event.intent.moment, event.commit.moment)
    )


def test_an_alias_that_was_moved_by_hand_is_told_and_ends_with_12(
    lived: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    lived.client.set_registered_model_alias(MODEL, "production", "1")
    with pytest.raises(SystemExit) as ended:
        main(["history", lived.registry.to_json()])
    assert ended.value.code == 12
    said = capsys.readouterr()
    assert "DISAGREEMENT: production points at 1, the audit says 2" in said.out
    assert "the audit and MLflow do not agree" in said.err
    main(["history", "--offline", lived.registry.to_json()])
    main(["restore", lived.registry.to_json(), "--by", "ben", "--reason", "by hand"])
    main(["history", lived.registry.to_json()])
    assert lived.aliases() == {"production": "2", "previous-production": "1"}


def test_an_audit_whose_end_was_cut_off_is_noticed_by_what_mlflow_has_noted(lived: Shelf) -> None:
    for number in (7, 8):
        (lived.audit / f"{number:08d}.json").unlink()
    assert read_history(lived.registry, compare=False).state.succession == ["1", "2", "3"]
    with pytest.raises(BrokenAuditError, match="ends at entry 6, MLflow knows of entry 8"):
        read_history(lived.registry)


def test_a_rollback_of_the_last_one_has_nothing_to_go_back_to(lived: Shelf) -> None:
    with pytest.raises(InputError, match="version 2 is in production, not 1"):
        lived.back(out="1")
    assert lived.back().intent.version == "1"
    assert lived.aliases() == {"production": "1"}
    with pytest.raises(InputError, match="nothing was in production before version 1"):
        lived.back()
    assert [lived.stage(version) for version in (1, 2, 3)] == ["production", "archived", "archived"]


def test_a_registry_with_aliases_that_are_older_than_its_audit_is_taken_over_as_it_is(shelf: Shelf) -> None:
    shelf.client.set_registered_model_alias(MODEL, "production", "1")
    assert shelf.ask("production", 2, expected="1").decision == "PASS"
    history = read_history(shelf.registry)
    found, since, until = production_at(history, datetime(2020, 1, 1, tzinfo=UTC))
    assert (found, since) == ("1", None)
    assert until is history.state.events[0]
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    assert "before the audit began" in "\n".join(moment_lines(history, long_ago, datetime.now(UTC)))
    assert shelf.back().intent.version == "1"


def test_where_nothing_was_promoted_and_what_is_no_time_are_named(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no promotion of 'flight_late' yet, registrations noted: 3"):
        read_history(shelf.registry)
    shutil.rmtree(shelf.audit)
    with pytest.raises(InputError, match="there is no audit of 'flight_late'"):
        read_history(shelf.registry)
    for text in ("yesterday", "", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"):
        with pytest.raises(InputError, match="is no time"):
            parse_moment(text)
    assert parse_moment("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert parse_moment("2026-01-31T01:00:00+02:00") == datetime(2026, 1, 30, 23, tzinfo=UTC)
    server = shelf.registry.model_copy(update={"tracking_uri": "https://mlflow.example"})
    with pytest.raises(InputError, match=r"registry\.audit is not set"):
        read_history(server)


def test_the_time_of_a_change_as_the_history_writes_it_is_when_its_version_came(lived: Shelf) -> None:
    history = read_history(down(lived), compare=False)
    times = [line.split()[0] for line in list(history_lines(history))[1:5]]
    assert [production_at(history, parse_moment(time))[0] for time in times] == ["1", "2", "3", "2"]
    abroad = parse_moment(times[1]).astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    (first, *_) = moment_lines(history, parse_moment(abroad.isoformat()), abroad)
    assert first == f"flight_late at {times[1]}: version 2"


def test_a_time_that_has_not_come_is_said_to_be_one(lived: Shelf) -> None:
    history, now = read_history(down(lived), compare=False), datetime.now(UTC)
    told = [list(moment_lines(history, now + timedelta(days=day), now)) for day in (-1, 1)]
    assert ["not come yet" in "".join(history_lines) for history_lines in told] == [False, True]


@pytest.mark.parametrize(("by", "reason"), [("", "why"), ("ben", ""), ("ben", " "), ("ben", "\udcff")])
def test_who_asks_for_a_rollback_and_why_are_not_empty(lived: Shelf, by: str, reason: str) -> None:
    for ask in (rollback, restore):
        with pytest.raises(InputError):
            ask(lived.registry, by, reason)
    assert len(lived.state().entries) == 8
