import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.registry.steps import DATA, LOCKS, PREDICTIONS, SOURCE, TRAINING_SET, Run, record
from trainwright.artifacts import Model, Record
from trainwright.documents import digest_text
from trainwright.errors import DataRefused, InputError, ModelRefused
from trainwright.experiment import Override
from trainwright.lineage import environment_locks
from trainwright.registry.candidate import check_candidate
from trainwright.verdicts import AT_MOST, NotJudged, Rule, Verdict


def test_a_model_with_its_verdicts_is_admitted_with_all_it_came_from(run: Run) -> None:
    candidate = check_candidate(*run.folders)
    assert {entry.step for entry in candidate.records} == LOCKS.keys()
    assert candidate.data_version == DATA
    assert candidate.source_version == SOURCE
    assert environment_locks(candidate.records) == LOCKS


def test_a_changed_file_of_the_model_is_named(run: Run) -> None:
    (run.root / "model" / "weights.safetensors").write_text("Weights")
    with pytest.raises(InputError, match=r"not what its manifest says: weights\.safetensors"):
        check_candidate(*run.folders)
    (run.root / "model" / "weights.safetensors").unlink()
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        check_candidate(*run.folders)


def test_another_model_than_the_one_asked_for_is_refused(run: Run) -> None:
    model, _, *verdicts = run.folders
    with pytest.raises(InputError, match="cached input changed: model"):
        check_candidate(model, "0" * 64, *verdicts)


@pytest.mark.covers("A3")
def test_a_manifest_cannot_lead_out_of_the_folder(run: Run) -> None:
    folder = run.root / "model"
    (run.root / "secret").write_text("weights")
    text = (folder / "model.json").read_text().replace("weights.safetensors", "../secret")
    (folder / "model.json").write_text(text)
    with pytest.raises(InputError, match=r"\.\./secret"):
        check_candidate(folder, Model.read(folder).digest, *run.folders[2:])


@pytest.mark.parametrize("decision", ["HOLD", "FAIL", "INCONCLUSIVE"])
def test_only_pass_is_a_pass_for_the_model(tmp_path: Path, decision: str) -> None:
    run = Run(tmp_path / "run", model_decision=decision)
    with pytest.raises(ModelRefused, match=rf"{decision}, not PASS: min_auc 0\.51 \(limit 0\.6\)") as caught:
        check_candidate(*run.folders)
    assert caught.value.code == 12


def test_data_that_failed_is_refused_and_data_on_hold_is_not(tmp_path: Path) -> None:
    assert check_candidate(*Run(tmp_path / "a", data_decision="HOLD").folders).data_verdict.decision == "HOLD"
    with pytest.raises(DataRefused, match="the data verdict is FAIL"):
        check_candidate(*Run(tmp_path / "b", data_decision="FAIL").folders)


def test_a_verdict_about_another_model_is_refused(run: Run) -> None:
    run.write_verdict("model_verdict", "PASS", {"predictions": PREDICTIONS, "predictions.model": "f" * 64})
    with pytest.raises(InputError, match="the model verdict is about model ffffffffffff"):
        check_candidate(*run.folders)


def test_without_the_models_name_in_the_verdict_the_records_must_show_whose_predictions_they_are(
    run: Run,
) -> None:
    run.write_verdict("model_verdict", "PASS", {"predictions": PREDICTIONS})
    assert check_candidate(*run.folders).model == run.model
    for named in ({}, {"predictions.model": run.model.digest}):  # a manifest's word for its model is no proof
        run.write_verdict("model_verdict", "PASS", {"predictions": digest_text("others")} | named)
        with pytest.raises(InputError, match="has no record of train or score that made it"):
            check_candidate(*run.folders)
    run.write_verdict("model_verdict", "PASS", {})
    with pytest.raises(InputError, match=r"evaluate read .*none"):
        check_candidate(*run.folders)


def scored_by(run: Run, model: str, rows: str = TRAINING_SET) -> None:
    """Judge predictions of the step score: of a model, on the rows of a training set."""
    scores = digest_text("predictions of score")
    judged = {"predictions": scores, "predictions.model": run.model.digest}
    verdict = run.write_verdict("model_verdict", "PASS", judged)
    made = record("smoke_test", {"model": model, "training_set": rows}, {"predictions": scores}, run.joined)
    outcome = {"verdict": verdict.digest}
    evaluated = record("evaluate", {"predictions": scores}, outcome, replace(made, step="score"))
    evaluated.write(run.root / "model_verdict")


def test_predictions_that_score_made_with_this_very_model_are_its_own(run: Run) -> None:
    scored_by(run, run.model.digest)
    assert check_candidate(*run.folders).model == run.model


def test_predictions_of_another_model_or_of_other_rows_are_rejected_whatever_the_verdict_names(
    run: Run,
) -> None:
    for model, rows in (("f" * 64, TRAINING_SET), (run.model.digest, "d" * 64)):
        scored_by(run, model, rows)
        with pytest.raises(InputError, match=r"are those of model .* on its own rows"):
            check_candidate(*run.folders)


