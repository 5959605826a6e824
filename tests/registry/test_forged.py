"""Evidence that was forged, mixed up or left out is not registered.

Each forger here writes all that an honest step would: only what does not follow from the rest gives it away.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.registry.steps import DATA, MEASURED, PREDICTIONS, TRAINING_SET, Run, record
from trainwright.artifacts import Model, Record
from trainwright.documents import digest_text
from trainwright.errors import InputError, ModelRefused
from trainwright.registry.candidate import check_candidate
from trainwright.verdicts import AT_LEAST, BASELINE, Rule, Verdict

FOLDERS = ("model", "data_verdict", "model_verdict", "trial")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.covers("A14")
def test_registration_without_one_record_is_rejected(run: Run, folder: str) -> None:
    (run.root / folder / Record.FILE).unlink()
    with pytest.raises(InputError, match="no Record here"):
        check_candidate(*run.folders)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.covers("A14")
def test_record_that_made_another_document_is_rejected(run: Run, folder: str) -> None:
    own = Record.read(run.root / folder)
    own_output = "model" if folder == "model" else "trial" if folder == "trial" else "verdict"
    replace(own, outputs=own.outputs | {own_output: "0" * 64}).write(run.root / folder)
    with pytest.raises(
        InputError, match=r"expected the record \(record.json\) of .* 000000000000|that made it"
    ):
        check_candidate(*run.folders)


@pytest.mark.covers("A14")
def test_verdict_of_an_earlier_release_is_rejected_and_asks_to_evaluate_again(run: Run) -> None:
    place = run.root / "model_verdict" / Verdict.FILE
    earlier = json.loads(place.read_text()) | {"schema_version": 1}
    earlier["rules"][0] |= {"value": 0.2, "test": "", "passed": True, "decision": "PASS"}
    place.write_text(json.dumps(earlier))
    with pytest.raises(InputError, match="Verdict has schema_version 1; this library reads 2") as caught:
        check_candidate(*run.folders)
    assert (caught.value.code, caught.value.hint[:19]) == (10, "An earlier release ")
    place.write_text(json.dumps(earlier | {"schema_version": 2}))
    with pytest.raises(InputError, match="unknown field"):
        check_candidate(*run.folders)


def judged_by(run: Run, *rules: Rule) -> Verdict:
    """Write a verdict of the model that decides PASS by these rules, with its record."""
    verdict = Verdict.read(run.root / "model_verdict")
    forged = replace(verdict, decision="PASS", rules=rules)
    forged.write(run.root / "model_verdict")
    own = Record.read(run.root / "model_verdict")
    replace(own, outputs={"verdict": forged.digest}).write(run.root / "model_verdict")
    return forged


@pytest.mark.parametrize(
    "rule",
    [
        Rule(name="AUC", value=0.2, limit=0.7, test=AT_LEAST),
        Rule(name="AUC", value=0.2, limit=0.7, test="above", interval=(0.8, 0.9)),
        Rule(name="error", value=0.9, limit=0.1, test="below", interval=(0.01, 0.02)),
        Rule(name="error", value=0.9, limit=0.1, test="up to", interval=(0.01, 0.02)),
        Rule(name="AUC", value=0.2, limit=0.7, test="above", interval=(0.9, 0.1)),
    ],
)
@pytest.mark.covers("A14")
def test_number_beyond_its_limit_is_no_pass_whatever_interval_lies_beside_it(run: Run, rule: Rule) -> None:
    judged_by(run, rule)
    with pytest.raises(InputError, match="the model verdict says PASS, its numbers say"):
        check_candidate(*run.folders)


@pytest.mark.covers("A14")
def test_model_verdict_excuses_a_missing_baseline_and_no_other_rule(run: Run) -> None:
    held = Rule(name="AUC", value=0.8, limit=0.7, test=AT_LEAST)
    bootstrap = Rule(name=BASELINE, value=0.0, limit=1.0, test=AT_LEAST, broken="PASS")
    judged_by(run, held, bootstrap)
    assert check_candidate(*run.folders).model_verdict.decision == "PASS"
    judged_by(run, replace(held, name="recall", value=0.2, broken="PASS"))
    with pytest.raises(InputError, match="rule 'recall' of the model verdict is beyond its limit and passes"):
        check_candidate(*run.folders)
    judged_by(run, replace(held, value=0.2, broken="PASS"))
    with pytest.raises(InputError, match="rule 'AUC' of the model verdict is beyond its limit and passes"):
        check_candidate(*run.folders)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({}, "5 rows scored"),
        ({"scores": 5.0}, "scores outside 0 to 1 was measured or left out wrongly"),
        (MEASURED | {"scores": 0.0}, "scores: 0, accepted is 1 to inf"),
        (MEASURED | {"scores that are no numbers": 2.0}, "scores that are no numbers: 2, accepted is 0 to 0"),
        (MEASURED | {"scores that differ at a second call": 1.0}, "differ at a second call: 1"),
        (MEASURED | {"rows or outputs beside the signature": 3.0}, "beside the signature: 3"),
        (MEASURED | {"scores outside 0 to 1": 4.0}, "scores outside 0 to 1: 4, accepted is 0 to 0"),
        (MEASURED | {"passed": 1.0}, "passed was measured or left out wrongly"),
    ],
)
@pytest.mark.covers("A14")
def test_trial_with_a_number_out_of_bounds_or_left_out_is_rejected(
    run: Run, measured: dict[str, float], said: str
) -> None:
    run.tried(replace(run.write_trial(), measured=measured))
    with pytest.raises(ModelRefused, match=said):
        check_candidate(*run.folders)


@pytest.mark.covers("A14")
def test_trial_of_another_model_is_rejected_although_its_record_names_this_one(run: Run) -> None:
    run.tried(replace(run.write_trial(), model="c" * 64))
    with pytest.raises(InputError, match="the trial is about model cccccccccccc"):
        check_candidate(*run.folders)


def test_trial_whose_record_read_another_model_is_rejected(run: Run) -> None:
    trial = run.write_trial()
    made = record("smoke_test", {"model": "c" * 64}, {"trial": trial.digest}, run.trained)
    made.write(run.root / "trial")
    with pytest.raises(InputError, match=r"smoke_test read .*cccccccccccc.* to make trial"):
        check_candidate(*run.folders)


def test_trial_of_another_input_example_is_rejected(run: Run) -> None:
    run.tried(replace(run.write_trial(), input_example="c" * 64))
    with pytest.raises(InputError, match="the trial scored another input example"):
        check_candidate(*run.folders)


def test_input_example_that_the_manifest_does_not_name_is_rejected(run: Run) -> None:
    bare = replace(run.model, files=tuple(x for x in run.model.files if x.path != "input_example.json"))
    bare.write(run.root / "model")
    with pytest.raises(InputError, match=r"the model has no input_example\.json"):
        check_candidate(run.root / "model", bare.digest, *run.folders[2:])


def test_verdict_of_the_model_given_as_the_datas_is_rejected_and_the_reverse(run: Run) -> None:
    model, digest, data_verdict, model_verdict, trial = run.folders
    with pytest.raises(InputError, match="the data verdict is about data"):
        check_candidate(model, digest, model_verdict, model_verdict, trial)
    with pytest.raises(InputError, match="of evaluate that made verdict"):
        check_candidate(model, digest, data_verdict, data_verdict, trial)


@pytest.mark.covers("A14")
def test_record_of_another_step_renamed_is_rejected(run: Run) -> None:
    """The verdict on the data, which passed, is given out as the model's."""
    judged = {"predictions": PREDICTIONS, "predictions.model": run.model.digest}
    validated = Record.read(run.root / "data_verdict")
    forged = run.write_verdict("model_verdict", "PASS", judged)
    renamed = replace(validated, step="evaluate", outputs={"verdict": forged.digest}, inputs=judged)
    renamed.write(run.root / "model_verdict")
    with pytest.raises(InputError, match="has no record of train or score that made it"):
        check_candidate(*run.folders)


