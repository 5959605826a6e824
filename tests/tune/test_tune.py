"""The step: bad input before the first trial, and a named study.

A search with its confirmation is in tests/pipelines/test_tune_and_register.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tune.trainings import request
from trainwright.errors import InputError
from trainwright.tune.report import StudyReport
from trainwright.tune.tune import Tuned, tune

SPACE = {"training.learning_rate": {"float": [1e-6, 2e-6], "log": True}}
TUNING: dict[str, Any] = {
    "space": SPACE,
    "sampler": "random",
    "pruner": {"kind": "none"},
    "trials": 2,
    "parallel": 2,
    "confirm": {"top": 1, "seeds": 3, "level": 0.3},
}


def run(folder: Path, training_set: Path, tuning: dict[str, Any], **sections: Any) -> Tuned:
    asked = request(training_set, "run", **sections)
    return tune(asked, tuning, folder / "study", folder / "summary.md", folder / "report.html")


def rejection(folder: Path, training_set: Path, tuning: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(InputError) as found:
        run(folder, training_set, tuning, **sections)
    assert list(folder.iterdir()) == []  # no study, no trial
    return str(found.value)


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "empty space": ({"space": {}}, {}, "space"),
    "unknown key": ({"space": {"training.learning_rat": {"float": [0.1, 0.2]}}}, {}, "learning_rat"),
    "fixed key": ({"space": {"training.seed": {"int": [1, 2]}}}, {}, "training.seed"),
    "bounds the wrong way round": (
        {"space": {"network.dropout": {"float": [0.5, 0.1]}}},
        {},
        "smaller one first",
    ),
    "bound that the section rejects": ({"space": {"network.dropout": {"float": [0.1, 1.5]}}}, {}, "1.5"),
    "unknown metric": ({"metric": "auc"}, {}, "held_out_auc"),
    "metric of another target": (
        {"metric": "held_out_rmse"},
        {},
        "defined for regression, and the target is binary",
    ),
    "cost without a price": ({"cost": 5}, {}, "needs prices, run.prices"),
    "kind auto with rungs": ({"pruner": {}}, {"network": {"kind": "auto"}}, "network.kind auto has no rungs"),
    "no rows held out": ({}, {"training": {"guards": {"early_stopping": "never"}}}, "no rows are held out"),
    "batch that processes cannot share": (
        {"space": {"training.batch_size": {"choice": [64, 1]}}},
        {"resources": {"processes": 2}},
        "batch_size 1 has no sample for each of 2 processes",
    ),
    "named study without a folder": ({"study": "nightly"}, {}, "tuning.storage"),
}


@pytest.mark.parametrize("case", BAD)
def test_search_that_cannot_work_is_rejected_before_the_first_trial(
    tmp_path: Path, training_set: Path, case: str
) -> None:
    tuning, sections, message = BAD[case]
    if "network" in sections:
        asked = replace(request(training_set, "run"), network=sections["network"])
        with pytest.raises(InputError, match=message):
            tune(asked, TUNING | tuning, *(tmp_path / name for name in "abc"))
        return
    assert message in rejection(tmp_path, training_set, TUNING | tuning, **sections)


def test_all_errors_are_reported_together(tmp_path: Path, training_set: Path) -> None:
    said = rejection(tmp_path, training_set, TUNING | {"metric": "held_out_rmse", "cost": 5, "study": "x"})
    assert "held_out_rmse" in said
    assert "run.prices" in said
    assert "tuning.storage" in said


def test_named_study_continues_with_more_trials_and_rejects_other_data_or_space(
    tmp_path: Path, training_set: Path
) -> None:
    """Its trials run in two processes."""
    two = {"processes": 2}
    named = TUNING | {"study": "nightly", "storage": str(tmp_path / "kept"), "confirm": {"top": 0}}
    (tmp_path / "first").mkdir()
    first = run(tmp_path / "first", training_set, named | {"trials": 1}, resources=two)
    assert first.outcome == "not confirmed"
    again = run(tmp_path / "second", training_set, named, resources=two)
    reports = [StudyReport.read(tmp_path / name / "study") for name in ("first", "second")]
    assert [len(report.trials) for report in reports] == [1, 2]
    assert reports[1].trials[0] == reports[0].trials[0]
    assert (
        again.training["learning_rate"]
        == min(reports[1].trials, key=lambda one: one.value or 9).params["training.learning_rate"]
    )
    other = named | {"space": {"training.learning_rate": {"float": [1e-6, 3e-6], "log": True}}}
    with pytest.raises(InputError, match=r"learning_rate\.float was"):
        run(tmp_path / "third", training_set, other)
