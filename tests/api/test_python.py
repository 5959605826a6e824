"""The Python interface runs real components in their environments, and reads what they wrote."""

import subprocess
import sys
from pathlib import Path

import pytest

import trainwright
from trainwright.errors import InputError
from trainwright.local.run_folder import Tasks

LINES = (f"{n},2026-01-01T00:00:{n:02d}Z,{'red' if n % 3 else 'blue'},{n % 2}" for n in range(60))
ROWS = "\n".join(["number,at,colour,late", *LINES, ""])
DATA = {
    "key": "number",
    "time": "at",
    "label": "late",
    "splits": {"train": {"fraction": 0.5}, "evaluate": {"fraction": 0.5}},
}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_import_loads_no_heavy_module() -> None:
    code = (
        "import sys, trainwright; "
        "heavy = {'kfp', 'typer', 'yaml', 'pydantic', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)), trainwright.run.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] run\n"


def test_outputs_of_one_component_are_inputs_of_the_next(
    rows: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = DATA | {"source": str(rows)}
    found = trainwright.step("resolve", runs=runs, source=rows, data=data)
    made = trainwright.step(
        "ingest", runs=runs, source=found["source"], source_version=found["version"], data=data
    )
    assert made.state == "done"
    assert (made["snapshot"] / "manifest.json").is_file()
    assert "60 rows" in made.headline
    printed = capsys.readouterr().out
    assert "ingest   1 step" in printed
    assert "again" not in printed
    run = trainwright.open_run(made.folder.parent.name, runs)
    assert (run.state, run.pipeline, list(run.steps)) == ("done", "ingest", ["ingest"])
    assert run.steps["ingest"]["Output"] == made["Output"]


def test_wrong_inputs_are_reported_together_before_anything_runs(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        trainwright.step("evaluate", runs=runs, predictions=tmp_path / "gone", evaluate={})
    assert "argument evaluate: unknown; did you mean evaluation?" in str(error.value)
    assert "argument predictions_version: missing (STRING)" in str(error.value)
    assert f"artifact predictions: there is no {tmp_path / 'gone'}" in str(error.value)
    assert not runs.exists()


def test_failed_step_raises_its_own_error_and_the_run_stays_readable(
    rows: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = str(rows.with_name("gone.csv"))
    with pytest.raises(InputError) as error:
        trainwright.step("resolve", runs=runs, quiet=True, source=gone, data=DATA | {"source": gone})
    assert "gone.csv" in str(error.value)
    assert "log.txt" in error.value.hint
    assert capsys.readouterr().out == ""
    [folder] = [path for path in runs.iterdir() if (path / Tasks.FILE).exists()]
    run = trainwright.open_run(folder)
    assert (run.state, run.steps["resolve"].state) == ("failed", "failed")
    assert "gone.csv" in run._repr_html_()
    with pytest.raises(InputError, match="no output 'version'"):
        run.steps["resolve"]["version"]


def test_keys_of_the_experiment_are_merged_and_checked_before_anything_runs(rows: Path, runs: Path) -> None:
    experiment = {"data": DATA | {"source": str(rows)}, "registry": {"model": "m", "tracking_uri": "x"}}
    with pytest.raises(InputError) as error:
        trainwright.run(experiment, runs=runs, training={"epoch": 3}, data={"min_rows": 0})
    assert "epochs" in str(error.value)
    assert "data.min_rows" in str(error.value)
    assert not runs.exists()


def test_unknown_run_is_an_error_that_names_the_last_ones(runs: Path) -> None:
    with pytest.raises(InputError, match="there is no run 'abc'"):
        trainwright.open_run("abc", runs)


def test_gates_report_is_shown_in_a_frame(tmp_path: Path) -> None:
    from trainwright.api import StepOutputs
    from trainwright.local.run_folder import Output, Task

    page = tmp_path / "report.html"
    page.write_text('<p class="a">AUC > 0.7</p>')
    task = Task(
        step="evaluate",
        state="done",
        environment="tabular",
        outputs={"report": Output(type="system.HTML", uri=str(page))},
    )
    shown = StepOutputs(task, tmp_path)._repr_html_()
    assert "<iframe srcdoc=" in shown
    assert "&lt;p class=&quot;a&quot;&gt;" in shown
