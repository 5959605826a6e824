"""What every model of rows says of itself in its folder: transforms, signature, example, card, manifest.

Nothing in it depends on where or when the model was trained, so the same training gives the same digest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Model, ModelFile
from trainwright.documents import digest_file
from trainwright.serving.outputs import Outputs
from trainwright.train.card import About, write_card
from trainwright.train.rows import Source
from trainwright.transforms import Transforms

_EXAMPLE_ROWS = 5
_LARGEST = 1e150


@dataclass(frozen=True)
class Description:
    """What a fitted model is, beside its weights.

    Attributes:
        source: The split it was fitted on.
        transforms: The fitted transforms.
        outputs: What it gives.
        config: What was asked of the training.
        metrics: Figures by name.
        gains: Share of the total gain of each column, for trees.
        parents: Digests of what else it was made from, by name.
    """

    source: Source
    transforms: Transforms
    outputs: Outputs
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    gains: Mapping[str, float] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The architecture, such as ``mlp``."""
        return str(self.config["network"]["kind"])

    @property
    def data_version(self) -> str:
        """Digest of the training set."""
        return self.source.snapshot.digest

    @property
    def types(self) -> dict[str, str]:
        """Type of each column, by name."""
        return {column.name: column.type for column in self.source.snapshot.columns}

    def write(self, folder: Path, program: Mapping[str, Any]) -> Model:
        """Write all that describes the model beside its weights, and the manifest last.

        Args:
            folder: The model's folder, with its weights and program.
            program: What the program itself reads and gives, for the signature.
        """
        self.transforms.write(folder / Transforms.FILE)
        write_json(folder / "signature.json", self.signature(program))
        write_json(folder / "input_example.json", self._example())
        write_card(folder / "README.md", self._about())
        model = Model(
            files=tuple(describe_file(path) for path in sorted(folder.iterdir())),
            kind=self.kind,
            inputs=tuple(self.transforms.inputs),
            label=self.source.label,
            training_data=self.data_version,
            config=dict(self.config),
            metrics=dict(self.metrics),
            parents={
                **self.source.snapshot.parents,
                "training_set": self.data_version,
                "transforms": self.transforms.digest,
                **self.parents,
            },
        )
        model.write(folder)
        return model

    def signature(self, program: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the model reads and gives, as raw columns and as ``program`` reads and gives it."""
        types = self.types
        return {
            "schema_version": 1,
            "inputs": [
                {"name": name, "type": types[name], "kind": kind}
                for name, kind in self.transforms.inputs.items()
            ],
            "target": self.outputs.target(),
            "outputs": self.outputs.describe(),
            "program": dict(program),
        }

    def _example(self) -> dict[str, Any]:
        """Return a few rows of the training split, in the split orientation that pandas and MLflow read."""
        batch, _ = next(self.source.read(0))
        names = list(self.transforms.inputs)
        columns = [_plain(batch.column(name).slice(0, _EXAMPLE_ROWS)) for name in names]
        return {"columns": names, "data": [list(row) for row in zip(*columns, strict=True)]}

    def _about(self) -> About:
        types = self.types
        return About(
            kind=self.kind,
            outputs=self.outputs,
            split=self.source.split,
            data_version=self.data_version,
            config=self.config,
            metrics=self.metrics,
            inputs=[(name, types[name], kind) for name, kind in self.transforms.inputs.items()],
            unused=self.transforms.unused,
            gains=self.gains,
        )


def describe_file(path: Path) -> ModelFile:
    """Return the entry of a file in a model's manifest."""
    return ModelFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path))


def _plain(column: pa.Array) -> list[Any]:
    """Return a column as JSON data; a time as text, in UTC and without a zone, as MLflow's example has it."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"), safe=False)
    if pa.types.is_floating(column.type):
        values = column.to_pylist()
        return [value if value is not None and abs(value) <= _LARGEST else None for value in values]
    keep = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    return column.to_pylist() if keep else column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def write_json(path: Path, data: object) -> None:
    """Write plain data, for people too."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
