"""Odd rows, and folders of networks that were not trained on them: for what is asked of a folder, enough."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tests.train.problems import TRAINING, flights, resolved, source
from trainwright import tables
from trainwright.artifacts import Model, ModelFile
from trainwright.documents import digest_file
from trainwright.experiment import Mlp
from trainwright.serving.columns import to_values
from trainwright.serving.outputs import Outputs
from trainwright.serving.program import Program, read_program
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.model_folder import FittedNetwork
from trainwright.transforms import Fit, Transforms

FIGURES = {
    "steps": 1,
    "rows": 1,
    "rows_without_label": 0,
    "base_rate": 0.3,
    "base_rate_loss": 0.6,
    "train_loss": 1,
}
METRICS = {name: float(value) for name, value in FIGURES.items()}
TARGETS = {
    "binary": Target("binary", (0.7, 0.3)),
    "multiclass": Target("multiclass", (0.5, 0.3, 0.2)),
    "regression": Target("regression", (12.0, 3.0)),
}
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


@dataclass(frozen=True)
class Made:
    """A network that was not trained, for what is asked here, and its folder."""

    folder: Path
    trained: FittedNetwork
    rows: pa.Table

    @property
    def program(self) -> Program:
        found = read_program(self.folder / "program.pt2")
        assert isinstance(found, Program)
        return found


def fitted(training_set: Path, scaling: str) -> Transforms:
    read = source(training_set)
    fit = Fit(read.kinds, scaling)  # type: ignore[arg-type]
    table = tables.read_split(training_set, read.snapshot, "train")
    fit.add(to_values(table, read.kinds))
    return fit.finish(max_categories=16)


def untrained(training_set: Path, target: Target, scaling: str = "standard") -> FittedNetwork:
    network = Mlp(hidden=[16], embedding=4, scaling=scaling)
    transforms, architecture = fitted(training_set, scaling), make(network)
    torch.manual_seed(1)
    module = architecture.build(Inputs(target, transforms))
    config = {
        "network": network.model_dump(mode="json"),
        "training": resolved(**TRAINING).model_dump(mode="json"),
        "processes": 1,
    }
    classes = 0 if target.kind == "regression" else len(target.rates)
    outputs = Outputs(target.kind, "late", classes)
    read = source(training_set)
    return FittedNetwork(module, architecture, transforms, read, config, METRICS, outputs)


def as_learned(made: Made) -> bytes:
    """Scores of the module itself, on rows encoded as in training."""
    encoded = made.trained.transforms.encode(to_values(made.rows, made.trained.transforms.inputs))
    with torch.inference_mode():
        output = made.trained.module(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.categories))
        return bytes(made.trained.architecture.predict(output).numpy().tobytes())


def plain(rows: pa.Table, transforms: Transforms) -> dict[str, list[Any]]:
    """Rows as the recipe takes them: JSON's own words, times in microseconds."""
    found: dict[str, list[Any]] = {}
    for name, kind in transforms.inputs.items():
        column = rows[name]
        if kind == "time":
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        if kind == "category":
            column = column.cast(pa.string())
        found[name] = column.to_pylist()
    return found


def copied(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "model"
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def forged(folder: Path) -> None:
    """Make the manifest agree with the files, as whoever may write the folder can."""
    model = Model.read(folder)
    files = tuple(
        ModelFile(
            path=entry.path,
            size=(folder / entry.path).stat().st_size,
            sha256=digest_file(folder / entry.path),
        )
        for entry in model.files
    )
    replace(model, files=files).write(folder)
