"""Whoever may write the audit's folder, and has no key, cannot make anybody's promotion carry out another."""

import json
import re
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.registry.shelf import DIRECT, MODEL, Shelf
from tests.registry.steps import Run
from tests.registry.test_interrupted import bury, killed
from trainwright.errors import InputError, PermissionRefused, TransientError
from trainwright.experiment import Override
from trainwright.registry.audit import (
    ADOPTED,
    INTENT,
    PROMOTE,
    AuditEntry,
    BrokenAuditError,
    RegistrationNote,
)
from trainwright.registry.history import read_history
from trainwright.registry.names import HEAD
from trainwright.registry.promote import restore
from trainwright.registry.register import register
from trainwright.registry.signing import ENTRY, NOTE, Keyring, Signed
from trainwright.verdicts import Verdict

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def forged(shelf: Shelf, number: int = 3) -> AuditEntry:
    """An intent that promotes version 3, linked to the last entry."""
    last = shelf.state().entries[-1]
    return AuditEntry(
        seq=number,
        previous=last.digest,
        time=last.time,
        token=last.token,
        model=MODEL,
        kind=INTENT,
        change="c",
        action=PROMOTE,
        version="3",
        target="production",
        origin="candidate",
        before={"production": "1"},
        after={"production": "3"},
        stages={"3": "production"},
    )


def entry_file(shelf: Shelf, number: int) -> Path:
    return shelf.audit / f"{number:08d}.json"


def require_nothing_obeyed(shelf: Shelf, said: str) -> None:
    """A colleague's promotion, rollback and look at the history all stop at the forged entry."""
    for work in (
        lambda: shelf.ask("production", 2, expected="1"),
        shelf.back,
        lambda: read_history(shelf.registry),
    ):
        with pytest.raises(BrokenAuditError, match=said):
            work()
    assert shelf.aliases() == {"production": "1"}
    assert shelf.stage(3) == "candidate"


