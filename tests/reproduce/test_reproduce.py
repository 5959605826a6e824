"""A past run is made again from its records, in a clone of the repository that went on meanwhile."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.artifacts import Record
from trainwright.authoring.environments import python
from trainwright.command import run_package
from trainwright.errors import InputError
from trainwright.local.run_folder import Tasks
from trainwright.reproduce.recorded_run import RecordedRun, from_folder
from trainwright.reproduce.reproduce import DIFFERENT, EQUAL, IDENTICAL, compare_steps

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAINS = ("feast", "ingest", "launcher", "mlflow", "tabular", "tfdv", "torch")
EXPERIMENT = """
schema_version: 1
data:
  source: rows
  key: id
  label: late
  classes: ["no", "yes"]
  splits: {train: {fraction: 0.7}, evaluate: {fraction: 0.3}}
  split_seed: 3
schema_file: schema.pbtxt
validation: {on_missing_baseline: bootstrap, min_label_share: 0.05, on_data_hold: stop}
network: {kind: trees, rounds: 40}
evaluation: {missing_baseline: bootstrap}
registry: {model: late, tracking_uri: "sqlite:///../runs/mlflow.db"}
"""
HEADLINE, CHANGED = "columns, data {snapshot", "columns, DATA {snapshot"


@dataclass(frozen=True)
class Clone:
    """A repository with a finished run; its library, a lock, the rows and the schema changed since.

    The run was made with a change of the library that was never committed.
    """

    folder: Path
    run: str
    commit: str
    registry: str

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return call(self.folder, *words)

    def reproduce(self, name: str, output: Path, *words: str) -> tuple[int, dict[str, Any]]:
        options = ("--output", str(output), "--json", *words)
        done = self.call("reproduce", name, "--runs", str(self.runs), *options)
        print(done.stderr)  # noqa: T201 - says why, where a test fails
        return done.returncode, json.loads(done.stdout.splitlines()[-1])


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the command line of a clone; worktrees go beside it, and uv has its usual cache."""
    start = "from trainwright.cli.app import main; main()"
    uv = subprocess.run(
        [sys.executable, "-m", "uv", "cache", "dir"], capture_output=True, text=True, check=True
    )
    own = {
        "PYTHONPATH": str(folder),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        "UV_CACHE_DIR": uv.stdout.strip(),
    }
    command = [sys.executable, "-P", "-c", start, *words]
    return subprocess.run(
        command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
    )


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    folder = tmp_path_factory.mktemp("reproduce") / "clone"
    listed = git(ROOT, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    for name in listed:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    job = folder / "job"
    (job / "rows").mkdir(parents=True)
    (job / "experiment.yaml").write_text(EXPERIMENT)
    shutil.copy2(ROOT / "examples/quickstart/schema.pbtxt", job)
    header, *rows = (ROOT / "examples/quickstart/rows.csv").read_text().splitlines(keepends=True)
    for number in range(2):
        (job / "rows" / f"{number}.csv").write_text(header + "".join(rows[number::2]))
    git(folder, "init", "--quiet")
    (folder / ".git/info/exclude").write_text("/job/rows/\n")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "first")
    commit = git(folder, "rev-parse", "HEAD").strip()
    (folder / ".environments").mkdir()
    for name in TOOLCHAINS:
        source, target = ROOT / ".environments" / name, folder / ".environments" / name
        if subprocess.run(["cp", "-al", source, target], capture_output=True, check=False).returncode:
            subprocess.run(["cp", "-a", source, target], check=True)
    assert call(folder, "setup", *TOOLCHAINS).returncode == 0

    edit(folder / "trainwright/ingest/ingest.py", HEADLINE, CHANGED)
    done = call(folder, "run", "train_and_register", "--config", "job/experiment.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = [path.parent for path in (folder / "runs").glob("*/run.json")]
    (run / "source.patch").write_text(f"# Changes since commit {commit}\n" + git(folder, "diff"))
    git(folder, "checkout", "--quiet", ".")

    with (folder / "trainwright/train/defaults.py").open("a") as file:
        file.write("\nEPOCHS_OF_TODAY = 3\n")
    with (folder / "images/tabular/requirements.lock").open("a") as file:
        file.write("# a newer lock\n")
    with (job / "schema.pbtxt").open("a") as file:
        file.write("# reviewed again\n")
    git(folder, "commit", "--quiet", "-am", "second")
    (job / "rows" / "2.csv").write_text(header + "9001,800,5,1,11,AA,LGA,DTW,no\n")
    registry = json.dumps({"model": "late", "tracking_uri": f"sqlite:///{folder / 'runs/mlflow.db'}"})
    return Clone(folder, run.name, commit, registry)


def versions(clone: Clone) -> list[str]:
    listed = run_package(python("mlflow"), "registry", "list", clone.registry, "--json")
    return [one["version"] for one in json.loads(listed)]


def test_version_of_an_earlier_commit_with_changes_is_identical_from_mlflow_alone(
    clone: Clone, tmp_path: Path
) -> None:
    log_patch(clone)
    before = versions(clone)
    uri = json.loads(clone.registry)["tracking_uri"]
    code, made = clone.reproduce("late@candidate", tmp_path / "again", "--uri", uri)
    assert (code, made["of"], made["verdict"], made["commit"]) == (0, "late/1", IDENTICAL, clone.commit)
    assert {step["step"] for step in made["steps"]} == {"ingest", "validate", "join", "train", "evaluate"}
    ingested = Record.read(Path(made["run"]) / "ingest/snapshot")
    assert "DATA" in ingested.headline, "the uncommitted change was applied"
    recorded = Record.read(clone.runs / clone.run / "ingest/snapshot")
    assert ingested.environment == recorded.environment
    assert versions(clone) == before == ["1"], "the registry of the run is untouched"
    assert len([*clone.runs.glob("*/run.json")]) == 1
    assert git(clone.folder, "status", "--short") == ""


def test_run_whose_stored_seed_was_changed_differs_where_the_seed_is_used(
    clone: Clone, tmp_path: Path
) -> None:
    request = clone.runs / clone.run / "run.json"
    before = request.read_text()
    edit(request, '"split_seed": 3', '"split_seed": 4')
    edit(request, '"min_label_share": 0.05', '"min_label_share": 0.45')  # the gate ends the repetition early
    try:
        code, error = clone.reproduce(clone.run, tmp_path / "again")
    finally:
        request.write_text(before)
    made = json.loads((tmp_path / "again" / "reproduction.json").read_text())
    assert (code, made["verdict"], made["reason"]) == (12, DIFFERENT, error["what"])
    assert made["reason"] == "different at ingest: configuration split_seed was 3, now 4"
    steps = {step["step"]: step for step in made["steps"]}
    assert steps["resolve"]["verdict"] == IDENTICAL
    recorded, repeated = steps["ingest"]["outputs"]["data"]
    assert recorded == from_folder(clone.runs, clone.run).records["ingest"].outputs["data"] != repeated
    assert "in the repetition" in steps["train"]["reason"]


def log_patch(clone: Clone) -> None:
    """Store the changes among the evidence of the version."""
    script = (
        "import sys; from trainwright.tracking.server import open_client; client = open_client(sys.argv[1]); "
        "client.log_artifact(client.get_model_version('late', '1').run_id, sys.argv[2], 'evidence')"
    )
    uri, patch = json.loads(clone.registry)["tracking_uri"], clone.runs / clone.run / "source.patch"
    subprocess.run([python("mlflow"), "-c", script, uri, patch], check=True)


def test_overwritten_rows_end_with_10_and_both_checksums(clone: Clone, tmp_path: Path) -> None:
    path = clone.folder / "job/rows/1.csv"
    before = path.read_text()
    path.write_text(before.replace("yes", "no", 1))
    try:
        run = from_folder(clone.runs, clone.run)
        code, error = clone.reproduce(clone.run, tmp_path / "again")
    finally:
        path.write_text(before)
    assert code == 10
    assert error["where"] == str(path)
    assert run.sources["source"].files[1].checksum in error["what"]


def changed(clone: Clone, tmp_path: Path, step: str, change: Callable[[Record], Record]) -> RecordedRun:
    """The run with one record changed by hand, in a copy."""
    runs = tmp_path / "runs"
    shutil.copytree(clone.runs / clone.run, runs / clone.run)
    tasks = runs / clone.run / Tasks.FILE
    tasks.write_text(tasks.read_text().replace(str(clone.runs), str(runs)))
    [path] = (runs / clone.run / step).glob("*/record.json")
    change(Record.read(path)).write(path.parent)
    return from_folder(runs, clone.run)


def tasks_of(clone: Clone) -> dict[str, Any]:
    return {task.step: task for task in Tasks.read(clone.runs / clone.run).tasks}


def test_record_that_contradicts_a_later_one_is_rejected(clone: Clone, tmp_path: Path) -> None:
    def change(record: Record) -> Record:
        return replace(record, outputs={"data": "0" * 64})

    with pytest.raises(InputError, match="contradict each other: ingest made data 000000000000"):
        changed(clone, tmp_path, "ingest", change)


@pytest.mark.parametrize(
    ("patch", "what", "hint"),
    [
        ("", "has digest", "nobody recorded them"),
        ("# only new files\n", "with its changes has", "The record or the commit was changed"),
        ("--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n", "do not apply to commit", "cut or redacted"),
    ],
    ids=["without the changes", "with other changes", "with changes that do not apply"],
)
def test_library_that_is_not_the_recorded_one_is_rejected(
    clone: Clone, tmp_path: Path, patch: str, what: str, hint: str
) -> None:
    path = clone.runs / clone.run / "source.patch"
    before = path.read_text()
    path.write_text(patch)
    try:
        if not patch:
            path.unlink()
        code, error = clone.reproduce(clone.run, tmp_path / "again")
    finally:
        path.write_text(before)
    assert code == 10
    assert what in error["what"]
    assert hint in error["hint"]


def test_difference_names_the_step_and_the_lock_that_differs(clone: Clone, tmp_path: Path) -> None:
    def change(record: Record) -> Record:
        other = replace(record.environment, lock_sha256="1" * 64)
        return replace(record, outputs=record.outputs | {"verdict": "2" * 64}, environment=other)

    run = changed(clone, tmp_path, "validate", change)
    found = {step.step: step for step in compare_steps(run, tasks_of(clone), 0.001, lambda *_: None)}
    different = [name for name, step in found.items() if step.verdict == DIFFERENT]
    assert different == ["validate"]
    assert "environment lock_sha256 was 111111111111…" in found["validate"].reason


@pytest.mark.parametrize(("apart", "verdict"), [(0.0009, EQUAL), (0.0011, DIFFERENT), (None, DIFFERENT)])
def test_other_model_counts_as_equal_within_the_tolerance_of_its_predictions(
    clone: Clone, tmp_path: Path, apart: float | None, verdict: str
) -> None:
    run = from_folder(clone.runs, clone.run)
    trained = run.records["train"]
    other = replace(
        trained, outputs=trained.outputs | {"predictions": "3" * 64}, config={"network": {"rounds": 1}}
    )
    run = replace(run, records={"train": other})
    [step] = compare_steps(run, tasks_of(clone), 0.001, lambda *_: apart)
    assert step.verdict == verdict
    assert "configuration network.rounds was 1, now 40" in step.reason


def test_lineage_of_a_registered_version_needs_no_runs(clone: Clone, tmp_path: Path) -> None:
    uri = ("--uri", json.loads(clone.registry)["tracking_uri"], "--runs", str(tmp_path / "none"), "--json")
    run = from_folder(clone.runs, clone.run)
    up = json.loads(clone.call("lineage", "late@candidate", *uri).stdout)
    assert up["version"]["labels"] == ["late/1"]
    assert [node["name"] for node in up["made from"]] == ["training_set", "data", "source"]
    source = run.records["ingest"].inputs["source"]
    assert up["made from"][-1]["digest"] == source
    down = json.loads(clone.call("lineage", source[:12], *uri).stdout)
    made = {node["name"]: node["digest"] for node in down["made into"]}
    assert made["model"] == run.records["train"].outputs["model"]


def test_version_in_production_is_copied_with_its_number(clone: Clone, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'scratch.db'}"
    run_package(python("mlflow"), "registry", "copy", clone.registry, "1", str(tmp_path / "model"), target)
    scratch = json.dumps({"model": "late", "tracking_uri": target})
    [copied] = json.loads(run_package(python("mlflow"), "registry", "list", scratch, "--json"))
    assert (copied["version"], copied["aliases"]) == ("1", ["production"])
    assert (
        copied["tags"]["model_digest"] == from_folder(clone.runs, clone.run).records["train"].outputs["model"]
    )
