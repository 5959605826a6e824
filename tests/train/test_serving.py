"""A model's folder, loaded where nothing else of the training is left."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.train.odd import Made
from tests.train.problems import Outcome, flights
from trainwright import serving, tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import InputError
from trainwright.registry.register import write_mlflow_model

COLUMNS = ["wind", "noise", "carrier", "holiday"]


@pytest.fixture(scope="module")
def predictor(trained: Outcome) -> serving.Predictor:
    return serving.load(trained.model)


@pytest.fixture
def judged(trained: Outcome) -> pa.Table:
    return tables.read_split(trained.predictions, Snapshot.read(trained.predictions), "evaluate")


def test_served_scores_are_those_that_were_judged_bit_for_bit(
    predictor: serving.Predictor, judged: pa.Table
) -> None:
    expected = judged["score"].to_numpy()
    by_arrow = predictor.predict(judged)
    by_lists = predictor.predict({name: judged[name].to_pylist() for name in COLUMNS})
    assert by_arrow.dtype == np.float64
    assert np.array_equal(by_arrow, expected)
    assert np.array_equal(by_lists, expected)


def test_a_row_alone_scores_as_it_does_among_others(predictor: serving.Predictor, judged: pa.Table) -> None:
    alone = [float(predictor.predict(judged.slice(row, 1))[0]) for row in range(20)]
    np.testing.assert_allclose(alone, judged["score"].to_numpy()[:20], rtol=1e-6)


def test_the_input_example_is_what_the_model_reads(trained: Outcome, predictor: serving.Predictor) -> None:
    example = json.loads((trained.model / "input_example.json").read_text())
    signature = json.loads((trained.model / "signature.json").read_text())
    columns = dict(zip(example["columns"], zip(*example["data"], strict=True), strict=True))
    assert [entry["name"] for entry in signature["inputs"]] == example["columns"]
    first = flights(6001, 0).slice(0, 5)
    np.testing.assert_array_equal(
        predictor.predict({name: list(values) for name, values in columns.items()}), predictor.predict(first)
    )


MLFLOW = """
import json, sys
from pathlib import Path
package, rows, pandas = sys.argv[1:]
sys.path.append(pandas)
import mlflow.pyfunc, numpy, pandas
from mlflow.models import Model
example = Model.load(package).load_input_example(package)
model = mlflow.pyfunc.load_model(package)
frame = pandas.read_json(rows, orient="split", dtype=False, convert_dates=["seen"])
for name, table in {"example": example, "frame": frame}.items():
    Path(package, name + ".bin").write_bytes(numpy.asarray(model.predict(table)).tobytes())
"""


def test_mlflow_loads_a_registered_model_and_scores_its_example_and_a_frame(
    plain_made: Made, tmp_path: Path
) -> None:
    """It needs pandas, which this environment spares, so pandas is borrowed from that of join."""
    pandas = (
        Path(sys.prefix).parent / "feast" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    )
    if not (pandas / "site-packages" / "pandas").exists():
        pytest.skip("no feast environment beside this one")
    package, names = tmp_path / "package", list(plain_made.trained.transforms.inputs)
    write_mlflow_model(plain_made.folder, Model.read(plain_made.folder), package, run="0" * 32, time_ms=0)
    example = json.loads((package / "input_example.json").read_text())
    usual = plain_made.rows.slice(0, 300).select(names)
    times = usual["seen"].cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
    lists = [times if name == "seen" else usual[name].to_pylist() for name in names]
    frame = {"columns": names, "data": [list(row) for row in zip(*lists, strict=True)]}
    (tmp_path / "rows.json").write_text(json.dumps(frame))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        MLFLOW,
        package,
        tmp_path / "rows.json",
        pandas / "site-packages",
    ]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=quiet, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    columns = dict(
        zip(example["columns"], (list(each) for each in zip(*example["data"], strict=True)), strict=True)
    )
    model = serving.load(plain_made.folder)
    assert (package / "example.bin").read_bytes() == model.predict(columns).tobytes()
    assert (package / "frame.bin").read_bytes() == model.predict(usual).tobytes()


def test_what_was_never_seen_gets_a_score_all_the_same(predictor: serving.Predictor) -> None:
    scores = predictor.predict(
        {
            "wind": [None, float("nan"), 1e300],
            "noise": [None, 5, -(10**12)],
            "carrier": ["new", None, "c1"],
            "holiday": [None, True, False],
        }
    )
    assert np.all((scores > 0) & (scores < 1))


def test_no_rows_give_no_scores(predictor: serving.Predictor, judged: pa.Table) -> None:
    assert predictor.predict(judged.slice(0, 0)).shape == (0,)


def test_a_missing_column_is_named(predictor: serving.Predictor) -> None:
    with pytest.raises(InputError, match="carrier"):
        predictor.predict({"wind": [1.0], "noise": [1], "holiday": [True]})


def test_a_column_of_the_wrong_type_is_named(predictor: serving.Predictor) -> None:
    with pytest.raises(InputError, match=r"'wind' cannot be read as a number: row 0, .* 'strong'"):
        predictor.predict({"wind": ["strong"], "noise": [1], "carrier": ["c1"], "holiday": [True]})


@pytest.mark.parametrize("name", ["weights.safetensors", "program.pt2", "transforms.json"])
def test_a_flipped_bit_is_refused(trained: Outcome, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained.model, folder)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{name} is not what the model's manifest says"):
        serving.load(folder)


def test_a_folder_without_its_manifest_is_no_model(trained: Outcome, tmp_path: Path) -> None:
    shutil.copytree(trained.model, tmp_path / "model", ignore=shutil.ignore_patterns("model.json"))
    with pytest.raises(InputError, match="no Model here"):
        serving.load(tmp_path / "model")