def test_a_verdict_about_other_data_is_refused(run: Run) -> None:
    run.write_verdict("data_verdict", "PASS", {"data": "e" * 64})
    with pytest.raises(
        InputError, match="the data verdict is about data eeeeeeeeeeee, but the model came from"
    ):
        check_candidate(*run.folders)


def test_a_missing_verdict_is_an_error_that_says_so(run: Run) -> None:
    (run.root / "model_verdict" / "verdict.json").unlink()
    with pytest.raises(InputError, match="no Verdict here"):
        check_candidate(*run.folders)


@pytest.mark.covers("A14")
def test_a_verdict_that_says_pass_against_its_own_numbers_is_refused(run: Run) -> None:
    place = run.root / "model_verdict" / "verdict.json"
    told = json.loads(place.read_text())
    told["rules"][0] |= {"value": 0.55}
    place.write_text(json.dumps(told))
    with pytest.raises(InputError, match="the model verdict says PASS, its numbers say FAIL"):
        check_candidate(*run.folders)


def test_a_model_that_was_not_tried_or_did_not_answer_is_refused(run: Run) -> None:
    run.write_trial(passed=False)
    with pytest.raises(ModelRefused, match="tried and did not answer: killed by signal 11"):
        check_candidate(*run.folders)
    other = replace(run.write_trial(), model="c" * 64)
    run.tried(other)
    with pytest.raises(InputError, match="the trial is about model cccccccccccc"):
        check_candidate(*run.folders)
    (run.root / "trial" / "trial.json").unlink()
    with pytest.raises(InputError, match="no Trial here"):
        check_candidate(*run.folders)


def override(digest: str, days: int) -> Override:
    ends = datetime.now(UTC) + timedelta(days=days)
    return Override(verdict=digest, approver="dora", reason="a known gap", expires=ends)


def test_a_person_may_answer_for_a_model_that_is_held_by_name_and_until_a_day(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", model_decision="HOLD")
    digest = Verdict.read(run.root / "model_verdict").digest
    given = override(digest, 1)
    assert check_candidate(*run.folders, given).override == given
    with pytest.raises(ModelRefused, match="The override by dora ended at"):
        check_candidate(*run.folders, override(digest, -1))
    with pytest.raises(ModelRefused, match="The override is for verdict eeeeeeeeeeee"):
        check_candidate(*run.folders, override("e" * 64, 1))


def test_an_override_that_is_not_needed_is_not_used(run: Run) -> None:
    digest = Verdict.read(run.root / "model_verdict").digest
    assert check_candidate(*run.folders, override(digest, 1)).override is None


@pytest.mark.covers("A14")
def test_a_verdict_that_was_rewritten_with_its_numbers_is_not_the_one_that_its_step_wrote(run: Run) -> None:
    place = run.root / "model_verdict" / "verdict.json"
    told = json.loads(place.read_text())
    told["rules"][0] |= {"value": 0.99}
    place.write_text(json.dumps(told))
    assert Verdict.read(place.parent).recomputed() == "PASS"
    with pytest.raises(
        InputError, match=r"expected the record \(record.json\) of evaluate that made verdict"
    ):
        check_candidate(*run.folders)


def test_a_verdict_on_other_rows_than_the_models_own_is_refused(run: Run) -> None:
    judged = {"predictions": PREDICTIONS, "predictions.model": run.model.digest}
    run.write_verdict("model_verdict", "PASS", judged | {"predictions.training_set": "d" * 64})
    with pytest.raises(InputError, match="judged on rows of data dddddddddddd"):
        check_candidate(*run.folders)
    run.write_verdict("model_verdict", "PASS", judged | {"predictions.training_set": TRAINING_SET})
    assert check_candidate(*run.folders).model == run.model


def test_a_verdict_without_a_rule_is_no_pass_whatever_it_says_of_what_was_not_judged() -> None:
    empty = NotJudged(name="AUC", reason="", decision="PASS")
    assert Verdict(decision="PASS", rules=(), judged={}, not_judged=(empty,)).recomputed() == "INCONCLUSIVE"


@pytest.mark.parametrize("bootstrap", [True, False])
def test_data_with_an_inferred_schema_is_rejected_unless_it_is_bootstrapped(
    run: Run, bootstrap: bool
) -> None:
    folder = run.folders[2]
    inferred = Rule(
        name="schema/SCHEMA_INFERRED",
        value=1,
        limit=0,
        test=AT_MOST,
        broken="PASS" if bootstrap else "HOLD",
    )
    verdict = Verdict.read(folder)
    decision = verdict.decision if bootstrap else "HOLD"
    changed = replace(verdict, decision=decision, rules=(*verdict.rules, inferred))
    changed.write(folder)
    own = Record.read(folder)
    replace(own, outputs=own.outputs | {"verdict": changed.digest}).write(folder)
    if bootstrap:
        assert check_candidate(*run.folders).data_verdict.digest == changed.digest
        return
    with pytest.raises(DataRefused, match="nobody has reviewed the schema") as caught:
        check_candidate(*run.folders)
    assert caught.value.where == str(folder)
    assert "review schema.pbtxt beside the verdict" in caught.value.hint.lower()
