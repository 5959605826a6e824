"""Writing a network's folder: weights and program, and all that describes them.

There is no pickle in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.artifacts import Model
from trainwright.experiment import LanguageModel
from trainwright.serving import PROGRAM, WEIGHTS
from trainwright.serving.outputs import Outputs
from trainwright.serving.program import ROWS, RowScorer, TokenScorer, write_rows, write_tokens
from trainwright.train.architectures import Architecture
from trainwright.train.card import About, write_card
from trainwright.train.description import Description, describe_file, write_json
from trainwright.train.rows import Source
from trainwright.train.tokens import TokenSource
from trainwright.transforms import MISSING_CATEGORY, MISSING_TIME, Transforms

_EXAMPLE_TOKENS = 16


@dataclass(frozen=True)
class Trained:
    """All that a network's folder is made from.

    Attributes:
        module: The fitted module.
        architecture: What turns its output into scores.
        transforms: The fitted transforms.
        source: The split it was fitted on.
        data_version: Digest of its snapshot.
        config: What was asked of the training.
        metrics: Figures by name.
        outputs: What it gives; the probability of label 1 if absent.
        parents: Digests of what else it was made from, such as the user's own code, by name.
    """

    module: nn.Module
    architecture: Architecture
    transforms: Transforms
    source: Source
    data_version: str
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    outputs: Outputs | None = None
    parents: Mapping[str, str] | None = None


def write_model(folder: Path, trained: Trained) -> Model:
    """Write the folder and return its manifest, which is written last.

    The module is moved to the CPU, and weights of half precision become float32, which holds each exactly.
    The weights are written one tensor at a time, from where they are.
    """
    folder.mkdir(parents=True)
    module = settled(trained.module)
    write_weights(folder / WEIGHTS, module)
    outputs = trained.outputs or Outputs("binary", trained.source.label)
    description = Description(
        trained.source,
        trained.transforms,
        outputs,
        trained.config,
        trained.metrics,
        parents=trained.parents or {},
    )
    program = _tensors(trained.transforms, outputs)
    scorer = RowScorer(trained.transforms, module, trained.architecture.predict)
    write_rows(folder / PROGRAM, scorer, trained.transforms, description.signature(program))
    return description.write(folder, program)


@dataclass(frozen=True)
class TrainedOnTokens:
    """All that a language model's folder is made from.

    Attributes:
        module: The fitted module.
        architecture: What turns its output into log-probabilities.
        network: Its sizes.
        source: The split it was fitted on.
        config: What was asked of the training.
        metrics: Figures by name.
        parents: Digests of what else it was made from, by name.
    """

    module: nn.Module
    architecture: Architecture
    network: LanguageModel
    source: TokenSource
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    parents: Mapping[str, str] | None = None


def write_language_model(folder: Path, trained: TrainedOnTokens) -> Model:
    """Write the folder of a language model, as :func:`write_model` does; it has no transforms.

    The program is always written: a second copy of the weights on disk, and what serves them anywhere.
    """
    folder.mkdir(parents=True)
    module, network, snapshot = settled(trained.module), trained.network, trained.source.snapshot
    write_weights(folder / WEIGHTS, module)
    signature = _token_signature(trained)
    scorer = TokenScorer(module, trained.architecture.predict)
    write_tokens(folder / PROGRAM, scorer, network.context, signature)
    write_json(folder / "signature.json", signature)
    first = next(trained.source.read(0))[: min(network.context, _EXAMPLE_TOKENS)]
    write_json(folder / "input_example.json", {"columns": [network.tokens], "data": [[first.tolist()]]})
    about = About(
        kind=network.kind,
        outputs=None,
        split=trained.source.split,
        data_version=snapshot.digest,
        config=trained.config,
        metrics=trained.metrics,
    )
    write_card(folder / "README.md", about)
    model = Model(
        files=tuple(describe_file(path) for path in sorted(folder.iterdir())),
        kind=network.kind,
        inputs=(network.tokens,),
        label=network.tokens,
        training_data=snapshot.digest,
        config=dict(trained.config),
        metrics=dict(trained.metrics),
        parents={**snapshot.parents, "training_set": snapshot.digest, **(trained.parents or {})},
    )
    model.write(folder)
    return model


def _token_signature(trained: TrainedOnTokens) -> dict[str, Any]:
    network, name = trained.network, trained.network.tokens
    kind = next(column.type for column in trained.source.snapshot.columns if column.name == name)
    score = {"name": "log_probability", "type": "float64", "shape": ["rows", "places", network.vocabulary]}
    return {
        "schema_version": 1,
        "inputs": [{"name": name, "type": kind, "kind": "tokens"}],
        "outputs": [{"name": "log_probability", "type": "double", "meaning": "of the token that follows"}],
        "program": {
            "file": PROGRAM,
            "context": network.context,
            "vocabulary": network.vocabulary,
            "inputs": [{"name": "tokens", "type": "int64", "shape": ["rows", "places"]}],
            "outputs": [score],
        },
    }


def settled(module: nn.Module) -> nn.Module:
    """Return the module on the CPU, ready to score, with no weight of half precision; in place."""
    module = module.cpu().eval()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor.data = tensor.data.float()
    return module


def write_weights(path: Path, module: nn.Module) -> None:
    """Write the state of a module as safetensors; of names that share their memory, the first one.

    ``safetensors.torch.load_model`` reads it back.
    """
    weights: dict[str, Tensor] = {}
    places: set[tuple[int, torch.Size]] = set()
    for name, value in sorted(module.state_dict().items()):
        place = (value.data_ptr(), value.shape)
        if not value.numel() or place not in places:
            weights[name] = value.detach().contiguous()
        places.add(place)
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # written for its owner alone; whoever serves it is another


def _tensors(transforms: Transforms, outputs: Outputs) -> dict[str, Any]:
    """Describe what the program reads and gives, as tensors: see docs/model-folder.md."""
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
