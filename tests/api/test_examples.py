"""The examples run as their pages say: from rows to a registered model that predicts."""

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from tests.docs.written import snippets
from trainwright.api import LocalRun
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

Trained = Callable[[str], LocalRun]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples, with the runs and the registry of this module."""
    folder = tmp_path_factory.mktemp("work")
    for name in ("quickstart", "regression", "multiclass", "text", "notebooks"):
        shutil.copytree(EXAMPLES / name, folder / "examples" / name)
    (folder / "runs").mkdir()
    return folder


@pytest.fixture(scope="module")
def trained(work: Path) -> Trained:
    """Run an example, once in this module."""
    made: dict[str, LocalRun] = {}

    def train(name: str) -> LocalRun:
        if name not in made:
            config = work / "examples" / name / "experiment.yaml"
            # Both candidates are trained once, by the first example; one of them is enough for the others.
            changes = {} if name == "quickstart" else {"network": {"kind": "trees"}}
            made[name] = trainwright.run(config, runs=work / "runs", **changes)
        return made[name]

    return train


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    ("name", "kind", "metric", "low", "high"),
    [
        ("quickstart", "binary", "auc", 0.84, 1),
        ("multiclass", "multiclass", "accuracy", 0.78, 1),
        ("regression", "regression", "rmse", 1, 22),
    ],
)
def test_example_registers_a_model_that_predicts(
    name: str, kind: str, metric: str, low: float, high: float, trained: Trained, work: Path
) -> None:
    run = trained(name)
    for step, output in (("ingest", "snapshot"), ("join", "training_set"), ("train", "predictions")):
        assert Snapshot.read(run.steps[step][output]).target.kind == kind, step
    assert (run.state, run.verdict and run.verdict.decision, run.version) == ("done", "PASS", "1"), run
    assert low < run.metrics[metric] < high
    folder = work / "examples" / name
    made = trainwright.predict(f"{name}@candidate", folder / "rows.csv", config=folder / "experiment.yaml")
    rows, scored = read(folder / "rows.csv"), read(made.path)
    assert made.rows == len(rows) == len(scored) == 4000
    label = next(name for name in ("late", "arr_delay", "origin") if name in scored[0])
    pairs = [(row[label], score["prediction"]) for row, score in zip(rows, scored, strict=True)]
    if name == "regression":
        errors = [abs(float(truth) - float(guess)) for truth, guess in pairs]
        assert sum(errors) / len(errors) < 15
    else:
        assert sum(truth == guess for truth, guess in pairs) / len(pairs) > 0.8


def test_rows_are_read_in_the_form_that_the_experiment_file_names(
    trained: Trained, work: Path, tmp_path: Path
) -> None:
    folder, model = work / "examples" / "regression", trained("regression").model
    lines = (folder / "rows.csv").read_text().splitlines()[:4]
    place = lines[0].split(",").index('"distance"')
    without, unknown = (lines[1].split(",") for _ in range(2))
    without[place], unknown[place] = "", "n/a"
    rows, odd, config = (tmp_path / name for name in ("rows.csv", "odd.csv", "experiment.yaml"))
    rows.write_text("\n".join([lines[0], ",".join(without), *lines[2:]]) + "\n")
    odd.write_text("\n".join([lines[0], ",".join(unknown), *lines[2:]]).replace(",", ";") + "\n")
    form = 'data:\n  csv: {delimiter: ";"}\n  missing: ["", n/a]'
    config.write_text((folder / "experiment.yaml").read_text().replace("data:", form, 1))
    made = [trainwright.predict(model, rows), trainwright.predict(model, odd, config=config)]
    assert made[0].path.read_text() == made[1].path.read_text()
    assert made[0].rows == 3


def test_wrong_value_of_rows_in_memory_is_reported_without_the_path_of_a_temporary_file(
    trained: Trained,
) -> None:
    flight = {"carrier": ["UA"], "origin": ["EWR"], "dest": ["ORD"], "distance": ["far"]}
    with pytest.raises(InputError) as error:
        trainwright.predict(
            trained("regression").model, flight | {"month": [6], "hour": [17], "dep_delay": [4]}
        )
    assert error.value.where == "rows"
    assert "row 0, counted from 0, holds 'far'" in error.value.what


def test_language_model_on_text_is_registered_and_beats_a_table_of_byte_pairs(work: Path) -> None:
    folder = work / "examples" / "text"
    subprocess.run([sys.executable, folder / "prepare.py"], check=True)
    run = trainwright.run(folder / "experiment.yaml", runs=work / "runs")
    assert (run.state, run.version) == ("done", "1"), run
    assert run.metrics["loss"] < 2.5


def cells(notebook: Path) -> list[str]:
    content = json.loads(notebook.read_text())
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    return ["".join(cell["source"]) for cell in code]


def execute(notebook: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the cells in order as a notebook does; return the variables and what the last lines show."""
    variables: dict[str, Any] = {}
    shown = []
    for source in cells(notebook):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, notebook.name, "exec"), variables)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), variables)  # noqa: S307
            show = getattr(value, "_repr_html_", None)
            shown += [show() if show else repr(value)] if value is not None else []
    return variables, shown


