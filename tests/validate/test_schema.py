"""The reviewed schema: read once, and refused whole if it could not be applied."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from trainwright.errors import MARK, InputError
from trainwright.experiment import Validation
from trainwright.tables import write_snapshot
from trainwright.validate.policy import plan
from trainwright.validate.schema import expected, kind, optional, parse_schema

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights"


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


def infer(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainwright.validate", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_first_schema_is_inferred_for_review_and_parses(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "x": [1, 2], "late": [0, 1]})
    roles = {"key": "id", "label": "late"}
    snapshot = write_snapshot(tmp_path, {"train": [table]}, parents={}, roles=roles)
    done = infer("infer", str(tmp_path), "--split", "train")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith(
        f"# Inferred from 2 rows of split train, data {snapshot.digest[:12]}.\n# Review"
    )
    columns = expected(parse_schema(done.stdout, where="stdout"))
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
def test_a_wrong_command_ends_with_the_code_of_bad_input(arguments: list[str], what: str) -> None:
    done = infer(*arguments)
    assert done.returncode == 10
    assert what in json.loads(done.stderr.splitlines()[-1].removeprefix(MARK))["what"]
