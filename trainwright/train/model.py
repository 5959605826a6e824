"""Writing a model's folder: weights, program, transforms, signature, example, card, and the manifest last.

Nothing in it depends on where or when it was trained, so the same training gives the same digest. There is no
pickle in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.artifacts import Model, ModelFile
from trainwright.documents import digest_file
from trainwright.train.architectures import Architecture
from trainwright.train.card import write_card
from trainwright.train.rows import Source
from trainwright.train.serving import PROGRAM
from trainwright.transforms import Transforms

_EXAMPLE_ROWS = 5


@dataclass(frozen=True)
class Trained:
    """All that a model's folder is made from.

    Attributes:
        module: The fitted module.
        architecture: What turns its output into scores.
        transforms: The fitted transforms.
        source: The split it was fitted on.
        data_version: Digest of its snapshot.
        config: What was asked of the training.
        metrics: Figures by name.
    """

    module: nn.Module
    architecture: Architecture
    transforms: Transforms
    source: Source
    data_version: str
    config: Mapping[str, Any]
    metrics: Mapping[str, float]


def write_model(folder: Path, trained: Trained) -> Model:
    """Write the folder and return its manifest, which is written last."""
    folder.mkdir(parents=True)
    module = trained.module.cpu().eval()
    weights = {name: value.detach().contiguous() for name, value in sorted(module.state_dict().items())}
    save_file(weights, folder / "weights.safetensors", metadata={"format": "pt"})
    (folder / "weights.safetensors").chmod(0o644)  # written for its owner alone; whoever serves it is another
    _export(Scorer(module, trained.architecture), trained.transforms, folder / PROGRAM)
    trained.transforms.write(folder / Transforms.FILE)
    _write_json(folder / "signature.json", _signature(trained))
    _write_json(folder / "input_example.json", _example(trained))
    write_card(folder / "README.md", trained)
    model = Model(
        files=tuple(_describe(path) for path in sorted(folder.iterdir())),
        kind=str(trained.config["network"]["kind"]),
        inputs=tuple(trained.transforms.inputs),
        label=trained.source.label,
        training_data=trained.data_version,
        config=dict(trained.config),
        metrics=dict(trained.metrics),
        parents={
            **trained.source.snapshot.parents,
            "training_set": trained.data_version,
            "transforms": trained.transforms.digest,
        },
    )
    model.write(folder)
    return model


def _describe(path: Path) -> ModelFile:
    return ModelFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path))


class Scorer(nn.Module):
    """What is exported: the module, with scores as its output."""

    def __init__(self, module: nn.Module, architecture: Architecture) -> None:
        super().__init__()
        self.module = module
        self._predict = architecture.predict

    def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:
        """Return the scores of some rows, float64."""
        return self._predict(self.module(numeric, categories))


def _export(scorer: Scorer, transforms: Transforms, path: Path) -> None:
    """Export the program for any number of rows, without the paths of this machine and without pickle."""
    example = (
        torch.zeros(4, transforms.width),
        torch.zeros(4, len(transforms.categories), dtype=torch.int64),
    )
    rows = {0: torch.export.Dim("rows", min=1)}
    shapes = {"numeric": rows, "categories": rows}
    program = torch.export.export(scorer.eval(), example, dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    program.example_inputs = None
    torch.export.save(program, path)


def _signature(trained: Trained) -> dict[str, Any]:
    """Describe what the model reads and gives, as raw columns and as tensors of the program."""
    types = {column.name: column.type for column in trained.source.snapshot.columns}
    inputs = trained.transforms.inputs
    tensors = (
        ("numeric", "float32", trained.transforms.width),
        ("categories", "int64", len(trained.transforms.categories)),
    )
    meaning = f"probability of {trained.source.label} = 1"
    return {
        "schema_version": 1,
        "inputs": [{"name": name, "type": types[name], "kind": kind} for name, kind in inputs.items()],
        "outputs": [{"name": "score", "type": "double", "meaning": meaning}],
        "program": {
            "inputs": [
                {"name": name, "type": kind, "shape": ["rows", width]} for name, kind, width in tensors
            ],
            "outputs": [{"name": "score", "type": "float64", "shape": ["rows"]}],
        },
    }


def _example(trained: Trained) -> dict[str, Any]:
    """Return a few rows of the training split, in the split orientation that pandas and MLflow read."""
    batch, _ = next(trained.source.read(0))
    names = list(trained.transforms.inputs)
    columns = [_plain(batch.column(name).slice(0, _EXAMPLE_ROWS)) for name in names]
    return {"columns": names, "data": [list(row) for row in zip(*columns, strict=True)]}


def _plain(column: pa.Array) -> list[Any]:
    """Return a column as JSON data; what JSON has no word for, such as a time, as text."""
    if pa.types.is_floating(column.type):
        return [value if value is not None and abs(value) <= 1e150 else None for value in column.to_pylist()]  # noqa: PLR2004
    keep = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    return column.to_pylist() if keep else column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
