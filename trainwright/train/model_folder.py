"""Writes the folder of a model: weights, program, transforms, signature, example, card; no pickle.

Nothing in it depends on where or when the model was trained, so the same training gives the same digest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.artifacts import Model, ModelFile
from trainwright.documents import digest_file
from trainwright.experiment import LanguageModel
from trainwright.serving import PROGRAM, WEIGHTS
from trainwright.serving.outputs import Outputs
from trainwright.serving.program import ROWS, Program, RowScorer, TokenScorer, write_rows, write_tokens
from trainwright.train.architectures import Architecture
from trainwright.train.feeding.rows import RowSource
from trainwright.train.feeding.tokens import TokenSource
from trainwright.train.model_card import CardFacts, write_card
from trainwright.transforms import MISSING_CATEGORY, MISSING_TIME, Transforms

_EXAMPLE_ROWS, _EXAMPLE_TOKENS = 5, 16
_LARGEST = 1e150


@dataclass(frozen=True)
class RowModelDescription:
    """Everything in the folder of a model of rows beside its weights and program.

    Attributes:
        source: The split it was fitted on.
        transforms: The fitted transforms.
        outputs: Outputs of the model.
        config: Configuration of the training.
        metrics: Figures by name.
        gains: Share of the total gain of each column, for trees.
        parents: Digests of further inputs, such as the user's own code, by name.
    """

    source: RowSource
    transforms: Transforms
    outputs: Outputs
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    gains: Mapping[str, float] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> list[tuple[str, str, str]]:
        """Name, Arrow type and kind of each raw input column."""
        types = {column.name: column.type for column in self.source.snapshot.columns}
        return [(name, types[name], kind) for name, kind in self.transforms.inputs.items()]

    def signature(self, program: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs and outputs of the model, as raw columns and as those of its ``program``."""
        return {
            "schema_version": 1,
            "inputs": [{"name": name, "type": kind, "kind": read_as} for name, kind, read_as in self.inputs],
            "target": self.outputs.target(),
            "outputs": self.outputs.describe(),
            "program": dict(program),
        }

    def write(self, folder: Path, program: Mapping[str, Any]) -> Model:
        """Write the description beside weights and program, and the manifest last.

        Args:
            folder: The model's folder.
            program: Inputs and outputs of the program, for the signature.
        """
        kind, data_version = str(self.config["network"]["kind"]), self.source.snapshot.digest
        self.transforms.write(folder / Transforms.FILE)
        _write_json(folder / "signature.json", self.signature(program))
        _write_json(folder / "input_example.json", self._example())
        facts = CardFacts(
            kind=kind,
            outputs=self.outputs,
            split=self.source.split,
            data_version=data_version,
            config=self.config,
            metrics=self.metrics,
            inputs=self.inputs,
            unused=self.transforms.unused,
            gains=self.gains,
        )
        write_card(folder / "README.md", facts)
        model = Model(
            files=_model_files(folder),
            kind=kind,
            inputs=tuple(self.transforms.inputs),
            label=self.source.label,
            training_data=data_version,
            config=dict(self.config),
            metrics=dict(self.metrics),
            parents={
                **self.source.snapshot.parents,
                "training_set": data_version,
                "transforms": self.transforms.digest,
                **self.parents,
            },
        )
        model.write(folder)
        return model

    def _example(self) -> dict[str, Any]:
        """Return a few rows of the training split, in the split orientation of pandas and MLflow."""
        batch, _ = next(self.source.read(0))
        names = list(self.transforms.inputs)
        columns = [_json_values(batch.column(name).slice(0, _EXAMPLE_ROWS)) for name in names]
        return {"columns": names, "data": [list(row) for row in zip(*columns, strict=True)]}


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network of rows.

    Attributes:
        module: The fitted module.
        architecture: Turns its output into scores.
        transforms: The fitted transforms.
        source: The split it was fitted on.
        config: Configuration of the training.
        metrics: Figures by name.
        outputs: Outputs of the model.
        parents: Digests of further inputs, such as the user's own code, by name.
    """

    module: nn.Module
    architecture: Architecture
    transforms: Transforms
    source: RowSource
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    outputs: Outputs
    parents: Mapping[str, str] = field(default_factory=dict)

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Score raw rows."""
        scorer = RowScorer(self.transforms, to_cpu_float32(self.module), self.architecture.predict)
        return Program(self.transforms, {}, scorer).predict(rows)

    def write(self, folder: Path, outputs: Outputs | None = None) -> Model:
        """Write the model's folder and return its manifest, which is written last.

        Args:
            folder: The folder to create.
            outputs: Outputs with the chosen threshold; unchanged if absent.
        """
        folder.mkdir(parents=True)
        module, outputs = to_cpu_float32(self.module), outputs or self.outputs
        write_weights(folder / WEIGHTS, module)
        description = RowModelDescription(
            self.source, self.transforms, outputs, self.config, self.metrics, parents=self.parents
        )
        program = _row_program(self.transforms, outputs)
        scorer = RowScorer(self.transforms, module, self.architecture.predict)
        write_rows(folder / PROGRAM, scorer, self.transforms, description.signature(program))
        return description.write(folder, program)


