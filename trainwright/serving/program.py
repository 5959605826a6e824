"""The exported program: transforms, network and scores in one file; written, checked and read."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.serving.columns import to_raw
from trainwright.serving.program_check import check_archive
from trainwright.transforms import Raw, Transforms
from trainwright.transforms.encoder import Encoder

TRANSFORMS, SIGNATURE = "transforms.json", "signature.json"
"""Documents that travel inside the archive, as torch's extra files."""

ROWS = 4_096
"""Rows per pass: the network's intermediate values stay in the processor's cache."""

_EXAMPLE_ROWS = 4


class RowScorer(nn.Module):
    """The exported module for rows: the transforms, the network on the CPU, and its scores.

    The names of this class and of its parts are in the exported program, and so in a model's digest.
    """

    def __init__(
        self, transforms: Transforms, network: nn.Module, predict: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.encoder, self.network, self._predict = Encoder(transforms), network, predict
        self.eval()

    def forward(self, numbers: Tensor, times: Tensor, categories: Tensor) -> Tensor:
        """Return float64 scores, (rows,) or (rows, classes), of the tensors of a ``Raw``."""
        return self._predict(self.network(*self.encoder(numbers, times, categories)))


class TokenScorer(nn.Module):
    """The exported module for tokens: the network on the CPU, and its log-probabilities."""

    def __init__(self, network: nn.Module, predict: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self._predict = network, predict
        self.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return log-probabilities of the next token, (rows, places, vocabulary), of int64 (rows, places)."""
        return self._predict(self.network(tokens))


class Program:
    """A program that scores rows, with its fitted transforms and its signature."""

    def __init__(
        self, transforms: Transforms, signature: Mapping[str, Any], scorer: Callable[..., Tensor]
    ) -> None:
        self.transforms, self.signature, self._scorer = transforms, dict(signature), scorer

    def predict(self, rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return the scores of some rows, as :meth:`trainwright.serving.Predictor.predict` does."""
        return self.score(to_raw(rows, self.transforms))

    def score(self, raw: Raw) -> NDArray[np.float64]:
        """Return the scores of raw rows."""
        tensors = [torch.from_numpy(entry) for entry in (raw.numbers, raw.times, raw.categories)]
        with torch.inference_mode():
            # One pass also of no rows at all: its result has the right shape.
            starts = range(0, max(len(raw), 1), ROWS)
            parts = [self._scorer(*(entry[first : first + ROWS] for entry in tensors)) for first in starts]
            scores: NDArray[np.float64] = torch.cat(parts).numpy()
        return scores


class TokenProgram:
    """A program that scores tokens, with its signature."""

    def __init__(self, signature: Mapping[str, Any], scorer: Callable[..., Tensor]) -> None:
        self.signature, self._scorer = dict(signature), scorer

    def predict(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the log-probability of every following token: shape (rows, places, vocabulary).

        Args:
            tokens: Shape (rows, places), in [0, vocabulary), at most as many places as in training.

        Raises:
            InputError: A token is outside the vocabulary, or there are too many places.
        """
        most, vocabulary = self.signature["program"]["context"], self.signature["program"]["vocabulary"]
        tokens = np.asarray(tokens, dtype=np.int64)
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= most:  # noqa: PLR2004 - rows and places
            raise InputError(f"tokens of shape {tokens.shape}; the model takes (rows, 1 to {most} places)")
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise InputError(
                f"tokens lie in [{tokens.min()}, {tokens.max()}]; the vocabulary is 0 to {vocabulary - 1}"
            )
        with torch.inference_mode():
            scores: NDArray[np.float64] = self._scorer(torch.from_numpy(tokens)).double().numpy()
        return scores


def write_rows(path: Path, scorer: RowScorer, transforms: Transforms, signature: Mapping[str, Any]) -> None:
    """Export a scorer of rows, for any number of them."""
    example = tuple(
        torch.zeros(_EXAMPLE_ROWS, width, dtype=kind)
        for width, kind in (
            (len(transforms.scaled), torch.float64),
            (len(transforms.times), torch.int64),
            (len(transforms.categories), torch.int64),
        )
    )
    rows = {0: torch.export.Dim("rows", min=0)}
    shapes = {"numbers": rows, "times": rows, "categories": rows}
    _write(path, scorer, example, shapes, {TRANSFORMS: transforms.to_json(), SIGNATURE: signature})


def write_tokens(path: Path, scorer: TokenScorer, context: int, signature: Mapping[str, Any]) -> None:
    """Export a scorer of tokens, for any number of rows and up to ``context`` places."""
    example = (torch.zeros(_EXAMPLE_ROWS, min(context, 4), dtype=torch.int64),)
    shapes = {"tokens": {0: torch.export.Dim("rows", min=0), 1: torch.export.Dim("places", max=context)}}
    _write(path, scorer, example, shapes, {SIGNATURE: signature})


def _write(
    path: Path,
    scorer: nn.Module,
    example: tuple[Tensor, ...],
    shapes: Mapping[str, Mapping[int, Any]],
    documents: Mapping[str, Mapping[str, Any]],
) -> None:
    """Export without the paths of this machine and without pickle."""
    with torch.no_grad():
        program = torch.export.export(scorer, example, dynamic_shapes=dict(shapes))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    program.example_inputs = None
    extra = {name: json.dumps(data, ensure_ascii=False, allow_nan=False) for name, data in documents.items()}
    torch.export.save(program, path, extra_files=extra)


def read_program(path: Path) -> Program | TokenProgram:
    """Read a program from its file alone.

    Raises:
        InputError: It is no program, or this torch cannot read it.
        ModelRefused: It holds what no export of this library has (:func:`check_archive`).
    """
    check_archive(path)
    documents = {TRANSFORMS: "", SIGNATURE: ""}
    try:
        with warnings.catch_warnings():  # torch before 2.13 says it of its own memory; nobody writes to it
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            exported = torch.export.load(path, extra_files=documents)
        signature = read_json(documents[SIGNATURE])
    except Exception as error:  # torch raises whatever it meets
        raise InputError(
            f"torch {torch.__version__} cannot read the program: {type(error).__name__}: {error}",
            where=str(path),
            hint="Read it with the torch it was written with, or train the model again.",
        ) from error
    scorer = exported.module()
    if not documents[TRANSFORMS]:
        return TokenProgram(signature, scorer)
    return Program(
        Transforms.from_json(read_json(documents[TRANSFORMS], where=str(path)), str(path)), signature, scorer
    )
