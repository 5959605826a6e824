"""Each stage has its demands, and nothing moves without them."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.registry.shelf import CANARY, DIRECT, MODEL, Shelf
from tests.registry.steps import Run
from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.experiment import Override, Promotion, PromotionRequest
from trainwright.lineage import ancestors
from trainwright.registry.__main__ import main
from trainwright.registry.audit import BrokenAuditError, RegistrationNote
from trainwright.registry.promote import PromotionResult
from trainwright.registry.register import register
from trainwright.registry.signing import NOTE, Keyring, Signed
from trainwright.verdicts import AT_MOST, Rule, Verdict

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)

LONG = Promotion(canary=CANARY, min_soak_s=0)


def rules(shelf: Shelf, to: str, version: int | str = "") -> dict[str, Rule]:
    verdict = Verdict.read(shelf.folder / f"out-{to}-{version}")
    assert verdict.decision == verdict.recomputed()
    return {rule.name: rule for rule in verdict.rules}


def canary_verdict(shelf: Shelf, version: int, **more: Any) -> str:
    model = shelf.evidence(version).model_digest
    given = {
        "decision": "PASS",
        "rules": (Rule(name="error_rate", value=0.004, limit=0.01, test=AT_MOST),),
        "judged": {"model": model},
    }
    verdict = Verdict(**(given | more))
    return str(verdict.write(shelf.folder / "canary" / "verdict.json"))


def test_a_version_goes_through_every_stage_with_aliases_tags_and_an_audit_that_agree(shelf: Shelf) -> None:
    for version in (1, 2):
        assert shelf.ask("staging", version, LONG).decision == "PASS"
        assert shelf.aliases()["staging"] == str(version)
        expected = "1" if version == 2 else ""
        assert shelf.ask("canary", policy=LONG, expected=expected).version == str(version)
        assert shelf.aliases()["canary"] == str(version)
        proof = canary_verdict(shelf, version)
        wanted = {"approver": "carl", "canary_verdict": proof, "expected": expected}
        made = shelf.ask("production", policy=LONG, **wanted)
        assert (made.decision, made.production) == ("PASS", str(version))
    assert shelf.aliases() == {"production": "2", "previous-production": "1"}
    assert [shelf.stage(version) for version in (1, 2, 3)] == ["archived", "production", "candidate"]
    state = shelf.state()
    assert [event.intent.target for event in state.events] == ["staging", "canary", "production"] * 2
    last = state.events[-1].intent
    assert last.who.items() >= {"by": "anna", "approver": "carl", "author": "anna"}.items()
    assert {"account", "host"} <= last.who.keys()
    assert last.evidence["canary_verdict"] == Verdict.read(Path(proof)).digest
    assert state.events[-2].intent.facts.items() >= {"share": "0.05", "guard error_rate": "0.01"}.items()


def test_a_stage_cannot_be_left_out_unless_the_policy_does(shelf: Shelf) -> None:
    made = shelf.ask("production", 1, LONG, approver="carl")
    assert made.decision == "FAIL"
    assert rules(shelf, "production", 1)["stage"].detail == "it is candidate; production comes after canary"
    assert shelf.aliases() == {}
    assert shelf.state().entries == ()
    assert shelf.ask("production", 1, DIRECT).decision == "PASS"


def test_production_waits_for_the_soak_the_canarys_verdict_and_another_person(shelf: Shelf) -> None:
    long = LONG.model_copy(update={"min_soak_s": 3600})
    shelf.ask("staging", 1, long)
    shelf.ask("canary", 1, long)
    assert shelf.ask("production", 1, long, approver="Anna ").decision == "HOLD"
    found = rules(shelf, "production", 1)
    waiting = {name for name, rule in found.items() if rule.outcome() == "HOLD"}
    assert waiting == {"canary verdict", "seconds as a canary", "approved by another person"}
    assert 0 <= found["seconds as a canary"].value < 3600
    failed = (Rule(name="error_rate", value=0.02, limit=0.01, test=AT_MOST),)
    proof = canary_verdict(shelf, 1, decision="FAIL", rules=failed)
    for place in (proof, proof.rpartition("/")[0]):  # the file, and the artifact as Kubeflow's UI names it
        assert shelf.ask("production", 1, LONG, approver="carl", canary_verdict=place).decision == "FAIL"
    assert shelf.aliases() == {"canary": "1"}


def test_a_canary_that_starts_later_soaks_from_then_on(shelf: Shelf) -> None:
    start = datetime.now(UTC) + timedelta(hours=1)
    later = LONG.model_copy(update={"canary": CANARY.model_copy(update={"start": start}), "min_soak_s": 1})
    shelf.ask("staging", 1, later)
    shelf.ask("canary", 1, later)
    shelf.ask("production", 1, later, approver="carl", canary_verdict=canary_verdict(shelf, 1))
    assert rules(shelf, "production", 1)["seconds as a canary"].value == 0


def test_a_canarys_verdict_about_another_model_or_against_its_own_numbers_is_refused(shelf: Shelf) -> None:
    shelf.ask("staging", 1, LONG)
    shelf.ask("canary", 1, LONG)
    for more, said in (
        ({"judged": {"model": "f" * 64}}, "is about model ffffffffffff"),
        (
            {"decision": "PASS", "rules": (Rule(name="x", value=2, limit=1, test=AT_MOST, broken="HOLD"),)},
            "its numbers say HOLD",
        ),
    ):
        proof = canary_verdict(shelf, 1, **more)
        with pytest.raises(InputError, match=said):
            shelf.ask("production", 1, LONG, approver="carl", canary_verdict=proof)


def test_a_model_that_asks_for_a_column_production_has_not_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ask("production", 1)
    wider = (("distance", "int64"), ("carrier", "string"), ("engines", "int64"), ("age", "int64"))
    run = Run(tmp_path / "wide" / "run", weights="wide", inputs=wider)
    out = tmp_path / "wide"
    made = register(*run.folders, shelf.registry, "abc", out / "r", out / "s.md")
    assert shelf.ask("production", made.version, expected="1").decision == "FAIL"
    rule = rules(shelf, "production", made.version)["inputs and outputs fit production's"]
    assert rule.detail == "asks for age (int64)"
    allowed = DIRECT.model_copy(update={"allow_new_inputs": True})
    assert shelf.ask("production", made.version, allowed, expected="1").decision == "PASS"


@pytest.mark.covers("F57")
def test_production_that_is_no_longer_the_one_it_was_compared_with_refuses_it(shelf: Shelf) -> None:
    """All of the shelf were compared with an empty registry."""
    assert shelf.ask("production", 1).decision == "PASS"
    made = shelf.ask("production", 2)
    assert (made.decision, made.production) == ("FAIL", "1")
    assert (
        "version 1 is in production, it was compared with none"
        in (shelf.folder / "out-production-2" / "summary.md").read_text()
    )
    assert shelf.ask("production", 2, expected="1").decision == "PASS"
    assert (
        "version 1 is in production, it was compared with none, the request names 1"
        in (shelf.folder / "out-production-2" / "summary.md").read_text()
    )


def test_a_promotion_that_is_asked_for_again_is_done_once(shelf: Shelf) -> None:
    first, again = shelf.ask("production"), shelf.ask("production")
    assert (first.done_before, again.done_before, again.version) == (False, True, "3")
    assert first.entry == again.entry == 2
    assert len(shelf.state().entries) == 2


def test_an_override_counts_until_it_ends(shelf: Shelf, tmp_path: Path) -> None:
    run = Run(tmp_path / "held" / "run", weights="held", model_decision="HOLD")
    verdict, day = Verdict.read(run.root / "model_verdict"), timedelta(days=1)
    now = datetime.now(UTC)
    override = Override(verdict=verdict.digest, approver="dora", reason="a known gap", expires=now + day)
    section = shelf.registry.model_copy(update={"override": override})
    made = register(*run.folders, section, "abc", tmp_path / "held" / "r", tmp_path / "held" / "s.md")
    assert made.override == "dora"
    ended = override.model_copy(update={"expires": now - day})
    [place] = (shelf.audit / "registered").glob(f"{made.key}.*.json")
    kept = Signed.read(place)
    note = RegistrationNote.from_json(kept.body)
    years = override.model_copy(update={"expires": now + 400 * day})
    for other in (ended, years):
        Keyring.of(shelf.registry).sign(NOTE, replace(note, override=other.to_json())).write(place)
        assert shelf.ask("production", made.version).decision == "FAIL"
    kept.write(place)
    short = DIRECT.model_copy(update={"max_override_days": 1})
    soon = override.model_copy(update={"expires": now + 2 * day})
    Keyring.of(shelf.registry).sign(NOTE, replace(note, override=soon.to_json())).write(place)
    assert shelf.ask("production", made.version, short).decision == "FAIL"
    kept.write(place)
    shelf.client.set_model_version_tag(MODEL, made.version, "trainwright.override", ended.to_json())
    assert shelf.ask("production", made.version).decision == "PASS"
    assert shelf.state().events[-1].intent.who["override"] == "dora"
    rule = rules(shelf, "production", made.version)["model verdict"]
    assert rule.detail.startswith("HOLD, overridden by dora until")


def test_evidence_that_was_changed_in_the_store_is_noticed(shelf: Shelf, tmp_path: Path) -> None:
    run = Run(tmp_path / "own" / "run", weights="own")
    made = register(*run.folders, shelf.registry, "abc", tmp_path / "own" / "r", tmp_path / "own" / "s.md")
    source = shelf.client.get_model_version(MODEL, made.version).source
    place = Path(source.removeprefix("file://")).parent / "evidence" / "model" / "verdict.json"
    kept = json.loads(place.read_text())
    place.write_text(json.dumps(kept | {"baseline_version": "7"}))
    with pytest.raises(InputError, match="is not the one it was registered with"):
        shelf.ask("production", made.version)


def test_the_record_of_a_promotion_leads_back_to_the_data_verdict(shelf: Shelf) -> None:
    made: PromotionResult = shelf.ask("production", 1)
    record = Record.read(shelf.folder / "out-production-1")
    assert (record.step, record.decision) == ("promote", "PASS")
    assert record.headline == "flight_late version 1 is production, was none, entry 2"
    assert record.outputs["promotion"] == made.digest
    steps = {entry.step for entry in ancestors([record])}
    assert steps == {"promote", "train", "join", "ingest", "validate", "evaluate", "smoke_test"}


def test_what_is_in_production_or_kept_for_a_rollback_is_not_archived(shelf: Shelf) -> None:
    shelf.ask("production", 1)
    shelf.ask("production", 2, expected="1")
    assert shelf.ask("archived", 2).decision == "FAIL"
    assert shelf.ask("archived", 3).decision == "PASS"
    assert shelf.stage(3) == "archived"
    assert shelf.ask("production", 3, expected="2").decision == "PASS"


def test_a_version_or_a_model_that_is_not_there_is_named(shelf: Shelf) -> None:
    with pytest.raises(InputError, match="has no version '9'"):
        shelf.ask("production", 9)
    with pytest.raises(InputError, match="no version of 'flight_late' is canary or production"):
        shelf.ask("production", policy=LONG)
    shelf.registry = shelf.registry.model_copy(update={"model": "other"})
    with pytest.raises(InputError, match="no model 'other' is registered"):
        shelf.ask("production", 1)


def test_a_request_that_lacks_something_is_refused_before_anything_is_asked() -> None:
    for wrong in ({"to": "nowhere"}, {"to": "staging", "by": ""}, {"to": "staging", "version": "v1"}):
        with pytest.raises(InputError, match="found 1 error"):
            PromotionRequest.check({"by": "anna", "reason": "r"} | wrong, "request")
    for path in (["canary"], ["production", "staging"], ["staging"]):
        with pytest.raises(InputError, match="path is"):
            Promotion.check({"path": path}, "promotion")


def test_an_alias_that_somebody_moved_holds_every_promotion_until_it_is_restored(shelf: Shelf) -> None:
    from trainwright.registry.promote import restore

    shelf.ask("production", 1)
    shelf.client.set_registered_model_alias(MODEL, "production", "3")
    assert shelf.ask("production", 2, expected="1").decision == "HOLD"
    assert restore(shelf.registry, "ben", "moved by hand") is not None
    assert restore(shelf.registry, "ben", "again") is None
    assert shelf.aliases() == {"production": "1"}
    assert shelf.ask("production", 2, expected="1").decision == "PASS"


def test_an_audit_in_another_place_than_before_is_noticed(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ask("production", 1)
    shelf.registry = shelf.registry.model_copy(update={"audit": str(tmp_path / "elsewhere")})
    shutil.copytree(shelf.audit / "registered", tmp_path / "elsewhere" / MODEL / "registered")
    shutil.copy(shelf.folder / "audit.key", tmp_path / "elsewhere.key")
    with pytest.raises(BrokenAuditError, match="ends at entry 0, MLflow knows of entry 2"):
        shelf.ask("production", 2, expected="1")


def test_a_canarys_verdict_speaks_of_every_guard_at_its_limit(shelf: Shelf) -> None:
    shelf.ask("staging", 1, LONG)
    shelf.ask("canary", 1, LONG)
    kept = shelf.evidence(1).verdict
    offline = kept.write(shelf.folder / "offline.json")
    loose = (Rule(name="error_rate", value=0.04, limit=0.1, test=AT_MOST),)
    for proof in (str(offline), canary_verdict(shelf, 1, rules=loose)):
        assert shelf.ask("production", 1, LONG, approver="carl", canary_verdict=proof).decision == "HOLD"
        said = rules(shelf, "production", 1)["canary verdict"].detail
        assert said.startswith("it has no rule for guard error_rate 0.01, it has")
    proof = canary_verdict(shelf, 1)
    assert shelf.ask("production", 1, LONG, approver="carl", canary_verdict=proof).decision == "PASS"


def test_files_of_another_model_than_the_tag_names_are_not_promoted(shelf: Shelf, tmp_path: Path) -> None:
    run = Run(tmp_path / "own" / "run", weights="own")
    made = register(*run.folders, shelf.registry, "abc", tmp_path / "own" / "r", tmp_path / "own" / "s.md")
    source = shelf.client.get_model_version(MODEL, made.version).source
    place = Path(source.removeprefix("file://")) / "model.json"
    kept = place.read_text()
    place.write_text(json.dumps(json.loads(kept) | {"metrics": {}}))
    with pytest.raises(
        InputError, match=f"its files are of model .*, its verdict is about model {run.model.digest[:12]}"
    ):
        shelf.ask("production", made.version)
    place.write_text(kept)
    shelf.client.set_model_version_tag(MODEL, made.version, "trainwright.model_digest", "e" * 64)
    with pytest.raises(InputError, match="tagged as model eeeeeeeeeeee"):
        shelf.ask("production", made.version)


def test_the_terminal_is_told_what_does_not_hold_first_and_in_plain_lines(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(version: str) -> list[str]:
        asked = {"to": "production", "by": "anna", "reason": "it is better", "version": version}
        given = [shelf.registry.to_json(), DIRECT.to_json(), json.dumps(asked)]
        with suppress(SystemExit):
            main(["promote", *given])
        return capsys.readouterr().out.splitlines()

    first = ask("1")
    assert first[0] == "PASS: flight_late version 1 is production, was none, entry 2"
    assert first[-1] == "  back again    trainwright model rollback flight_late --by NAME --reason WHY"
    told = ask("2")
    assert told[0].startswith(
        "FAIL: flight_late version 2 stays: production is as it was evaluated: version 1"
    )
    assert told[1].startswith(
        "  FAIL          production is as it was evaluated    version 1 is in production"
    )
    policy = "policy from the request, not from a protected file"
    assert [line.split()[0] for line in told[2:] if policy in line] == ["-"]
    assert all(line.startswith("  PASS          ") for line in told[2:] if policy not in line)
    assert len({line.index(name) for line in told[1:] for name in (line[16:].split("  ")[0],)}) == 1
    assert not any(mark in line for line in first + told for mark in ("**", "\\_", "|"))
