"""A trial whose training early stopping ends."""

from pathlib import Path

from tests.tune import searching


def test_trial_that_stops_before_a_rung_has_its_best_value_there(training_set: Path, tmp_path: Path) -> None:
    """No evaluation improves by a million, so it ends at its second one, at step 8 of 24."""
    early = {"share": 0.2, "every_steps": 4, "patience": 1, "min_gain": 1e6}
    training, tuning = {"guards": {"early_stopping": early}}, searching.TUNING | {"trials": 1}
    (one,) = searching.run(tmp_path, training_set, training=training, tuning=tuning)
    assert one["state"] == "complete"
    (rung,) = one["rungs"]
    assert (rung["rung"], rung["step"]) == (0, 8), "the rung is at step 12"
    assert rung["value"] <= one["value"] + 1e-6