@pytest.mark.covers("A14")
def test_record_that_contains_itself_as_its_source_is_rejected(run: Run) -> None:
    trained = replace(run.trained, inputs={"training_set": TRAINING_SET}, parents=(run.trained,))
    trained.write(run.root / "model")
    with pytest.raises(
        InputError, match=r"train read training_set .* no record of join or ingest that made it"
    ):
        check_candidate(*run.folders)


def test_lineage_that_ends_before_ingest_is_rejected(run: Run) -> None:
    cut = replace(run.trained, parents=(replace(run.joined, parents=()),))
    cut.write(run.root / "model")
    with pytest.raises(InputError, match=r"join read entities .* no record of ingest that made it"):
        check_candidate(*run.folders)


def test_model_of_another_training_set_than_its_record_read_is_rejected(run: Run) -> None:
    manifest = replace(run.model, training_data="d" * 64)
    manifest.write(run.root / "model")
    trained = replace(run.trained, outputs=run.trained.outputs | {"model": manifest.digest})
    trained.write(run.root / "model")
    assert Model.read(run.root / "model") == manifest
    with pytest.raises(InputError, match=r"train read .* to make model"):
        check_candidate(run.root / "model", manifest.digest, *run.folders[2:])


@pytest.mark.covers("A14")
def test_predictions_of_the_record_of_another_model_are_rejected(run: Run, tmp_path: Path) -> None:
    """A better model's predictions, honestly judged, with the records that made them."""
    better = Run(tmp_path / "better" / "run", weights="better")
    predictions = digest_text("better predictions")
    trained = replace(better.trained, outputs={"model": better.model.digest, "predictions": predictions})
    verdict = run.write_verdict("model_verdict", "PASS", {"predictions": predictions})
    own = record("evaluate", {"predictions": predictions}, {"verdict": verdict.digest}, trained)
    own.write(run.root / "model_verdict")
    with pytest.raises(InputError, match="nothing shows that the predictions that were judged"):
        check_candidate(*run.folders)


