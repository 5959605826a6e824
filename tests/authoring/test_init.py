"""``trainwright init`` in the real environments: the files that it writes are valid, and nothing is lost."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.authoring import arguments
from trainwright.errors import InputError
from trainwright.local.initialization import initialize

START = "from trainwright.cli.app import main; main()"
ROWS = 200


def init(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", START, "init", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flowers.csv"
    rows = [f"{n % 17 / 10},{n % 5},{('rose', 'tulip', 'no')[n % 3]}" for n in range(ROWS)]
    path.write_text("\n".join(["length,petals,species", *rows]) + "\n")
    return path


def test_table_gets_a_valid_experiment_and_a_schema_of_what_validate_sees(table: Path) -> None:
    done = init(table.parent, "flowers.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "Wrote experiment.yaml and schema.pbtxt: look at both.",
        "Next  trainwright run train_and_register --config experiment.yaml",
    ]
    experiment = arguments.load(table.parent / "experiment.yaml")
    assert experiment.data.classes == ("no", "rose", "tulip")
    assert (experiment.data.key, experiment.data.time, experiment.data.label) == (None, None, "species")
    assert set(experiment.data.shares) == {"train", "evaluate", "holdout"}
    schema = (table.parent / "schema.pbtxt").read_text()
    assert schema.startswith("# Inferred from 1")
    assert all(f'name: "{name}"' in schema for name in ("length", "petals", "species"))


@pytest.mark.parametrize("name", ["experiment.yaml", "schema.pbtxt"])
def test_existing_file_is_not_overwritten_and_the_error_names_output(table: Path, name: str) -> None:
    (table.parent / name).write_text("mine")
    done = init(table.parent, "flowers.csv")
    assert done.returncode == 10
    assert f"at    {table.parent / name}\n" in done.stderr
    assert "--output" in done.stderr
    assert (table.parent / name).read_text() == "mine"
    assert sorted(path.name for path in table.parent.iterdir()) == sorted(["flowers.csv", name])


@pytest.mark.covers("B10")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kind": "regresion"}, "found 'regresion'\n.*\n.*Did you mean regression"),
        ({"text": "body", "label": "y"}, "a language model learns --text"),
        ({"text": "body", "kind": "binary"}, "every other kind a --label"),
    ],
)
def test_options_that_exclude_each_other_are_an_error(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError) as error:
        initialize("flowers.csv", **options)
    assert re.search(problem, str(error.value))


def test_error_of_the_reader_keeps_its_message_and_exit_code_and_nothing_is_written(table: Path) -> None:
    table.write_text("a,y\n" + "1,0\n" * 30)
    done = init(table.parent, "flowers.csv")
    assert (done.returncode, done.stdout) == (11, "")
    assert done.stderr.startswith("DataRefused: label 'y' holds only 0 in 30 rows")
    assert [path.name for path in table.parent.iterdir()] == ["flowers.csv"]
