"""Whoever may write MLflow cannot promote what was not registered, nor what was held."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.registry.shelf import MODEL, Shelf
from tests.registry.steps import Run
from tests.registry.test_interrupted import bury, killed
from trainwright.documents import digest_text
from trainwright.errors import InputError
from trainwright.registry.audit import BrokenAuditError, registration_key
from trainwright.registry.names import HEAD, KEY
from trainwright.registry.promote import restore
from trainwright.registry.register import Registration, register
from trainwright.verdicts import AT_LEAST, Rule, Verdict

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def enter(shelf: Shelf, run: Run, **section: Any) -> Registration:
    registry = shelf.registry.model_copy(update=section)
    return register(*run.folders, registry, "abc", run.root / "out" / "r", run.root / "out" / "s.md")


def files_of(shelf: Shelf, version: str) -> Path:
    """The folder of a version's run, in MLflow's store."""
    return Path(str(shelf.client.get_model_version(MODEL, version).source).removeprefix("file://")).parent


def by_hand(shelf: Shelf, run: Run) -> str:
    """Make a version as register does, files, tags and key that agree, with rights on MLflow alone."""
    elsewhere = run.root / "elsewhere"
    made = enter(shelf, run, audit=str(elsewhere))
    assert len([*(elsewhere / MODEL / "registered").glob(f"{made.key}.*.json")]) == 1
    return made.version


@pytest.mark.covers("A13")
def test_a_version_that_was_made_by_hand_is_not_promoted_whatever_its_tags_say(
    shelf: Shelf, tmp_path: Path
) -> None:
    version = by_hand(shelf, Run(tmp_path / "forged", weights="forged"))
    tags = shelf.client.get_model_version(MODEL, version).tags
    assert (tags["trainwright.decision"], tags["trainwright.stage"]) == ("PASS", "candidate")
    with pytest.raises(InputError, match=r"nothing beside the audit notes that version 4 .* was registered"):
        shelf.ask("production", version)
    known = shelf.client.get_model_version(MODEL, "1").tags[KEY]
    shelf.client.set_model_version_tag(MODEL, version, KEY, known)
    with pytest.raises(InputError, match="the model of version 4 is not the one it was registered with"):
        shelf.ask("production", version)
    assert shelf.aliases() == {}


@pytest.mark.covers("A13")
def test_a_registered_version_whose_verdict_and_tags_were_rewritten_is_not_promoted(
    shelf: Shelf, tmp_path: Path
) -> None:
    run = Run(tmp_path / "own", weights="own")
    version = enter(shelf, run).version
    place = files_of(shelf, version) / "evidence" / "model" / "verdict.json"
    told = json.loads(place.read_text())
    told["rules"][0] |= {"value": 0.99}
    place.write_text(json.dumps(told))
    forged = Verdict.read(place)
    data = Verdict.read(run.root / "data_verdict")
    key = registration_key(MODEL, run.model.digest, forged.digest, data.digest)
    shelf.client.set_model_version_tag(MODEL, version, "trainwright.verdict_sha256", forged.digest)
    with pytest.raises(InputError, match="the model verdict of version 4 is not the one"):
        shelf.ask("production", version)
    shelf.client.set_model_version_tag(MODEL, version, KEY, key)
    with pytest.raises(InputError, match="nothing beside the audit notes"):
        shelf.ask("production", version)


def test_a_version_that_serves_other_files_than_its_run_holds_is_not_promoted(shelf: Shelf) -> None:
    kept = shelf.client.get_model_version(MODEL, "1")
    other = shelf.client.get_model_version(MODEL, "2").source
    made = shelf.client.create_model_version(MODEL, other, kept.run_id, tags=dict(kept.tags))
    shelf.client.delete_model_version(MODEL, "1")
    with pytest.raises(InputError, match=r"version 4 serves .*, its run holds"):
        shelf.ask("production", str(made.version))


def test_registering_again_with_an_audit_notes_what_was_registered_without(
    shelf: Shelf, tmp_path: Path
) -> None:
    run = Run(tmp_path / "own", weights="own")
    version = by_hand(shelf, run)
    again = enter(shelf, run)
    assert (again.version, again.registered_before) == (version, True)
    assert shelf.ask("production", version).decision == "PASS"
    made = shelf.state().events[-1].intent.evidence["registration"]
    assert made == shelf.evidence(int(version)).note


def test_data_that_was_held_goes_on_only_by_a_persons_word_about_that_verdict(
    shelf: Shelf, tmp_path: Path
) -> None:
    run = Run(tmp_path / "held", weights="held", data_decision="HOLD")
    version, verdict = enter(shelf, run).version, Verdict.read(run.root / "data_verdict")
    for given in ("", digest_text("another verdict")):
        assert shelf.ask("production", version, data_verdict=given).decision == "HOLD"
    found = {rule.name: rule for rule in Verdict.read(shelf.folder / f"out-production-{version}").rules}
    assert found["data verdict"].detail.startswith(
        "HOLD; min_auc 0.51 (limit 0.6); to promote it all the same"
    )
    assert verdict.digest in found["data verdict"].detail
    assert shelf.aliases() == {}
    reason = "the holiday moved, seen by ben"
    made = shelf.ask("production", version, data_verdict=verdict.digest, reason=reason)
    assert made.decision == "PASS"
    intent = shelf.state().events[-1].intent
    assert (intent.reason, intent.facts["data"]) == (reason, "HOLD, accepted")
    assert intent.evidence["data_verdict"] == verdict.digest


def test_a_baseline_that_was_not_the_version_in_production_is_no_comparison(
    shelf: Shelf, tmp_path: Path
) -> None:
    shelf.ask("production", 1)
    for other, decision in ((digest_text("itself"), "FAIL"), (shelf.evidence(1).model_digest, "PASS")):
        run = Run(tmp_path / decision, weights=decision, baseline_version="1")
        judged = {"predictions": run.trained.outputs["predictions"], "predictions.model": run.model.digest}
        run.write_verdict("model_verdict", "PASS", judged | {"baseline.model": other})
        assert shelf.ask("production", enter(shelf, run).version).decision == decision


def test_a_number_in_a_verdict_that_is_none_is_bad_input(tmp_path: Path) -> None:
    verdict = Verdict(
        decision="PASS",
        rules=(Rule(name="AUC", value=0.7, limit=0.6, test=AT_LEAST),),
        judged={},
    )
    place = verdict.write(tmp_path / "verdict.json")
    for old, new, said in (("0.7", "NaN", "NaN is not a JSON number"), ('"PASS"', '"MAYBE"', "MAYBE")):
        place.write_text(place.read_text().replace(old, new))
        with pytest.raises(InputError, match=said):
            Verdict.read(place)
        verdict.write(place)


@pytest.mark.covers("A15")
def test_a_last_intent_and_a_last_abort_that_are_cut_off_are_noticed(shelf: Shelf) -> None:
    """Both are noted in MLflow as a commit is: a cut would hide that somebody tried."""
    assert killed(lambda: shelf.ask("production", 1), 4)
    assert [entry.kind for entry in shelf.state().entries] == ["intent"]
    bury(shelf)
    intent = shelf.audit / "00000001.json"
    kept = intent.read_bytes()
    intent.unlink()
    with pytest.raises(BrokenAuditError, match="ends at entry 0, MLflow knows of entry 1"):
        shelf.ask("production", 2)
    intent.write_bytes(kept)
    shelf.client.delete_model_version(MODEL, "1")
    bury(shelf)
    with pytest.raises(InputError, match="has no version '1'"):
        shelf.ask("production", 1)
    assert restore(shelf.registry, "ben", "end what was begun") is None
    assert [entry.kind for entry in shelf.state().entries] == ["intent", "abort"]
    (shelf.audit / "00000002.json").unlink()
    with pytest.raises(BrokenAuditError, match="ends at entry 1, MLflow knows of entry 2"):
        shelf.ask("production", 2)


def test_an_end_that_its_writer_could_not_note_is_noted_by_the_next(shelf: Shelf) -> None:
    assert killed(lambda: shelf.ask("production", 1), 7)
    state = shelf.state()
    assert [entry.kind for entry in state.entries] == ["intent", "commit"]
    assert shelf.client.get_registered_model(MODEL).tags[HEAD].startswith("1 ")
    bury(shelf)
    assert restore(shelf.registry, "ben", "nothing is wrong") is None
    assert shelf.client.get_registered_model(MODEL).tags[HEAD] == f"2 {state.entries[1].digest}"