@pytest.mark.covers("A14")
def test_verdict_on_another_version_of_the_data_with_all_its_records_is_rejected(run: Run) -> None:
    other = "e" * 64
    verdict = run.write_verdict("data_verdict", "PASS", {"data": other})
    ingested = replace(run.ingested, outputs={"data": other})
    made = record("validate", {"data": other}, {"verdict": verdict.digest}, ingested)
    made.write(run.root / "data_verdict")
    with pytest.raises(InputError, match=f"about data eeeeeeeeeeee, but the model came from {DATA[:12]}"):
        check_candidate(*run.folders)


def judged_by_join(run: Run, whole: str, *parents: Record) -> None:
    """Write the lineage of a model whose training set `join` judged in the verdict ``whole``."""
    carried = Record.read(run.root / "data_verdict").outputs["verdict"]
    inputs = run.joined.inputs | {"data_verdict": carried}
    outputs = run.joined.outputs | {"verdict": whole}
    joined = replace(run.joined, inputs=inputs, outputs=outputs, parents=(run.ingested, *parents))
    replace(run.trained, parents=(joined,)).write(run.root / "model")
    joined.write(run.root / "data_verdict")


def test_verdict_of_join_is_registered_with_the_record_of_validate_behind_it(run: Run) -> None:
    validated = Record.read(run.root / "data_verdict")
    judged_by_join(run, validated.outputs["verdict"], validated)
    assert check_candidate(*run.folders).data_version == DATA


def test_verdict_without_the_rules_that_join_added_is_rejected(run: Run) -> None:
    validated = Record.read(run.root / "data_verdict")
    judged_by_join(run, "0" * 64, validated)
    validated.write(run.root / "data_verdict")
    with pytest.raises(InputError, match=r"expected the record \(record.json\) of join that made verdict"):
        check_candidate(*run.folders)


def test_verdict_of_join_without_validate_behind_it_is_rejected(run: Run) -> None:
    judged_by_join(run, Record.read(run.root / "data_verdict").outputs["verdict"])
    with pytest.raises(InputError, match="its record has none of validate"):
        check_candidate(*run.folders)