def test_notebooks_run_from_the_first_cell_to_the_last(
    trained: Trained, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is that of the quickstart, so its training is reused."""
    assert trained("quickstart").state == "done"
    monkeypatch.chdir(work / "examples" / "notebooks")
    Path("runs").mkdir()
    Path("runs", ".cache").symlink_to(work / "runs" / ".cache")
    made, shown = execute(EXAMPLES / "notebooks" / "quickstart.ipynb")
    assert (made["run"].version, made["run"].steps["train"].state) == ("1", "cached")
    assert shown[0].startswith("<iframe srcdoc=")
    assert "'prediction': ['yes']" in shown[-1]
    read_again, shown = execute(EXAMPLES / "notebooks" / "read_a_run.ipynb")
    assert read_again["run"].id == made["run"].id
    assert read_again["strict"].decision == "FAIL"
    assert all(text.startswith("<iframe srcdoc=") for text in shown)


def test_python_of_the_pages_about_runs_and_models_runs(
    trained: Trained, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained("quickstart")
    monkeypatch.chdir(work)
    shutil.copytree(run.folder, work / "runs" / "1rq7wm", copy_function=os.link)
    experiment = (work / "examples" / "quickstart" / "experiment.yaml").read_text()
    for name, text in {"source: rows.csv": "source: examples/quickstart/rows.csv"}.items():
        experiment = experiment.replace(name, text)
    experiment = experiment.replace("sqlite:///../../", "sqlite:///")
    (work / "experiment.yaml").write_text(experiment)
    for name in ("schema.pbtxt", "rows.csv"):
        shutil.copy(work / "examples" / "quickstart" / name, work)
    pages = {"docs/python.md", "docs/predicting.md"}
    blocks = [block for block in snippets() if block.page in pages and "import trainwright" in block.text]
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block.text, str(block), "exec"), {})  # noqa: S102


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with what the page installs for a service."""
    folder = tmp_path_factory.mktemp("service")
    page = (ROOT / "docs" / "predicting.md").read_text()
    wheel, install = (line.split() for line in page.splitlines() if line.startswith("pip "))
    venv.create(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("trainwright", "compiled", "components", "images"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for words in (wheel[1:], [*install[1:], "--no-compile"]):  # the test imports a third of it
        done = subprocess.run([*pip, *words], cwd=source, capture_output=True, text=True, check=False)
        if "Could not find a version" in done.stderr and "connection" in done.stderr.lower():
            pytest.skip(f"the package index cannot be reached: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
    return folder


def test_service_scores_with_what_the_page_installs(service: Path, trained: Trained) -> None:
    run = trained("multiclass")
    assert run.model
    shutil.copytree(run.model, service / "model")
    [block] = [one for one in snippets() if one.page == "docs/predicting.md" and "serving.load" in one.text]
    code = f"{block.text}\nimport json, sys\nprint(json.dumps([*scores[0].tolist(), 'torch' in sys.modules]))"
    python = service / "venv" / "bin" / "python"
    done = subprocess.run([python, "-c", code], cwd=service, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    flight: dict[str, list[Any]] = {"carrier": ["UA"], "dest": ["ORD"], "month": [6], "hour": [17]}
    expected = trainwright.predict(run.model, flight | {"minute_of_day": [1035], "day_of_week": [5]})
    scores = [expected[f"score_{number}"][0] for number in range(3)]
    assert json.loads(done.stdout) == [*map(pytest.approx, scores), False]


def test_plain_xgboost_prints_the_figure_of_the_page(trained: Trained) -> None:
    python = ROOT / ".environments" / "torch" / "bin" / "python"
    command = [python, EXAMPLES / "plain_xgboost.py", trained("quickstart").folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [figure] = re.findall(r"0\.\d+", done.stdout)
    [written] = re.findall(r"XGBoost\D*(0\.\d+)", (EXAMPLES / "quickstart" / "README.md").read_text())
    assert float(figure) == pytest.approx(float(written), abs=0.005)
