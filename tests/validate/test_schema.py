"""The reviewed schema: read once, and refused whole if it could not be applied."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.forbidden import forbid_writing, obey_permissions
from trainwright.errors import MARK, InputError
from trainwright.experiment import Validation
from trainwright.tables import write_snapshot
from trainwright.validate.__main__ import main
from trainwright.validate.judgement import plan
from trainwright.validate.schema import expected, kind, optional, parse_schema
from trainwright.validate.schema_changes import propose

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights"


@pytest.mark.covers("B37")
def test_a_mistyped_field_is_named_with_its_line() -> None:
    with pytest.raises(InputError, match=r'line 3: .*no field named "presense"') as error:
        parse_schema('feature {\n  name: "x"\n  presense { min_count: 1 }\n}', where="parameter schema")
    assert error.value.where == "parameter schema"
    assert "infer" in error.value.hint


def test_everything_that_tfdv_would_silently_not_apply_is_refused_at_once() -> None:
    text = """
    feature { name: "a" type: INT } feature { name: "a" type: BYTES }
    feature { type: INT } feature { name: "b" }
    feature { name: "c" type: BYTES domain: "cities" }
    feature { name: "d" type: BYTES drift_comparator { infinity_norm { threshold: 0.1 } } }
    feature { name: "e" type: BYTES skew_comparator { infinity_norm { threshold: 0.1 } } }
    """
    with pytest.raises(InputError) as error:
        parse_schema(text, where="here")
    assert error.value.what.splitlines() == [
        "found 6 errors",
        "  a: declared 2 times",
        "  a feature has no name",
        "  b: no type; one of BYTES, INT, FLOAT",
        "  c: domain 'cities' is not declared; known are []",
        "  d: has a drift_comparator; limits belong to validation.drift",
        "  e: has a skew_comparator; limits belong to validation.drift",
    ]


@pytest.mark.covers("B38")
def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(InputError, match="would accept anything"):
        parse_schema("", where="here")


def test_a_column_is_compared_by_what_it_holds() -> None:
    schema = parse_schema(
        """
        feature { name: "count" type: INT int_domain { min: 0 } }
        feature { name: "code" type: INT int_domain { is_categorical: true } }
        feature { name: "flag" type: INT bool_domain {} }
        feature { name: "word" type: BYTES }
        feature { name: "prose" type: BYTES string_domain { is_categorical: CATEGORICAL_NO } }
        feature { name: "deep" type: STRUCT }
        """,
        where="here",
    )
    assert {feature.name: kind(feature) for feature in schema.feature} == {
        "count": "numbers",
        "code": "categories",
        "flag": "categories",
        "word": "categories",
        "prose": "text",
        "deep": "nested",
    }


def test_planned_columns_and_those_of_serving_alone_are_not_expected() -> None:
    schema = parse_schema(
        """
        default_environment: "TRAINING" default_environment: "SERVING"
        feature { name: "a" type: INT } feature { name: "b" type: INT lifecycle_stage: PLANNED }
        feature { name: "c" type: INT not_in_environment: "TRAINING" }
        feature { name: "d" type: INT presence {} }
        """,
        where="here",
    )
    assert list(expected(schema)) == ["a", "d"]
    assert [optional(feature) for feature in expected(schema).values()] == [False, True]


def test_the_schema_of_the_flights_fits_the_columns_that_its_experiment_names() -> None:
    yaml = pytest.importorskip("yaml")
    asked = yaml.safe_load((FLIGHTS / "flights.yaml").read_text())
    schema = parse_schema((FLIGHTS / "schema.pbtxt").read_text(), where="schema.pbtxt")
    roles = {role: asked["data"][role] for role in ("key", "time", "label")}
    limits = plan(schema, Validation.check(asked["validation"], "flights.yaml"), roles)
    columns = expected(schema).keys()
    assert {*roles.values(), *asked["features"]["request"], *asked["features"]["known_after"]} <= columns
    assert {limit.column for limit in limits} == columns - {*asked["validation"]["ignore"]} - {
        roles["key"],
        roles["time"],
    }


def test_a_first_schema_is_inferred_for_review_and_parses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"id": ["a", "b"], "x": [1, 2], "late": [0, 1]})
    roles = {"key": "id", "label": "late"}
    snapshot = write_snapshot(tmp_path, {"train": [table]}, parents={}, roles=roles)
    main(["infer", str(tmp_path), "--split", "train"])
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"# Inferred from 2 rows of train, data {snapshot.digest[:12]}.\n# Review")
    columns = expected(parse_schema(said.out, where="stdout"))
    assert {name: kind(feature) for name, feature in columns.items()} == {
        "id": "text",
        "x": "numbers",
        "late": "categories",
    }
    assert list(columns["late"].not_in_environment) == ["SERVING"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["infer", "nowhere"], "no Snapshot here"),
        (["infer"], "the following arguments are required: snapshot"),
        (["guess"], "invalid choice: 'guess'"),
    ],
)
def test_a_wrong_command_ends_with_the_code_of_bad_input(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 10
    assert what in json.loads(capsys.readouterr().err.splitlines()[-1].removeprefix(MARK))["what"]


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
    strange: Path, reviewed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = reviewed.read_text()
    ours, theirs = os.openpty()
    os.write(ours, b"n\n")
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        main(["accept", str(strange), "--schema", str(reviewed)])
    os.close(ours)
    said = capsys.readouterr()
    assert said.out.endswith(f"Write this to {reviewed}? [y/N] ")
    assert said.err == "Nothing was changed.\n"
    assert reviewed.read_text() == before


@pytest.mark.covers("B12")
def test_accept_that_may_not_write_ends_with_50_and_changes_nothing(strange: Path, reviewed: Path) -> None:
    before = reviewed.read_text()
    command = [
        *forbid_writing(reviewed.parent),
        sys.executable,
        "-m",
        "trainwright.validate",
        "accept",
        str(strange),
    ]
    done = subprocess.run(
        [*command, "--schema", str(reviewed), "--yes"],
        cwd=ROOT, preexec_fn=obey_permissions, capture_output=True, text=True, check=False,
    )  # fmt: skip
    reviewed.parent.chmod(0o755)
    assert done.returncode == 50, done.stderr
    assert reviewed.read_text() == before


def test_one_module_infers_and_one_changes_a_schema() -> None:
    """A gating run infers only where there is no schema, and never changes one."""
    for path in (ROOT / "trainwright" / "validate").glob("*.py"):
        text = path.read_text()
        calls = "tfdv.infer_schema(" in text or "tfdv.update_schema(" in text
        assert calls is (path.name in {"inference.py", "schema_changes.py"}), path.name
        named = "validate.schema_changes import" in text
        assert named is (path.name == "__main__.py"), path.name