@dataclass(frozen=True)
class FittedLanguageModel:
    """A fitted language model.

    Attributes:
        module: The fitted module.
        architecture: Turns its output into log-probabilities.
        network: Its sizes.
        source: The split it was fitted on.
        config: Configuration of the training.
        metrics: Figures by name.
    """

    module: nn.Module
    architecture: Architecture
    network: LanguageModel
    source: TokenSource
    config: Mapping[str, Any]
    metrics: Mapping[str, float]

    def write(self, folder: Path) -> Model:
        """Write the model's folder, without transforms, and return its manifest, which is written last."""
        folder.mkdir(parents=True)
        module, network, snapshot = to_cpu_float32(self.module), self.network, self.source.snapshot
        write_weights(folder / WEIGHTS, module)
        signature = self._signature()
        write_tokens(
            folder / PROGRAM, TokenScorer(module, self.architecture.predict), network.context, signature
        )
        _write_json(folder / "signature.json", signature)
        first = next(self.source.read(0))[: min(network.context, _EXAMPLE_TOKENS)]
        _write_json(folder / "input_example.json", {"columns": [network.tokens], "data": [[first.tolist()]]})
        facts = CardFacts(
            kind=network.kind,
            outputs=None,
            split=self.source.split,
            data_version=snapshot.digest,
            config=self.config,
            metrics=self.metrics,
        )
        write_card(folder / "README.md", facts)
        model = Model(
            files=_model_files(folder),
            kind=network.kind,
            inputs=(network.tokens,),
            label=network.tokens,
            training_data=snapshot.digest,
            config=dict(self.config),
            metrics=dict(self.metrics),
            parents={**snapshot.parents, "training_set": snapshot.digest},
        )
        model.write(folder)
        return model

    def _signature(self) -> dict[str, Any]:
        network, name = self.network, self.network.tokens
        kind = next(column.type for column in self.source.snapshot.columns if column.name == name)
        score = {
            "name": "log_probability",
            "type": "float64",
            "shape": ["rows", "places", network.vocabulary],
        }
        return {
            "schema_version": 1,
            "inputs": [{"name": name, "type": kind, "kind": "tokens"}],
            "outputs": [
                {"name": "log_probability", "type": "double", "meaning": "of the token that follows"}
            ],
            "program": {
                "file": PROGRAM,
                "context": network.context,
                "vocabulary": network.vocabulary,
                "inputs": [{"name": "tokens", "type": "int64", "shape": ["rows", "places"]}],
                "outputs": [score],
            },
        }


def to_cpu_float32(module: nn.Module) -> nn.Module:
    """Move a module to the CPU in evaluation mode, half-precision weights as float32; in place."""
    module = module.cpu().eval()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor.data = tensor.data.float()
    return module


def write_weights(path: Path, module: nn.Module) -> None:
    """Write the state of a module as safetensors; of names that share memory, only the first.

    ``safetensors.torch.load_model`` reads it back.
    """
    weights: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in sorted(module.state_dict().items()):
        memory = (value.data_ptr(), value.shape)
        if not value.numel() or memory not in seen:
            weights[name] = value.detach().contiguous()
        seen.add(memory)
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # save_file lets the owner alone read it; another user serves it


def _model_files(folder: Path) -> tuple[ModelFile, ...]:
    return tuple(
        ModelFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path))
        for path in sorted(folder.iterdir())
    )


def _json_values(column: pa.Array) -> list[Any]:
    """Return a column as JSON data; times as text in UTC without a zone, as MLflow's examples have them."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"), safe=False)
    if pa.types.is_floating(column.type):
        values = column.to_pylist()
        return [value if value is not None and abs(value) <= _LARGEST else None for value in values]
    native = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    return column.to_pylist() if native else column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _row_program(transforms: Transforms, outputs: Outputs) -> dict[str, Any]:
    """Describe the tensors that the program reads and returns: see docs/model-folder.md."""
    numbers, times, categories = (
        [column.name for column in columns]
        for columns in (transforms.scaled, transforms.times, transforms.categories)
    )
    shape = ["rows"] if len(outputs.columns) == 1 else ["rows", len(outputs.columns)]
    return {
        "file": PROGRAM,
        "rows_at_a_time": ROWS,
        "inputs": [
            {"name": "numbers", "type": "float64", "columns": numbers, "missing": "NaN"},
            {
                "name": "times",
                "type": "int64",
                "columns": times,
                "missing": MISSING_TIME,
                "unit": "microseconds since 1970-01-01 00:00 UTC",
            },
            {
                "name": "categories",
                "type": "int64",
                "columns": categories,
                "missing": MISSING_CATEGORY,
                "unit": "first 8 bytes of the SHA-256 of the UTF-8 text, little-endian, signed",
            },
        ],
        "outputs": [{"name": "score", "type": "float64", "shape": shape}],
    }
