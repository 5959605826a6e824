"""The page, the summary and the lines of a study show every trial and why it ended."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.browser import Browser, browser
from tests.tune.studies import study
from trainwright.report.page import MAX_BYTES
from trainwright.tune import page
from trainwright.tune.report import Confirmation, StudyReport, Trial
from trainwright.tune.tracking import TrialLines

__all__ = ["browser"]

HOSTILE = "<script>alert(1)</script>"


def drawn(folder: Path, report: StudyReport) -> str:
    return page.write_page(folder / "page.html", report).read_text()


def test_page_shows_every_trial_the_confirmation_and_why_trials_ended(tmp_path: Path) -> None:
    report = study()
    text = drawn(tmp_path, report)
    assert report.confirmation.sentence in text
    assert all(f"<th>{trial.number}</th>" in text for trial in report.trials)
    assert "diverged: the loss is not a number" in text
    assert text.count("<svg") == 7


@pytest.mark.parametrize("width", [400, 1200])
def test_page_fits_a_phone_and_a_desktop_without_requests(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    drawn(tmp_path, study(60))
    seen = browser.open(
        tmp_path / "page.html", width=width, ask=("document.documentElement.scrollWidth", "document.title")
    )
    assert seen.answers == [width, "Study flights"]
    assert (seen.requests, seen.problems) == ([], [])
    assert seen.shades > 50


def test_page_of_a_thousand_trials_stays_below_the_limit(tmp_path: Path) -> None:
    text = drawn(tmp_path, study(1000))
    assert len(text) < MAX_BYTES / 2
    assert "The best 300 trials; 700 more in study.json" in text


def test_page_of_a_study_without_a_complete_trial_names_the_default(tmp_path: Path) -> None:
    failed = Trial(number=0, params={"network.width": 9}, state="infeasible", reason="CUDA out of memory")
    nothing = Confirmation(outcome="no better", winner=None)
    report = replace(study(), trials=(failed,), confirmation=nothing, importances={})
    text = drawn(tmp_path, report)
    assert "No trial is better than the default." in text
    assert "sign-flip" not in text
    assert "CUDA out of memory" in text


def test_page_of_few_complete_trials_names_what_the_missing_charts_need(tmp_path: Path) -> None:
    report = study()
    first = next(one for one in report.trials if one.value is not None)
    trials = tuple(one if one == first else replace(one, state="pruned", value=None) for one in report.trials)
    text = drawn(tmp_path, replace(report, trials=trials, importances={}))
    assert "Complete trials: 1. Importances of the parameters need four" in text


def test_page_draws_the_confirmation_over_its_own_seeds(tmp_path: Path) -> None:
    report = study()
    confirmation = replace(report.confirmation, seeds=tuple(range(40, 40 + len(report.confirmation.seeds))))
    text = drawn(tmp_path, replace(report, confirmation=confirmation))
    assert ">40<" in text
    assert ">45<" in text


def test_page_escapes_names_values_and_reasons(tmp_path: Path) -> None:
    trials = tuple(
        Trial(number=at, params={HOSTILE: HOSTILE}, state="complete", value=0.1 * at, reason=HOSTILE)
        for at in range(3)
    )
    tuning = study().tuning | {"space": {HOSTILE: {"log": False}}}
    report = replace(study(), study=HOSTILE, trials=trials, tuning=tuning)
    assert HOSTILE not in drawn(tmp_path, report)
    assert "<script" not in page.summary(report)


def test_best_trial_of_a_maximized_metric_is_the_largest() -> None:
    trials = tuple(
        Trial(number=at, params={}, state="complete", value=value)
        for at, value in enumerate((0.7, 0.9, 0.9, 0.8))
    )
    found = page.best_trial(replace(study(), trials=trials, direction="maximize"))
    assert found is not None
    assert found.number == 1


def test_outlier_does_not_stretch_the_axis_of_the_history(tmp_path: Path) -> None:
    report = study()
    wild = replace(report.trials[6], number=24, value=1e9)
    assert "1G" not in re.sub(
        "<title>.*?</title>", "", drawn(tmp_path, replace(report, trials=(*report.trials, wild)))
    )


def test_summary_is_markdown_with_outcome_confirmation_and_best_trials() -> None:
    text = page.summary(study())
    assert text.startswith("# Study flights\n\nTrial 6 is better than the default")
    assert "| default | 0.4948 |" in text
    assert "## Best trials" in text


def test_lines_of_trials_give_parameters_waits_values_and_reasons() -> None:
    stream = io.StringIO()
    lines = TrialLines(stream, "minimize")
    trial = Trial(number=3, params={"training.learning_rate": 0.00123456}, state="running", attempts=1)
    done = {"steps": 540, "total": 1620, "seconds": 72.0}
    lines.on_start(trial)
    for _ in range(3):
        lines.on_wait(trial, "queued: 1 of 2 GPUs in use")
    lines.on_end(replace(trial, state="paused", reason="0.6 at step 540 is not in the best 1/3", **done))
    lines.on_start(replace(trial, attempts=2))
    lines.on_end(replace(trial, state="complete", value=0.5, **done))
    lines.on_end(replace(trial, number=4, state="complete", value=0.7, **done))
    lines.on_end(replace(trial, number=5, state="infeasible", reason="out of memory\x1b[2J", **done))
    assert stream.getvalue().splitlines() == [
        "trial 3    running    training.learning_rate 0.001235",
        "trial 3    waiting    queued: 1 of 2 GPUs in use",
        "trial 3    paused     540 of 1,620 steps, 1 m 12 s, 0.6 at step 540 is not in the best 1/3",
        "trial 3    running    start 2: training.learning_rate 0.001235",
        "trial 3    complete   0.5 (best 0.5), 540 of 1,620 steps, 1 m 12 s",
        "trial 4    complete   0.7 (best 0.5), 540 of 1,620 steps, 1 m 12 s",
        "trial 5    infeasible 540 of 1,620 steps, 1 m 12 s, out of memory",
    ]
