"""A draft of each kind of source: the file is short and exact, and its snapshot is that of a run."""

import datetime as dt
import decimal
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.draft import sample
from trainwright.draft.documents import Draft, DraftRequest
from trainwright.draft.draft import scalar, write_draft
from trainwright.errors import DataRefused, InputError

ROWS = 300
START = dt.datetime(2024, 1, 1)


def customers(rows: int = ROWS) -> dict[str, list[Any]]:
    draw = random.Random(0)  # noqa: S311 - repeatable
    return {
        "customer_id": [f"c{n}" for n in range(rows)],
        "signed_up": [START + dt.timedelta(days=n) for n in range(rows)],
        "name": [f"Person {n}" for n in range(rows)],
        "plan": [draw.choice(["free", "pro", "no"]) for _ in range(rows)],
        "age": [None if n % 9 == 0 else draw.randint(18, 80) for n in range(rows)],
        "currency": ["EUR"] * rows,
        "churn": [draw.randint(0, 1) for _ in range(rows)],
    }


def put(path: Path, columns: dict[str, list[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    else:
        text = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        path.write_text("\n".join([",".join(columns), *text]) + "\n")
    return path


def draft(source: Path | str, folder: Path, **options: str) -> Draft:
    scratch = folder / "scratch"
    scratch.mkdir()
    return write_draft(DraftRequest(source=str(source), folder=str(folder), **options), scratch)


@pytest.mark.parametrize("name", ["customers.csv", "customers.parquet", "customers.jsonl"])
def test_table_with_times_gets_a_short_exact_file(name: str, tmp_path: Path) -> None:
    found = draft(put(tmp_path / name, customers()), tmp_path)
    assert (
        found.experiment
        == f"""\
# Predict churn: customers. Written by trainwright init; docs/experiment.md lists all keys.
schema_version: 1
data:
  source: {name}
  key: customer_id
  time: signed_up
  label: churn
  splits:                        # UTC; 70, 15 and 15 % of the rows seen
    train: {{start: 2024-01-01T00:00:00Z, end: 2024-07-29T00:00:00Z}}
    evaluate: {{start: 2024-07-29T00:00:00Z, end: 2024-09-12T00:00:00Z}}
    holdout: {{start: 2024-09-12T00:00:00Z, end: 2024-10-27T00:00:00Z}}
schema_file: schema.pbtxt        # inferred from the split train; review it
validation:
  on_missing_baseline: bootstrap # until you set baseline: see trainwright baseline accept
  ignore: [name, currency]       # no drift check: not features
features:
  exclude: [name, currency]      # text that differs from row to row; one value in every row
network: {{kind: auto}}            # trees and a network; the better one is kept
evaluation:
  slices: [plan]
  missing_baseline: bootstrap    # until a model is in production; then remove this line
registry:
  model: customers
  tracking_uri: sqlite:///runs/mlflow.db
"""
    )
    snapshot = Snapshot.read(tmp_path / "scratch" / "snapshot")
    assert snapshot.roles == {"key": "customer_id", "time": "signed_up", "label": "churn"}
    assert snapshot.splits == {"train": 210, "evaluate": 45, "holdout": 45}


def test_findings_name_each_choice_with_its_reason(tmp_path: Path) -> None:
    source = put(tmp_path / "customers.csv", customers())
    assert draft(source, tmp_path).findings == (
        f"{source}: 300 rows, 7 columns",
        "  key      customer_id: unique, and named like a key",
        "  time     signed_up: the only complete column of times",
        "  label    churn: the last column (or --label COLUMN)",
        "           0 (49%), 1 (51%): binary",
        "  splits   in the order of signed_up: train 70%, evaluate 15%, holdout 15%",
        "  exclude  name: text that differs from row to row",
        "  exclude  currency: one value in every row",
        "  slices   plan: few values, to compare the model between them",
        "  warning  evaluate has fewer than 30 rows of churn = 0 (about 22), 1 (about 23), too few to judge "
        "a model: bring about 406 rows in all, or make the split larger in data.splits",
    )


def test_warning_of_few_rows_names_the_rare_class_alone_and_ends_with_enough_rows(tmp_path: Path) -> None:
    for rows, known in ((1000, False), (4000, True)):
        folder = tmp_path / str(rows)
        draw = random.Random(0)  # noqa: S311 - repeatable
        churn = [int(n % 20 == 0) for n in range(rows)]
        draw.shuffle(churn)
        found = draft(put(folder / "t.csv", customers(rows) | {"churn": churn}), folder).findings
        assert ("  warning  " in found[-1]) != known
        if not known:
            assert "evaluate has fewer than 30 rows of churn = 1 (about 8), " in found[-1]
            assert "bring about 4,000 rows in all" in found[-1]


def test_column_that_follows_the_time_is_left_out_of_the_drift_check_of_windows(tmp_path: Path) -> None:
    columns = {"week": [n // 7 for n in range(ROWS)]} | customers()
    windows = draft(put(tmp_path / "t.csv", columns), tmp_path)
    assert "  ignore: [name, currency, week] " in windows.experiment
    (tmp_path / "by_group").mkdir()
    shares = draft(tmp_path / "t.csv", tmp_path / "by_group", group="plan")
    assert "  ignore: [name, plan, currency] " in shares.experiment


def test_separators_of_a_csv_are_written_to_the_file(tmp_path: Path) -> None:
    columns = customers() | {"age": [f"{n % 60},5" for n in range(ROWS)]}
    path = put(tmp_path / "customers.csv", columns)
    lines = [";".join(str(value) for value in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([";".join(columns), *lines]) + "\n")
    found = draft(path, tmp_path)
    assert 'csv: {delimiter: ";", decimal: ","}' in found.experiment
    types = {column.name: column.type for column in Snapshot.read(tmp_path / "scratch" / "snapshot").columns}
    assert types["age"] == "double"


@pytest.mark.parametrize(
    ("form", "days", "order"),
    [
        ("%d.%m.%Y", 9, "DMY"),
        ("%d/%m/%Y", ROWS, "DMY"),
        ("%-m/%-d/%Y %H:%M", ROWS, "MDY"),
        ("%d/%m/%Y", 9, ""),
    ],
)
def test_dates_with_the_year_last_are_times_if_their_order_is_clear(
    tmp_path: Path, form: str, days: int, order: str
) -> None:
    moments = [START + dt.timedelta(days=n % days) for n in range(ROWS)]
    columns = customers() | {"signed_up": [f"{moment:{form}}" for moment in moments]}
    found = draft(put(tmp_path / "customers.csv", columns), tmp_path)
    assert ("  time: signed_up\n" in found.experiment) is bool(order)
    assert (f"  csv: {{dates: {order}}}\n" in found.experiment) is bool(order)
    unclear = "signed_up holds dates such as 01/02/2024"
    assert any(unclear in line for line in found.findings) is not bool(order)
    columns_read = {one.name: one.type for one in Snapshot.read(tmp_path / "scratch" / "snapshot").columns}
    assert columns_read["signed_up"].startswith(("date", "timestamp") if order else "string")


def test_folder_of_parts_is_one_source_named_by_the_folder(tmp_path: Path) -> None:
    for day in (1, 2):
        columns = customers() | {"customer_id": [f"{day}-{n}" for n in range(ROWS)]}
        put(tmp_path / "orders" / f"day={day}" / "part.csv", columns)
    found = draft(tmp_path / "orders", tmp_path, label="churn")
    assert "  source: orders\n" in found.experiment
    assert "  model: orders\n" in found.experiment
    assert found.findings[0].endswith("600 rows, 8 columns")


def test_folder_of_mixed_formats_is_rejected_with_their_numbers(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.parquet"):
        put(tmp_path / "mixed" / name, customers())
    with pytest.raises(InputError, match="expected files of one format, found 2 CSV, 1 Parquet"):
        draft(tmp_path / "mixed", tmp_path)


def test_query_of_a_database_names_its_tables(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE customers (id INTEGER, plan TEXT, churn INTEGER)")
        rows = [(n, f"p{n % 3}", n % 2) for n in range(ROWS)]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
    query = "SELECT id, plan, churn FROM customers"
    found = draft(f"sqlite:///{tmp_path}/shop.db", tmp_path, query=query)
    assert "  source: sqlite:///shop.db\n  format: sql\n" in found.experiment
    assert f'  sql: {{select: "{query}", tables: [customers]}}\n' in found.experiment
    assert "  model: customers\n" in found.experiment


def test_key_of_a_query_that_was_inferred_is_not_called_requested(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE customers (id INTEGER, plan TEXT, churn INTEGER)")
        rows = [(n, f"p{n % 3}", n % 2) for n in range(ROWS)]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
    found = draft(f"sqlite:///{tmp_path}/shop.db", tmp_path, query="SELECT * FROM customers")
    assert "  key      id: unique, and named like a key" in found.findings


def test_parquet_of_every_kind_of_column_is_drafted(tmp_path: Path) -> None:
    columns = {
        "opens": pa.array([dt.time(n % 24) for n in range(60)]),
        "takes": pa.array([dt.timedelta(hours=n % 9) for n in range(60)]),
        "plan": pa.array([f"p{n % 3}" for n in range(60)]).dictionary_encode(),
        "price": pa.array([decimal.Decimal(n % 7) / 10 for n in range(60)], pa.decimal128(8, 2)),
        "tags": pa.array([["a"]] * 60),
        "place": pa.array([{"lat": 1.5}] * 60),
        "churn": pa.array([n % 2 for n in range(60)]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = draft(tmp_path / "t.parquet", tmp_path)
    assert "  exclude  opens, takes: times of the day or durations" in found.findings
    assert "  exclude  tags, place: lists, objects or bytes" in found.findings
    assert "  exclude: [opens, takes, tags, place] " in found.experiment
    assert "  ignore: [opens, takes, tags] " in found.experiment, "the schema has no structs"


def test_text_that_means_missing_between_numbers_is_written_to_the_file(tmp_path: Path) -> None:
    codes = ["?" if n % 9 == 0 else f"0{n % 50}" for n in range(ROWS)]
    columns = {"code": codes} | customers()
    columns["age"] = ["N/A" if n % 9 == 0 else n % 50 + 18 for n in range(ROWS)]
    found = draft(put(tmp_path / "t.csv", columns), tmp_path)
    assert "  missing  'N/A', as in age, which holds numbers else" in found.findings
    assert '  missing: ["", NA, NaN, nan, "null", "NULL", N/A] # ' in found.experiment
    snapshot = Snapshot.read(tmp_path / "scratch" / "snapshot")
    kinds = {one.name: one.type for one in snapshot.columns}
    assert (kinds["age"], kinds["code"]) == ("int64", "string"), "007 is a code, and ? may be one"


def test_column_named_like_the_added_key_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    columns = {"row": [n % 7 for n in range(60)], "y": [n % 2 for n in range(60)]}
    with pytest.raises(InputError, match="the table has one of that name") as error:
        draft(put(tmp_path / "t.csv", columns), tmp_path)
    assert "--key" in error.value.hint
    assert error.value.where.endswith("t.csv")


def test_column_named_like_the_scores_is_no_feature_and_no_label(tmp_path: Path) -> None:
    columns = {"age": [n % 7 for n in range(60)], "score": [n % 5 for n in range(60)]}
    put(tmp_path / "t.csv", columns | {"churn": [n % 2 for n in range(60)]})
    found = draft(tmp_path / "t.csv", tmp_path)
    assert "  exclude  score: the name of the model's scores; rename it to use it" in found.findings
    (tmp_path / "label").mkdir()
    with pytest.raises(InputError, match="label 'score' has the name of the model's scores"):
        draft(tmp_path / "t.csv", tmp_path / "label", label="score")


def test_key_and_text_alone_are_no_features_and_the_error_names_both(tmp_path: Path) -> None:
    columns = {
        "id": list(range(60)),
        "note": [f"note {n}" for n in range(60)],
        "y": [n % 2 for n in range(60)],
    }
    with pytest.raises(InputError, match=r"'y' from: id \(key\); note \(text that differs from row to row\)"):
        draft(put(tmp_path / "t.csv", columns), tmp_path)


def test_query_without_a_key_lists_the_columns_to_choose_from(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE customers (plan TEXT, churn INTEGER)")
    with pytest.raises(InputError, match="no column is named like a key") as error:
        draft(f"sqlite:///{tmp_path}/shop.db", tmp_path, query="SELECT plan, churn FROM customers")
    assert error.value.hint.endswith("--key COLUMN. Columns: plan, churn.")


@pytest.mark.parametrize(
    ("source", "query", "problem"),
    [
        ("sqlite:////x.db", "", "a database needs a query"),
        ("mysql://host/x", "SELECT 1", "is no database that is read here"),
        ("sqlite:////x.db", "SELECT 1", "no such SQLite file"),
    ],
)
def test_database_that_cannot_be_read_is_an_error(
    source: str, query: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        draft(source, tmp_path, query=query)


def test_spreadsheet_is_rejected_with_the_formats_to_convert_it_to(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match="expected a Parquet, CSV or JSONL file") as error:
        draft(tmp_path / "t.xlsx", tmp_path)
    assert error.value.hint == "Convert it, and name it .parquet, .csv or .jsonl."


def test_text_for_a_language_model_has_no_label_and_is_the_only_feature(tmp_path: Path) -> None:
    story = {"story_id": list(range(60)), "lang": ["en"] * 60, "body": [f"word {n}" * 9 for n in range(60)]}
    found = draft(put(tmp_path / "t.jsonl", story), tmp_path, kind="text")
    assert "  text     body: the longest text (or --text COLUMN)" in found.findings
    assert "  request: [body]\n" in found.experiment
    assert "network: {kind: lm, text: body, " in found.experiment
    snapshot = Snapshot.read(tmp_path / "scratch" / "snapshot")
    assert (snapshot.roles, snapshot.target) == ({"key": "story_id"}, SnapshotTarget(kind="text"))


def test_group_stays_in_one_split_and_is_no_feature(tmp_path: Path) -> None:
    columns = {"shop": [f"s{n % 40}" for n in range(ROWS)]} | customers()
    found = draft(put(tmp_path / "t.csv", columns), tmp_path, group="shop")
    assert "  split_by: shop\n" in found.experiment
    assert "  cluster: shop " in found.experiment
    assert "exclude: [shop, name, currency]" in found.experiment


def test_column_that_gives_the_label_away_is_a_warning_and_stays_a_feature(tmp_path: Path) -> None:
    columns = {"refunded": customers()["churn"]} | customers()
    found = draft(put(tmp_path / "t.csv", columns), tmp_path)
    assert found.findings[-1] == (
        "  warning  refunded alone predicts churn in every row: "
        "if it is known only afterwards, add it to features.known_after"
    )
    assert "refunded" not in found.experiment


def test_large_file_is_sampled_from_its_whole_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = put(tmp_path / "t.csv", customers(5000))
    monkeypatch.setattr(sample, "_MOST_BYTES", 60_000)
    found = draft(source, tmp_path)
    assert found.findings[0].split(": ")[1].startswith("a sample of 1,")
    assert "train: {start: 2024-01-01T00:00:00Z, " in found.experiment
    assert "end: 2037-09-09T00:00:00Z}\nschema_file" in found.experiment


def test_a_thousand_columns_stay_below_30_lines(tmp_path: Path) -> None:
    wide = {f"x{n}": [1 if n % 2 else row % 5 for row in range(60)] for n in range(1000)}
    found = draft(put(tmp_path / "t.csv", wide | {"y": [row % 2 for row in range(60)]}), tmp_path)
    assert len(found.experiment.splitlines()) < 30
    assert found.findings[-2] == (
        "  exclude  x1, x3, x5, x7, x9, x11, x13, x15 and 492 more: one value in every row"
    )


@pytest.mark.parametrize(
    ("content", "error", "problem"),
    [
        (b"", InputError, "the file is empty: 0 bytes"),
        (b"\n\n", InputError, "no header"),
        (b"a,b\n", DataRefused, "found 0 rows"),
        (b"a,y\n1,0\n", DataRefused, "found 1 row\n"),
        (b"a,a,y\n" + b"1,2,0\n" * 30, InputError, r"columns \['a'\] appear twice"),
        (b"a,y\n" + b"1,0\n" * 30, DataRefused, "label 'y' holds only 0 in 30 rows"),
        (b"a,y\n" + b",\n" * 30, DataRefused, "label 'y' holds no value"),
        (b"a,y\n" + b"\xe9,1\n" * 30, InputError, "not UTF-8 text from byte 4 on"),
        (b"y\n" + b"0\n1\n" * 30, InputError, "no column is left to predict 'y' from: it is the only one"),
    ],
)
def test_table_that_nothing_can_learn_from_is_one_clear_error(
    content: bytes, error: type[Exception], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(error) as found:
        draft(tmp_path / "t.csv", tmp_path)
    assert found.match(problem)


@pytest.mark.parametrize("option", ["label", "key", "time", "group", "text"])
def test_option_that_names_no_column_is_rejected_with_close_matches(option: str, tmp_path: Path) -> None:
    source = put(tmp_path / "t.csv", customers())
    with pytest.raises(InputError, match=r"no column 'chrn' \(close: churn\)"):
        draft(source, tmp_path, **{option: "chrn"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plan", "plan"),
        ("first name", "first name"),
        ("../data/a.csv", "../data/a.csv"),
        ("no", '"no"'),
        ("On", '"On"'),
        ("null", '"null"'),
        ("1.0", '"1.0"'),
        ("a: b", '"a: b"'),
        ("x #1", '"x #1"'),
        ("größe", '"größe"'),
        ("-", '"-"'),
        ('5" disk', '"5\\" disk"'),
        (["a", "yes"], '[a, "yes"]'),
        ({"fraction": 0.7}, "{fraction: 0.7}"),
    ],
)
def test_value_that_yaml_would_misread_is_quoted(value: object, text: str) -> None:
    assert scalar(value) == text
