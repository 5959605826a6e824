"""Training and serving read the same: every transform gives the same bits on both roads."""

import dataclasses
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from tests.train.problems import NETWORK, flights, run, source, write
from trainwright import tables
from trainwright.artifacts import Model, Snapshot
from trainwright.documents import digest_file
from trainwright.experiment import Network
from trainwright.train import serving
from trainwright.train.columns import to_values
from trainwright.train.group import Group
from trainwright.train.network import Scorer, TabularNetwork
from trainwright.train.rows import encode, fit
from trainwright.train.serving import Predictor

PARENTS = {"entities": "e" * 64, "features": "f" * 64, "features.weather": "a" * 64}

ODD = {
    "wind": [math.nan, math.inf, -math.inf, None, 1e300, -1e149, 5e-324, 20.0],
    "noise": [50, 0, -(2**53), 2**53, None, 51, 49, 50],
    "carrier": ["c1", "never seen", None, "", "C1", "c3", "c0", "c2"],
    "holiday": [True, None, False, True, None, False, True, False],
    "seen": [
        None,
        *(datetime(year, 5, 6, 7, 8, 9, 123456, UTC) for year in (1, 1969, 2013, 2038, 9999)),
        None,
        None,
    ],
}


def with_odd_rows(rows: int, seed: int) -> pa.Table:
    """Flights with a time of their own; the last rows are odd ones, with labels."""
    table = flights(rows, seed)
    random = np.random.default_rng(seed)
    seen = pa.array(random.integers(0, 10**15, rows), pa.timestamp("us", tz="UTC"))
    table = table.append_column("seen", pa.array([*seen.to_pylist()[:-1], None], seen.type))
    count = len(ODD["wind"])
    extra = {name: ODD.get(name, [None] * count) for name in table.column_names}
    extra |= {
        "id": [f"odd{n}" for n in range(count)],
        "at": table["at"].to_pylist()[:count],
        "late": [0, 1] * 4,
    }
    return pa.concat_tables([table, pa.table(extra, schema=table.schema)])


@pytest.fixture(scope="module", params=["standard", "quantile"])
def road(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A training set whose training rows end with odd ones, a model of it, and how numbers were scaled."""
    folder = tmp_path_factory.mktemp(request.param)
    splits = {"train": with_odd_rows(900, 1), "evaluate": with_odd_rows(300, 2)}
    snapshot = write(folder / "set", splits)
    dataclasses.replace(snapshot, parents=PARENTS).write(folder / "set")
    scaling = {
        "network": {"scaling": request.param},
        "training": {"epochs": 1},
        "resources": {"processes": 1},
    }
    return folder / "set", run(folder / "set", folder / "out", **scaling).model, request.param


def by_lists(table: pa.Table, predictor: Predictor) -> dict[str, list[object]]:
    """The rows as a caller of the service writes them: plain lists."""
    return {name: table[name].to_pylist() for name in predictor.transforms.inputs}


def test_what_is_learned_from_is_what_is_served_to_the_bit(
    road: tuple[Path, Path, str], alone: Group, tmp_path: Path
) -> None:
    folder, model, scaling = road
    network = Network(**NETWORK | {"scaling": scaling})
    transforms, labels = fit(source(folder), network, alone)
    learned = encode(source(folder), transforms, labels, tmp_path / "encoded", alone)
    predictor = serving.load(model)
    assert predictor.transforms.digest == transforms.digest
    assert bool(transforms.ranked) == (scaling == "quantile")
    rows = tables.read_split(folder, Snapshot.read(folder), "train")
    rows = rows.filter(rows["late"].is_valid())
    table = serving._to_table(by_lists(rows, predictor))
    served = predictor.transforms.encode(to_values(table, predictor.transforms.inputs))
    assert learned.numeric.numpy().tobytes() == served.numeric.tobytes()
    assert np.array_equal(learned.categories.numpy(), served.categories)
    assert len(served.numeric) - len(ODD["wind"]) > 800


def test_the_exported_program_scores_odd_rows_as_the_trained_network_does(
    road: tuple[Path, Path, str],
) -> None:
    folder, model, scaling = road
    predictor = serving.load(model)
    network = TabularNetwork(Network(**NETWORK | {"scaling": scaling}), predictor.transforms, 0.5)
    network.load_state_dict(load_file(model / "weights.safetensors"))
    rows = tables.read_split(folder, Snapshot.read(folder), "evaluate")
    encoded = predictor.transforms.encode(to_values(rows, predictor.transforms.inputs))
    with torch.inference_mode():
        trained = (
            Scorer(network)
            .eval()(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.categories))
            .numpy()
        )
    assert np.isfinite(trained).all()
    assert trained.tobytes() == predictor.predict(by_lists(rows, predictor)).tobytes()


def test_a_model_names_its_transforms_and_what_its_features_came_from(road: tuple[Path, Path, str]) -> None:
    _, model, _ = road
    predictor, manifest = serving.load(model), Model.read(model)
    assert manifest.parents == PARENTS | {
        "training_set": manifest.training_data,
        "transforms": predictor.transforms.digest,
    }
    saved = {entry.path: entry.sha256 for entry in manifest.files}
    assert saved["transforms.json"] == digest_file(model / "transforms.json")
    assert json.loads((model / "transforms.json").read_text())["schema_version"] == 1