def test_verdict_of_a_later_join_of_the_same_training_set_is_registered_and_of_another_is_not(
    run: Run,
) -> None:
    validated = Record.read(run.root / "data_verdict")
    judged_by_join(run, "0" * 64, validated)  # of the run that trained
    later = replace(Record.read(run.root / "data_verdict"), outputs={"verdict": validated.outputs["verdict"]})
    replace(later, outputs=later.outputs | {"training_set": TRAINING_SET}).write(run.root / "data_verdict")
    assert check_candidate(*run.folders).data_version == DATA
    replace(later, outputs=later.outputs | {"training_set": "d" * 64}).write(run.root / "data_verdict")
    with pytest.raises(InputError, match="the data verdict is about training set dddddddddddd"):
        check_candidate(*run.folders)


def test_data_verdict_against_its_own_numbers_is_rejected(run: Run) -> None:
    verdict = Verdict.read(run.root / "data_verdict")
    forged = replace(verdict, rules=(replace(verdict.rules[0], value=0.1, broken="HOLD"),))
    forged.write(run.root / "data_verdict")
    own = Record.read(run.root / "data_verdict")
    replace(own, outputs={"verdict": forged.digest}).write(run.root / "data_verdict")
    with pytest.raises(InputError, match="the data verdict says PASS, its numbers say HOLD"):
        check_candidate(*run.folders)


def test_data_verdict_whose_step_read_other_data_than_it_names_is_rejected(run: Run) -> None:
    verdict, other = run.write_verdict("data_verdict", "PASS", {"data": DATA}), "e" * 64
    ingested = replace(run.ingested, outputs={"data": other})
    made = record("validate", {"data": other}, {"verdict": verdict.digest}, ingested)
    made.write(run.root / "data_verdict")
    with pytest.raises(InputError, match=r"validate read .*eeeeeeeeeeee.* to make verdict"):
        check_candidate(*run.folders)


def evaluated(run: Run, predictions: str, made: Record, judged: str | None = None) -> None:
    """Write a passing verdict about the predictions, or others, and the record of a step that read them."""
    about = predictions if judged is None else judged
    verdict = run.write_verdict("model_verdict", "PASS", {"predictions": about})
    own = record("evaluate", {"predictions": predictions}, {"verdict": verdict.digest}, made)
    own.write(run.root / "model_verdict")


def test_model_verdict_whose_step_read_other_predictions_than_it_names_is_rejected(run: Run) -> None:
    easy = replace(run.trained, outputs=run.trained.outputs | {"predictions": "e" * 64})
    evaluated(run, "e" * 64, easy, PREDICTIONS)
    with pytest.raises(InputError, match=r"evaluate read .*eeeeeeeeeeee.* to make verdict"):
        check_candidate(*run.folders)


def test_predictions_without_a_digest_are_those_of_no_model(run: Run) -> None:
    evaluated(run, "", replace(run.trained, outputs=run.trained.outputs | {"predictions": ""}))
    with pytest.raises(InputError, match=r"predictions \(none named\), and its record has no record of"):
        check_candidate(*run.folders)


def test_record_of_score_that_claims_to_have_made_this_model_is_rejected(run: Run) -> None:
    inputs = {"model": "f" * 64, "training_set": TRAINING_SET}
    outputs = {"predictions": "e" * 64, "model": run.model.digest}
    evaluated(run, "e" * 64, replace(record("train", inputs, outputs, run.joined), step="score"))
    with pytest.raises(InputError, match="nothing shows that the predictions that were judged"):
        check_candidate(*run.folders)


def test_predictions_whose_lineage_ends_before_ingest_are_rejected(run: Run) -> None:
    evaluated(run, PREDICTIONS, replace(run.trained, parents=()))
    with pytest.raises(InputError, match="train read training_set"):
        check_candidate(*run.folders)


def test_trial_without_the_digest_of_its_scores_is_rejected(run: Run) -> None:
    run.tried(replace(run.write_trial(), scores=""))
    with pytest.raises(ModelRefused, match="did not answer"):
        check_candidate(*run.folders)
