"""Runs against runs: which belong together, what is refused, and what is said of too few."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluate.made_runs import HERE, made_run
from tests.forbidden import FORBID, obey_permissions
from tests.report.browser import Browser
from trainwright.errors import InputError
from trainwright.evaluate.comparison import RunComparison, compare_runs
from trainwright.evaluate.comparison_report import comparison_json, comparison_lines, draw_comparison, remarks
from trainwright.evaluate.findings import MeasuredMetrics
from trainwright.report.page import write_page

LUCK = (0.001, -0.004, 0.003, 0.0, 0.006, -0.002, 0.002)
NOISE = (0.0002, -0.0003, 0.0001, 0.0004, -0.0001, 0.0, 0.0003)


def two_sides(folder: Path, pairs: int, *, gain: float = 0.01, shift: int = 0, **names: object) -> list[Path]:
    """Runs of two learning rates that share their luck seed by seed; the second gains a little."""
    before = [
        made_run(folder / f"a{seed}", {"auc": 0.7 + LUCK[seed], "log_loss": 0.4}, seed=seed)
        for seed in range(pairs)
    ]
    after = [
        made_run(
            folder / f"b{seed}",
            {"auc": 0.7 + gain + LUCK[seed] + NOISE[seed], "log_loss": 0.4 + NOISE[seed]},
            seed=seed + shift,
            learning_rate=0.01,
        )
        for seed in range(pairs)
    ]
    return before + after


def said(comparison: RunComparison) -> str:
    return "\n".join(comparison_lines(comparison))


def test_runs_are_grouped_by_settings_and_paired_by_seed(tmp_path: Path) -> None:
    found = compare_runs(two_sides(tmp_path, 7), ["auc"])
    assert [side.title for side in found.sides] == ["learning_rate 0.002", "learning_rate 0.01"]
    (contrast,) = found.contrasts
    assert contrast.seeds == tuple(range(7))
    assert contrast.difference.value == pytest.approx(0.01 + sum(NOISE) / 7)
    assert contrast.difference.p == 2**-6
    assert (contrast.improved, contrast.worsened, found.shown(contrast)) == (7, 0, True)
    assert "B is better than A in auc by 0.0101 (p 0.0156)." in said(found)


def test_what_all_pairs_share_cancels_and_unpaired_it_does_not(tmp_path: Path) -> None:
    both = [
        compare_runs(two_sides(tmp_path / str(shift), 6, gain=0.004, shift=shift), ["auc"])
        for shift in (0, 50)
    ]
    (together,), (apart,) = (found.contrasts for found in both)
    assert (together.paired, apart.paired) == (True, False)
    assert together.difference.p < 0.05 < apart.difference.p
    assert apart.improved + apart.worsened == 36
    assert "compared unpaired" in said(both[1])


def test_five_pairs_are_told_that_no_difference_could_be_shown(tmp_path: Path) -> None:
    found = compare_runs(two_sides(tmp_path, 5), ["auc"])
    assert not found.shown(found.contrasts[0])
    text = said(found)
    assert (
        "5 pairs cannot show a difference at 5 %: the smallest possible p is 0.0625; 6 pairs could." in text
    )
    assert "*" not in text
    assert "at 93.8 %" in text


def test_six_pairs_are_too_few_for_two_figures_and_that_is_said(tmp_path: Path) -> None:
    found = compare_runs(two_sides(tmp_path, 6))
    assert list(found.metrics) == ["auc", "log_loss"]
    assert found.contrasts[0].adjusted_p == 2 * 2**-5
    assert "smallest possible p is 0.0312, 0.0625 among 2 comparisons; 7 pairs could." in said(found)


def test_of_three_sides_each_is_compared_with_the_first(tmp_path: Path) -> None:
    third = [made_run(tmp_path / f"c{seed}", {"auc": 0.5}, seed=seed, epochs=9) for seed in range(7)]
    found = compare_runs([*two_sides(tmp_path, 7), *third], ["auc"])
    assert [(c.second.letter, c.first.letter) for c in found.contrasts] == [("B", "A"), ("C", "A")]
    assert [side.title for side in found.sides] == [
        "epochs 4, learning_rate 0.002", "epochs 4, learning_rate 0.01", "epochs 9, learning_rate 0.002",
    ]  # fmt: skip
    assert [c.adjusted_p for c in found.contrasts] == [2 * 2**-6, 2 * 2**-6]
    assert "C is worse than A in auc" in said(found)


def test_runs_of_another_kind_of_model_name_the_kind_before_its_settings(tmp_path: Path) -> None:
    trees = {"kind": "trees", "depth": 6, "bins": 256, "eta": 0.1, "child": 1, "rounds": 200}
    network = {"kind": "mlp", "hidden": [256], "dropout": 0.1, "embedding": 16, "activation": "gelu"}
    made_run(tmp_path / "a", {"auc": 0.71}, network=network)
    made_run(tmp_path / "b", {"auc": 0.72}, network=trees)
    first, second = compare_runs([tmp_path / "a", tmp_path / "b"]).sides
    assert first.title.startswith("kind mlp, ")
    assert second.title.startswith("kind trees, ")


def test_numbers_of_different_evaluation_data_are_not_compared(tmp_path: Path) -> None:
    one = made_run(tmp_path / "one", {"auc": 0.7})
    other = made_run(tmp_path / "other", {"auc": 0.8}, rows_digest="f" * 64)
    with pytest.raises(InputError, match=r"2 different sets of rows.*dddddddddddd: one; ffffffffffff: other"):
        compare_runs([one, other])


def test_other_features_over_the_same_rows_compare_and_say_what_differs(tmp_path: Path) -> None:
    runs = [
        made_run(
            tmp_path / f"{name}{seed}",
            {"auc": 0.7},
            seed=seed,
            training_set=name * 64,
            join={"service": name},
        )
        for name in "ab"
        for seed in range(2)
    ]
    found = compare_runs(runs)
    assert [side.title for side in found.sides] == [
        "service a, training set aaaaaaaaaaaa", "service b, training set bbbbbbbbbbbb",
    ]  # fmt: skip


def test_runs_of_one_setting_show_what_the_seed_alone_does(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / str(seed), {"auc": 0.7 + LUCK[seed]}, seed=seed) for seed in range(3)]
    found = compare_runs(runs)
    assert found.contrasts == ()
    assert "deviation between seeds 0.0036" in said(found)
    assert "All runs have the same settings" in said(found)


def test_of_two_runs_with_one_seed_the_later_counts_and_the_other_is_named(tmp_path: Path) -> None:
    runs = two_sides(tmp_path, 2)
    again = made_run(
        tmp_path / "again", {"auc": 0.9, "log_loss": 0.1}, seed=1, started="2026-02-02T00:00:00+00:00"
    )
    found = compare_runs([*runs, again], ["auc"])
    assert found.sides[0].runs[1].name == "again"
    assert "A: a1 left out, because a later run has the same settings and seed." in list(remarks(found))


def test_seeds_of_one_side_alone_take_no_part_and_are_named(tmp_path: Path) -> None:
    extra = made_run(tmp_path / "extra", {"auc": 0.1, "log_loss": 9}, seed=33)
    found = compare_runs([*two_sides(tmp_path, 3), extra], ["auc"])
    assert found.contrasts[0].seeds == (0, 1, 2)
    assert "Seeds of one side only take no part in B against A: 33." in list(remarks(found))


def test_runs_of_different_code_are_marked(tmp_path: Path) -> None:
    runs = two_sides(tmp_path, 2)
    newer = made_run(
        tmp_path / "newer",
        {"auc": 0.7, "log_loss": 0.4},
        seed=9,
        environment=replace(HERE, library_sha256="c" * 64),
    )
    assert any("2 versions of the library" in remark for remark in remarks(compare_runs([*runs, newer])))


@pytest.mark.parametrize("inner", ["", "evaluate", "evaluate/verdict"])
def test_the_folder_of_a_run_of_its_step_or_of_its_verdict_will_do(tmp_path: Path, inner: str) -> None:
    runs = [run / inner for run in two_sides(tmp_path, 2)]
    assert len(compare_runs(runs).contrasts) == 2


def test_figures_of_other_predictions_than_the_verdicts_are_refused(tmp_path: Path) -> None:
    one, two = (made_run(tmp_path / name, {"auc": 0.7}) for name in ("one", "two"))
    place = one / "evaluate" / "verdict"
    replace(MeasuredMetrics.read(place), predictions="9" * 64).write(place)
    with pytest.raises(InputError, match=r"measured\.json is of predictions 999999999999"):
        compare_runs([one, two])


@pytest.mark.parametrize(
    ("names", "metrics", "message"),
    [
        (["one"], [], "needs two runs, got 1"),
        (["one", "one"], [], "given twice"),
        (["one", "gone"], [], "no such folder"),
        (["one", "empty"], [], r"no verdict\.json of an evaluation"),
        (["one", "two"], ["f1"], r"not every run has the figures \['f1'\]; all have \['auc'\]"),
        (["one", "bare"], [], "no figure in common"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_with_its_name(
    tmp_path: Path, names: list[str], metrics: list[str], message: str
) -> None:
    for name in ("one", "two"):
        made_run(tmp_path / name, {"auc": 0.7}, seed=len(name))
    made_run(tmp_path / "bare", {}, seed=5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=message):
        compare_runs([tmp_path / name for name in names], metrics)


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    call = [sys.executable, "-m", "trainwright.evaluate", "compare", *arguments]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def test_the_command_writes_json_and_a_page_and_ends_with_ten_on_bad_input(tmp_path: Path) -> None:
    runs = [str(run) for run in two_sides(tmp_path, 6)]
    page = tmp_path / "page.html"
    done = command(*runs, "--metric", "auc", "--json", "--report", str(page))
    told = json.loads(done.stdout)
    assert (done.returncode, told["contrasts"][0]["shown"], page.exists()) == (0, True, True)
    assert told == json.loads(json.dumps(comparison_json(compare_runs([Path(run) for run in runs], ["auc"]))))
    refused = command(runs[0], "--level", "7")
    assert refused.returncode == 10
    assert "7 is no level of a test" in refused.stderr


@pytest.mark.covers("B12")
@pytest.mark.parametrize("forbid", FORBID)
def test_page_that_may_not_be_written_ends_with_50(
    tmp_path: Path, forbid: Callable[[Path], list[str]]
) -> None:
    runs = [str(run) for run in two_sides(tmp_path, 6)]
    folder = tmp_path / "forbidden"
    folder.mkdir()
    call = [*forbid(folder), sys.executable, "-m", "trainwright.evaluate", "compare", *runs]
    done = subprocess.run(
        [*call, "--metric", "auc", "--report", str(folder / "page.html")],
        preexec_fn=obey_permissions, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 50, done.stderr
    assert f"at    {folder}" in done.stderr


@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_says_it_first_and_fits_a_phone(tmp_path: Path, browser: Browser, width: int) -> None:
    runs = two_sides(tmp_path, 7, gain=-0.01)
    made_run(
        runs[-1].parent / "odd", {"auc": 0.7, "log_loss": 1}, seed=0, note="<script>document.title=1</script>"
    )
    path = write_page(
        draw_comparison(compare_runs([*runs, tmp_path / "odd"], ["auc"])), tmp_path / "page.html"
    )
    ask = (
        "document.documentElement.scrollWidth",
        "document.querySelector('.subtitle').innerText",
        "document.querySelectorAll('figure svg').length",
        "document.title",
    )
    seen = browser.open(path, width=width, ask=ask)
    assert (seen.requests, seen.problems) == ([], [])
    wide, subtitle, figures, title = seen.answers
    assert wide <= width
    assert subtitle.startswith("B is worse than A in auc by 0.0099")
    assert figures == 2
    assert title == "B, C against A"
