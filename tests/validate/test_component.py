"""The component as Kubeflow runs it: one process, one JSON of places, one returned decision."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.artifacts import Snapshot
from trainwright.errors import MARK
from trainwright.executor import main
from trainwright.storage import take_listing
from trainwright.tables import write_snapshot
from trainwright.verdicts import Verdict

ROOT = Path(__file__).resolve().parents[2]
ROLES = {"key": "id", "time": "at", "label": "late"}
OUTPUTS = {
    "verdict": "system.Artifact",
    "quarantine": "system.Dataset",
    "report": "system.HTML",
    "metrics": "system.Metrics",
}


def artifact(name: str, kind: str, path: Path) -> dict[str, Any]:
    return {"artifacts": [{"name": name, "type": {"schemaTitle": kind}, "uri": str(path), "metadata": {}}]}


def arguments(folder: Path, snapshot: Path, **values: Any) -> list[str]:
    outputs = {name: artifact(name, kind, folder / "out" / name) for name, kind in OUTPUTS.items()}
    order = {
        "inputs": {
            "parameterValues": values,
            "artifacts": {"snapshot": artifact("snapshot", "system.Dataset", snapshot)},
        },
        "outputs": {
            "outputFile": str(folder / "executor_output.json"),
            "parameters": {
                name: {"outputFile": str(folder / "out" / name)}
                for name in ("decision", "quarantine_version")
            },
            "artifacts": outputs,
        },
    }
    return ["--function_to_execute", "validate", "--executor_input", json.dumps(order)]


def execute(folder: Path, snapshot: Path, **values: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainwright.executor", *arguments(folder, snapshot, **values)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def execute_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run the same in this process, which has loaded TFDV already."""

    def run(folder: Path, snapshot: Path, **values: Any) -> None:
        monkeypatch.setattr(sys, "argv", ["executor", *arguments(folder, snapshot, **values)])
        monkeypatch.setenv("_KFP_RUNTIME", "true")  # main() sets it too, and nothing takes that back
        main()

    return run


@pytest.fixture
def snapshot(tmp_path: Path, rows: Any) -> Path:
    tables = {"train": [rows(2_000, 1)], "evaluate": [rows(500, 2)]}
    write_snapshot(tmp_path / "snapshot", tables, parents={}, roles=ROLES)
    return tmp_path / "snapshot"


def schema(folder: Path, text: str) -> dict[str, str]:
    """Write a schema, and return it by reference, as ``resolve`` does."""
    path = folder / "schema.pbtxt"
    path.write_text(text)
    return {"schema": str(path), "schema_version": take_listing(str(path)).content_digest}


def version(folder: Path) -> str:
    return Snapshot.read(folder).digest


def test_a_component_returns_its_decision_and_leaves_report_summary_and_metrics(
    tmp_path: Path, snapshot: Path, schema_text: str
) -> None:
    done = execute(
        tmp_path,
        snapshot,
        data_version=version(snapshot),
        **schema(tmp_path, schema_text),
        validation={"ignore": ["plan"], "on_missing_baseline": "bootstrap"},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "executor_output.json").read_text())
    assert said["parameterValues"]["decision"] == "PASS"
    quarantine = Snapshot.read(tmp_path / "out" / "quarantine")
    assert said["parameterValues"]["quarantine_version"] == quarantine.digest
    metrics = said["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert metrics.keys() == {
        *("columns_moved", "not_judged", "drift/hour", "drift/delay", "drift/late", "new/late"),
        *("missing/hour", "missing/delay", "missing/late", "display_name"),
    }
    assert 0 <= metrics["drift/hour"] < 0.01
    assert Verdict.read(tmp_path / "out" / "verdict").decision == "PASS"
    assert (tmp_path / "out" / "report").read_text().startswith("<!doctype html>")
    assert (
        (tmp_path / "out" / "verdict" / "summary.md")
        .read_text()
        .startswith("**PASS** 0 of 3 columns moved; closest ")
    )


def test_wrong_parameters_end_with_one_json_line_and_the_code_of_bad_input(
    tmp_path: Path, snapshot: Path, schema_text: str
) -> None:
    found = schema(tmp_path, schema_text)
    done = execute(tmp_path, snapshot, data_version="", **found, validation={"ignroe": []})
    assert done.returncode == 10
    record = json.loads(done.stderr.splitlines()[-1].removeprefix(MARK))
    assert (record["component"], record["where"]) == ("validate", "parameter validation")
    assert record["what"] == "found 1 error\n  ignroe: unknown key; did you mean ignore?"
    assert not (tmp_path / "out" / "verdict").exists()


def test_a_schema_that_changed_after_it_was_listed_is_rejected(
    tmp_path: Path, snapshot: Path, schema_text: str, execute_here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = schema(tmp_path, schema_text)
    (tmp_path / "schema.pbtxt").write_text(schema_text + "# edited meanwhile\n")
    with pytest.raises(SystemExit) as ended:
        execute_here(tmp_path, snapshot, data_version=version(snapshot), **found)
    assert ended.value.code == 10
    record = json.loads(capsys.readouterr().err.splitlines()[-1].removeprefix(MARK))
    expected = f"the schema changed after `resolve`: expected {found['schema_version'][:12]}, found "
    assert expected in record["what"]
    assert record["where"] == found["schema"]


def test_without_a_schema_the_component_bootstraps_one_at_the_place_that_is_named(
    tmp_path: Path, snapshot: Path, execute_here: Any
) -> None:
    place = tmp_path / "schemas" / "schema.pbtxt"
    section = {"on_missing_schema": "bootstrap", "on_missing_baseline": "skip"}
    values = {"data_version": version(snapshot), "schema": str(place), "validation": section}
    execute_here(tmp_path, snapshot, **values, schema_version="")
    said = json.loads((tmp_path / "executor_output.json").read_text())
    assert said["parameterValues"]["decision"] == "PASS"
    assert place.read_bytes() == (tmp_path / "out" / "verdict" / "schema.pbtxt").read_bytes()
