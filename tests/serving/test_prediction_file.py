"""A file is scored as the training scored its rows, for each kind of target and form of file."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tests.train.odd import TARGETS, untrained, with_odd_rows
from tests.train.problems import flights, write
from trainwright.errors import InputError
from trainwright.serving import load
from trainwright.serving.outputs import Threshold
from trainwright.serving.prediction_file import predict_file

ModelOf = Callable[..., Path]
NAMES = {"binary": ("on time", "late"), "multiclass": ("on time", "late", "cancelled"), "regression": ()}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> ModelOf:
    """Write the folder of a model of some kind, each once."""
    place = tmp_path_factory.mktemp("set")
    write(place / "set", {"train": with_odd_rows(300, 1), "evaluate": with_odd_rows(100, 2)})

    @functools.cache
    def write_model(kind: str, threshold: float = 0.0) -> Path:
        made = untrained(place / "set", TARGETS[kind])
        chosen = Threshold(threshold, "youden", "evaluate", 0.5) if threshold else None
        folder = tmp_path_factory.mktemp(kind) / "model"
        replace(made, outputs=replace(made.outputs, names=NAMES[kind], threshold=chosen)).write(folder)
        return folder

    return write_model


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    table = flights(50, 3).drop_columns(["late", "gate"])
    pq.write_table(table.append_column("seen", table["at"]), path)
    return path


@pytest.mark.parametrize("kind", TARGETS)
def test_scores_stand_beside_the_columns_that_the_model_does_not_read(
    kind: str, model_of: ModelOf, rows: Path, tmp_path: Path
) -> None:
    folder = model_of(kind)
    made = predict_file(folder, rows, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    expected = load(folder).predict(pq.read_table(rows))
    assert made.rows == found.num_rows == 50
    assert made.columns == found.column_names
    assert found.column_names[:2] == ["id", "at"]
    if kind == "regression":
        assert found.column_names[2:] == ["prediction"]
        assert found["prediction"].to_pylist() == expected.tolist()
        return
    columns = ["score"] if kind == "binary" else ["score_0", "score_1", "score_2"]
    assert found.column_names[2:] == [*columns, "prediction"]
    scores = np.column_stack([found[name].to_numpy() for name in columns])
    assert np.array_equal(scores, expected.reshape(scores.shape))
    best = (expected >= 0.5).astype(int) if kind == "binary" else expected.argmax(axis=1)
    assert found["prediction"].to_pylist() == [NAMES[kind][number] for number in best]


def test_decision_follows_the_threshold_that_the_model_carries(
    model_of: ModelOf, rows: Path, tmp_path: Path
) -> None:
    scores = load(model_of("binary")).predict(pq.read_table(rows))
    middle = float(np.median(scores))
    folder = model_of("binary", threshold=middle)
    predict_file(folder, rows, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")["prediction"].to_pylist()
    assert found == ["late" if score >= middle else "on time" for score in scores]
    assert set(found) == {"late", "on time"}


def test_csv_and_json_lines_give_the_scores_of_parquet(model_of: ModelOf, rows: Path, tmp_path: Path) -> None:
    folder, table = model_of("binary"), pq.read_table(rows)
    predict_file(folder, rows, tmp_path / "out.jsonl")
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    pacsv.write_csv(table, tmp_path / "rows.csv")
    lines = (json.dumps(row | {"at": str(row["at"]), "seen": str(row["seen"])}) for row in table.to_pylist())
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    for suffix in ("csv", "jsonl"):
        output = tmp_path / f"of_{suffix}.parquet"
        predict_file(folder, tmp_path / f"rows.{suffix}", output)
        assert pq.read_table(output)["score"].to_pylist() == [row["score"] for row in expected], suffix


def test_csv_file_is_read_with_the_separators_and_missing_texts_of_the_training(
    model_of: ModelOf, rows: Path, tmp_path: Path
) -> None:
    folder, table = model_of("binary"), pq.read_table(rows)
    wind = pc.if_else(pa.array([True] + [False] * 49), None, table["wind"])
    table = table.set_column(table.column_names.index("wind"), "wind", wind)
    pq.write_table(table, tmp_path / "rows.parquet")
    texts = table.set_column(
        table.column_names.index("wind"), "wind", pc.fill_null(wind.cast("string"), "n/a")
    )
    pacsv.write_csv(texts, tmp_path / "rows.csv", pacsv.WriteOptions(delimiter=";", quoting_style="needed"))
    form = {"csv": {"delimiter": ";"}, "missing": ["n/a", ""]}
    for suffix in ("parquet", "csv"):
        predict_file(folder, tmp_path / f"rows.{suffix}", tmp_path / f"out_{suffix}.parquet", form=form)
    found = [pq.read_table(tmp_path / f"out_{suffix}.parquet")["score"] for suffix in ("parquet", "csv")]
    assert found[0] == found[1]


def test_rows_without_other_columns_are_numbered(model_of: ModelOf, rows: Path, tmp_path: Path) -> None:
    folder = model_of("regression")
    inputs = list(load(folder).transforms.inputs)
    pq.write_table(pq.read_table(rows).select(inputs), tmp_path / "rows.parquet")
    predict_file(folder, tmp_path / "rows.parquet", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == '"row","prediction"'
    assert [line.split(",")[0] for line in lines[1:]] == [str(number) for number in range(50)]


def test_missing_columns_are_named_together_and_nothing_is_written(
    model_of: ModelOf, rows: Path, tmp_path: Path
) -> None:
    folder = model_of("binary")
    pq.write_table(pq.read_table(rows).drop_columns(["wind", "carrier"]), tmp_path / "rows.parquet")
    with pytest.raises(InputError) as error:
        predict_file(folder, tmp_path / "rows.parquet", tmp_path / "out.parquet")
    assert "wind" in error.value.what
    assert "carrier" in error.value.what
    assert error.value.where == str(tmp_path / "rows.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_value_of_another_type_is_an_error_and_leaves_the_earlier_file(
    model_of: ModelOf, rows: Path, tmp_path: Path
) -> None:
    folder, table = model_of("binary"), pq.read_table(rows)
    place = table.column_names.index("wind")
    wrong = table.set_column(place, "wind", pa.array(["1"] * 37 + ["strong"] + ["2"] * 12))
    pq.write_table(wrong, tmp_path / "rows.parquet")
    (tmp_path / "out.csv").write_text("earlier")
    with pytest.raises(
        InputError, match=r"'wind' cannot be read as a number: row 37, .* holds 'strong'"
    ) as error:
        predict_file(folder, tmp_path / "rows.parquet", tmp_path / "out.csv")
    assert error.value.where == str(tmp_path / "rows.parquet")
    assert error.value.hint == (
        "The model was trained with a number in 'wind': correct the value, or leave it empty."
    )
    assert (tmp_path / "out.csv").read_text() == "earlier"
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("name", "said"), [("rows.parquet", "is the file of the rows"), ("out.xlsx", "'.xlsx'")]
)
def test_output_of_another_form_or_over_the_rows_is_rejected(
    name: str, said: str, model_of: ModelOf, rows: Path, tmp_path: Path
) -> None:
    folder = model_of("binary")
    with pytest.raises(InputError, match=said):
        predict_file(folder, rows, rows.with_name(name))