@pytest.mark.covers("A15")
def test_forged_intent_without_a_signature_is_not_obeyed(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    forged(shelf).write(entry_file(shelf, 3))
    require_nothing_obeyed(shelf, "entry 3 of the audit of 'flight_late' has no signature")


@pytest.mark.covers("A15")
def test_forged_intent_signed_by_another_key_is_not_obeyed(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ask("production", 1)
    Keyring(str(tmp_path / "mallory")).sign(ENTRY, forged(shelf)).write(entry_file(shelf, 3))
    require_nothing_obeyed(shelf, "is signed by key '[0-9a-f]{12}', which is not trusted")


def test_signature_of_a_note_does_not_sign_an_entry(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    Keyring.of(shelf.registry).sign(NOTE, forged(shelf)).write(entry_file(shelf, 3))
    require_nothing_obeyed(shelf, "its signature is not of this content")


@pytest.mark.covers("A15")
def test_replayed_entry_with_a_new_number_is_not_obeyed(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    old = Signed.read(entry_file(shelf, 1))
    old.write(entry_file(shelf, 3))
    require_nothing_obeyed(shelf, "broken at entry 1: entry 3 is missing")
    replace(old, body=old.body | {"seq": 3}).write(entry_file(shelf, 3))
    require_nothing_obeyed(shelf, "its signature is not of this content")


@pytest.mark.covers("A15")
def test_truncated_audit_stops_promotions(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    entry_file(shelf, 2).unlink()
    require_nothing_obeyed(shelf, "ends at entry 1, MLflow knows of entry 2")
    entry_file(shelf, 1).unlink()
    with pytest.raises(BrokenAuditError, match="ends at entry 0, MLflow knows of entry 2"):
        shelf.ask("production", 2, expected="1")


def test_last_entry_with_another_digest_than_mlflow_notes_stops_promotions(shelf: Shelf) -> None:
    """Its number and its signature are right: somebody with the key wrote it again."""
    shelf.ask("production", 1)
    commit = shelf.state().entries[-1]
    Keyring.of(shelf.registry).sign(ENTRY, replace(commit, reason="another")).write(entry_file(shelf, 2))
    require_nothing_obeyed(shelf, "MLflow knows of entry 2 with digest")


@pytest.mark.parametrize("head", ["", "2 "])
def test_two_entries_beyond_the_noted_head_are_rejected_until_a_person_adopts_them(
    shelf: Shelf, head: str
) -> None:
    shelf.ask("production", 1)
    noted = head + (shelf.state().entries[1].digest if head else "")
    shelf.ask("production", 2, expected="1")
    if head:
        shelf.client.set_registered_model_tag(MODEL, HEAD, noted)
    else:
        shelf.client.delete_registered_model_tag(MODEL, HEAD)
    with pytest.raises(BrokenAuditError, match=r"has [24] entries beyond entry [20]"):
        shelf.ask("production", 3, expected="2")
    assert restore(shelf.registry, "ben", "MLflow was restored from a backup", adopt=True) is None
    assert shelf.ask("production", 3, expected="2").decision == "PASS"


def strip_signatures(shelf: Shelf) -> None:
    """Leave the audit as releases before signatures wrote it."""
    for place in shelf.audit.glob("0*.json"):
        place.write_text(json.dumps(Signed.read(place).body))


def test_audit_from_before_signatures_is_used_after_a_person_adopts_it(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    strip_signatures(shelf)
    require_nothing_obeyed(shelf, "2 entries of the audit of 'flight_late' have no signature")
    with pytest.raises(BrokenAuditError):
        restore(shelf.registry, "ben", "not said to be adopted")
    event = restore(shelf.registry, "ben", "compared with the backup", adopt=True)
    assert event is not None
    assert event.intent.facts[ADOPTED].startswith("2 entries without a signature; the last has digest")
    assert shelf.ask("production", 2, expected="1").decision == "PASS"
    forged(shelf, 7).write(entry_file(shelf, 7))
    with pytest.raises(BrokenAuditError, match="entry 7 of the audit"):
        restore(shelf.registry, "ben", "again", adopt=True)


def test_open_intent_from_before_signatures_is_aborted(shelf: Shelf) -> None:
    assert killed(lambda: shelf.ask("production", 1), 4)
    strip_signatures(shelf)
    bury(shelf)
    assert restore(shelf.registry, "ben", "compared with the backup", adopt=True) is None
    entries = shelf.state().entries
    assert [entry.kind for entry in entries] == ["intent", "abort"]
    assert entries[1].facts.keys() == {ADOPTED}
    assert shelf.aliases() == {}


def overridden(shelf: Shelf, folder: Path, approver: str = "dora") -> tuple[str, Path]:
    """Register a model that was held, by an override; return the version and its note."""
    run = Run(folder / "run", weights="held", model_decision="HOLD")
    day = timedelta(days=1)
    override = Override(
        verdict=Verdict.read(run.root / "model_verdict").digest,
        approver=approver,
        reason="a known gap",
        expires=datetime.now(UTC) + day,
    )
    section = shelf.registry.model_copy(update={"override": override, "author": "anna"})
    made = register(*run.folders, section, "abc", folder / "r", folder / "s.md")
    [place] = (shelf.audit / "registered").glob(f"{made.key}.*.json")
    return made.version, place


@pytest.mark.parametrize("point", [3, 6])  # before its note in MLflow; with alias and stage moved
def test_open_intent_whose_override_expired_meanwhile_is_aborted_by_whoever_finds_it(
    shelf: Shelf, tmp_path: Path, point: int
) -> None:
    version, place = overridden(shelf, tmp_path / "held")
    assert killed(lambda: shelf.ask("production", version), point)
    note = RegistrationNote.from_json(Signed.read(place).body)
    override = Override.parse(note.override, "override")
    ended = override.model_copy(update={"expires": datetime.now(UTC) - timedelta(days=1)})
    Keyring.of(shelf.registry).sign(NOTE, replace(note, override=ended.to_json())).write(place)
    bury(shelf)
    assert restore(shelf.registry, "ben", "end what was begun") is None
    entries = shelf.state().entries
    assert [entry.kind for entry in entries] == ["intent", "abort"]
    assert entries[1].reason.startswith("judged again: model verdict: HOLD, overridden by dora until")
    assert (shelf.aliases(), shelf.stage(int(version))) == ({}, "candidate")


def test_open_intent_that_moves_other_aliases_than_its_request_is_aborted(shelf: Shelf) -> None:
    assert killed(lambda: shelf.ask("production", 1), 3)
    place = entry_file(shelf, 1)
    intent = AuditEntry.from_json(Signed.read(place).body)
    Keyring.of(shelf.registry).sign(ENTRY, replace(intent, after={"production": "3"})).write(place)
    bury(shelf)
    assert shelf.ask("production", 2).decision == "PASS"
    entries = shelf.state().entries
    assert [entry.kind for entry in entries] == ["intent", "abort", "intent", "commit"]
    assert entries[1].reason == "judged again: its aliases are not those of the request"


def test_local_key_that_others_can_read_is_rejected(shelf: Shelf) -> None:
    key = shelf.folder / "audit.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert not key.is_relative_to(shelf.audit)
    key.chmod(0o640)
    with pytest.raises(PermissionRefused, match="its mode is 640"):
        shelf.ask("production", 1)


def test_audit_without_its_key_is_not_continued_with_a_new_one(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    (shelf.folder / "audit.key").unlink()
    with pytest.raises(InputError, match="no such file, so no entry of the audit can be signed or verified"):
        shelf.ask("production", 2, expected="1")
    assert not (shelf.folder / "audit.key").exists()


def test_lost_local_key_is_not_replaced_silently_and_a_new_one_continues_the_audit(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    entry, key, public = shelf.state().entries[0], shelf.folder / "audit.key", shelf.folder / "audit.pem"
    key.unlink()
    with pytest.raises(InputError, match="no such file, so no entry") as lost:
        Keyring.of(shelf.registry).sign(ENTRY, entry)
    assert not key.exists()
    command = re.search(
        r"openssl genpkey -algorithm ed25519 -out \S+ && chmod 600 \S+(?=\))", lost.value.hint
    )
    assert command
    assert str(public) in lost.value.hint
    subprocess.run(["bash", "-c", command[0]], check=True)
    assert shelf.ask("production", 2, expected="1").decision == "PASS"
    assert [event.production for event in shelf.state().events] == ["1", "2"]


def test_public_parts_that_others_can_write_are_rejected(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    (shelf.folder / "audit.pem").chmod(0o620)
    with pytest.raises(PermissionRefused, match="its mode is 620"):
        shelf.ask("production", 2, expected="1")


def test_lease_lost_before_the_aliases_move_leaves_them(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers so slowly that the lease expires, between the intent and the first alias."""
    from mlflow import MlflowClient

    real = MlflowClient.set_registered_model_tag

    def slow(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        leases = shelf.audit / "lease"
        if leases.is_dir():
            leases.rename(shelf.audit / "away")
            leases.write_text("no heartbeat can be written here")
            time.sleep(2.5)

    monkeypatch.setattr(MlflowClient, "set_registered_model_tag", slow)
    with pytest.raises(TransientError, match="the lease was lost: no heartbeat arrived"):
        shelf.ask("production", 1, DIRECT.model_copy(update={"lease_s": 2}))
    assert shelf.aliases() == {}
    assert [entry.kind for entry in shelf.state().entries] == ["intent"]
