"""What would have to change in a reviewed schema: a patch with its reasons, that leaves the rest alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trainwright.errors import MARK
from trainwright.tables import write_snapshot
from trainwright.validate.__main__ import main
from trainwright.validate.schema import expected, parse_schema
from trainwright.validate.schema_changes import propose

ROOT = Path(__file__).resolve().parents[2]
Table = Callable[..., pa.Table]


@pytest.fixture
def reviewed(schema_text: str, tmp_path: Path) -> Path:
    path = tmp_path / "schema.pbtxt"
    path.write_text("# Reviewed { by hand }: what is in here, and why.\n" + schema_text + "# The end.\n")
    return path


@pytest.fixture
def strange(rows: Table, tmp_path: Path) -> Path:
    """Rows with a new plan, hours beyond the day and a new column."""
    hour = np.where(np.arange(1_000) % 100 == 0, 26, 7)
    table = rows(1_000, 1, plan=pa.array(["family"] * 30 + ["team"] * 970), hour=pa.array(hour))
    table = table.append_column("gate", pa.array(["a", None] * 500))
    write_snapshot(tmp_path / "snapshot", {"train": [table]}, parents={}, roles={"key": "id"})
    return tmp_path / "snapshot"


def test_rows_that_fit_propose_nothing(rows: Table, reviewed: Path, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "fits", {"train": [rows(500, 1)]}, parents={}, roles={"key": "id"})
    proposal = propose(tmp_path / "fits", reviewed.read_text(), "train", "here")
    assert proposal.patch("schema.pbtxt") == ""
    assert proposal.new == proposal.old


def test_each_change_has_its_reason_with_the_rows_that_it_is_about(strange: Path, reviewed: Path) -> None:
    proposal = propose(strange, reviewed.read_text(), "train", "here")
    assert proposal.reasons == (
        "column gate is new: string, not in the schema",
        "column hour: Unexpectedly large value: 26. (10 rows are too large)",
        "column plan: Examples contain values missing from the schema: family (~3%). "
        "(30 rows are not in its domain)",
    )
    assert "# proposed: 500 of 1,000 rows have a value" in proposal.new


def test_the_patch_applies_and_what_need_not_change_is_left_as_it_was(strange: Path, reviewed: Path) -> None:
    proposal = propose(strange, reviewed.read_text(), "train", "here")
    done = subprocess.run(
        ["patch", "-p1", reviewed.name],
        cwd=reviewed.parent, input=proposal.patch(reviewed.name), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert reviewed.read_text() == proposal.new
    assert proposal.new.startswith("# Reviewed { by hand }: what is in here, and why.\n")
    assert "# The end.\n" in proposal.new
    kept = [line for line in proposal.old.splitlines() if "hour" not in line and '"plan" value' not in line]
    assert set(kept) <= set(proposal.new.splitlines())


def test_the_rows_fit_the_schema_that_they_proposed(strange: Path, reviewed: Path) -> None:
    new = propose(strange, reviewed.read_text(), "train", "here").new
    assert propose(strange, new, "train", "here").patch("x") == ""
    columns = expected(parse_schema(new, where="here"))
    assert columns["hour"].int_domain.max == 26
    assert list(columns["late"].not_in_environment) == ["SERVING"]


def test_diff_writes_the_patch_and_changes_nothing(
    strange: Path, reviewed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = reviewed.read_text()
    main(["diff", str(strange), "--schema", str(reviewed)])
    assert capsys.readouterr().out == propose(strange, before, "train", "here").patch("schema.pbtxt")
    assert reviewed.read_text() == before


def test_accept_shows_the_patch_and_writes_it_only_when_told_so(
    strange: Path, reviewed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, command = reviewed.read_text(), ["accept", str(strange), "--schema", str(reviewed)]
    with pytest.raises(SystemExit) as refused:
        main(command)
    assert refused.value.code == 10
    first = capsys.readouterr()
    assert json.loads(first.err.splitlines()[-1].removeprefix(MARK))["what"] == "there is nobody to ask"
    assert reviewed.read_text() == before
    main([*command, "--yes"])
    assert capsys.readouterr().out == first.out != ""
    assert reviewed.read_text() == propose(strange, before, "train", "here").new
    assert [path.name for path in reviewed.parent.iterdir() if path.name.startswith(".schema")] == []


def test_accept_asks_where_there_is_a_terminal_and_a_no_changes_nothing(
    strange: Path, reviewed: Path
) -> None:
    before = reviewed.read_text()
    ours, theirs = os.openpty()
    os.write(ours, b"n\n")
    command = [
        sys.executable,
        "-m",
        "trainwright.validate",
        "accept",
        str(strange),
        "--schema",
        str(reviewed),
    ]
    done = subprocess.run(command, cwd=ROOT, stdin=theirs, capture_output=True, text=True, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Write this to {reviewed}? [y/N] ")
    assert reviewed.read_text() == before


def test_the_gating_run_never_infers() -> None:
    """Only two modules can make or change a schema, and the gate reaches neither call: commands do."""
    for path in (ROOT / "trainwright" / "validate").glob("*.py"):
        text = path.read_text()
        calls = "tfdv.infer_schema(" in text or "tfdv.update_schema(" in text
        assert calls is (path.name in ("schema.py", "schema_changes.py")), path.name
        named = "validate.schema_changes import" in text or "import infer, " in text
        assert named is (path.name == "__main__.py"), path.name
