"""Score the rows of a file, and write the scores beside the columns that identify the rows."""

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.csv as pacsv  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright.artifacts import Model
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.experiment import Data, LanguageModel
from trainwright.serving import load, load_language_model
from trainwright.serving.columns import UnreadableValueError
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import LOSS, SCORED, row_losses
from trainwright.sources import list_source, open_source
from trainwright.storage import Access

PREDICTION, ROW = "prediction", "row"
"""Columns of the decision or the predicted number, and of the position in the file."""

SUFFIXES = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True)
class PredictionFile:
    """The result: number of rows, columns of the output, and the digest of the model."""

    rows: int
    columns: list[str]
    model: str


def predict_file(
    folder: Path,
    rows: Path,
    output: Path,
    digest: str | None = None,
    form: Mapping[str, Any] = MappingProxyType({}),
) -> PredictionFile:
    """Score the rows of a file with the model in a folder.

    The output has the columns that the model does not read, such as the key, or ``row``, the position in the
    file, if it reads all. Then follow ``score``, or ``score_0``, ``score_1`` and so on for more than two
    classes, and ``prediction``: the class at the model's threshold, the most probable one, or the number.
    Of a language model it has ``loss``, the mean negative log-likelihood per token in nats, and the number of
    tokens, ``tokens_scored``.

    Args:
        folder: The model's folder.
        rows: Parquet, CSV or JSON lines, by its suffix.
        output: File to write, in the form of its suffix; an existing one is replaced.
        digest: Expected digest of the model's manifest.
        form: Keys ``csv`` and ``missing`` of the section ``data``, as text files of the training are read.

    Raises:
        InputError: The model's files were changed, or the rows lack a column of its signature, or a value
            cannot be read as its type.
    """
    if output.suffix not in SUFFIXES or output.resolve() == rows.resolve():
        why = "is the file of the rows" if output.suffix in SUFFIXES else f"has the suffix {output.suffix!r}"
        hint = f"Name another file, one of {', '.join(SUFFIXES)}."
        raise InputError(f"the output {why}", where=output.name, hint=hint)
    data = Data.check({"source": str(rows), "splits": {"all": {"fraction": 1}}, **form}, "rows")
    source = open_source(list_source(str(rows), data, Access()), data, Access())
    scorer: _TextScorer | _RowScorer
    scorer = _TextScorer(folder, digest) if Model.read(folder).kind == "lm" else _RowScorer(folder, digest)
    _require_columns(source.schema.names, scorer.inputs, rows)
    kept = [name for name in source.schema.names if name not in scorer.inputs]
    if taken := sorted(scorer.reserved & set(kept)):
        raise InputError(
            f"the rows have {taken}, which the output names its scores",
            where=str(rows),
            hint="Rename these columns.",
        )

    def scored(table: pa.Table, start: int) -> pa.Table:
        made = table.select(kept)
        if not kept:
            made = pa.table({ROW: pa.array(range(start, start + len(table)), pa.int64())})
        try:
            return scorer.add_scores(table, made)
        except UnreadableValueError as error:
            found = UnreadableValueError(error.name, error.kind, start + error.row, error.value)
            raise InputError(found.what, where=str(rows), hint=found.hint) from None

    count, columns = 0, list[str]()
    with _writer(output) as write:
        for part in source.parts():
            for _, _, table in source.batches(part):
                made = scored(table, count)
                write(made)
                count, columns = count + len(made), made.schema.names
        if not columns:  # a file without rows
            write(scored(source.schema.empty_table(), 0))
    return PredictionFile(count, columns, scorer.model.digest)


class _RowScorer:
    """A model of rows: scores, and the decision or the predicted number."""

    def __init__(self, folder: Path, digest: str | None) -> None:
        self._predictor, self._outputs = load(folder, digest), Outputs.read(folder)
        self._decide = _decision(self._outputs, folder)
        self.model, self.inputs = self._predictor.model, list(self._predictor.transforms.inputs)
        self.reserved = {*self._outputs.columns, PREDICTION}

    def add_scores(self, table: pa.Table, made: pa.Table) -> pa.Table:
        """Return the identifying columns of some rows with their scores and decisions."""
        columns = self._outputs.columns
        scores = self._predictor.predict(table).reshape(len(table), len(columns))
        if self._decide is None:
            return made.append_column(PREDICTION, pa.array(scores[:, 0]))
        for place, name in enumerate(columns):
            made = made.append_column(name, pa.array(scores[:, place]))
        return made.append_column(PREDICTION, self._decide(scores))


class _TextScorer:
    """A language model: the loss of each text, as `score` and `evaluate` have it, and its tokens."""

    reserved = frozenset({LOSS, SCORED})

    def __init__(self, folder: Path, digest: str | None) -> None:
        self._predictor = load_language_model(folder, digest)
        self.model = self._predictor.model
        self._network = LanguageModel.model_validate(self.model.config["network"])
        self.inputs = [self._network.column]

    def add_scores(self, table: pa.Table, made: pa.Table) -> pa.Table:
        """Return the identifying columns of some texts with their losses; null below two tokens."""
        [name] = self.inputs
        column = table[name].combine_chunks()
        if self._network.text:  # numbers and other values are read as they are written
            column = column.cast(pa.string())
        elif not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
            raise InputError(
                f"column {name!r} holds {column.type}; expected lists of token ids",
                where="input of the model",
            )
        losses, scored = row_losses(column, self._network, self._predictor)
        made = made.append_column(LOSS, pa.array(losses, from_pandas=True))
        return made.append_column(SCORED, pa.array(scored))


def _require_columns(there: list[str], inputs: list[str], rows: Path) -> None:
    if missing := [name for name in inputs if name not in there]:
        raise InputError(
            f"the rows have no columns {missing}, which the model reads; they have {there}",
            where=str(rows),
            hint="Add them. Features that join adds are in the online store of their repository.",
        )


def _decision(outputs: Outputs, folder: Path) -> Callable[[Any], pa.Array] | None:
    """Return the function from scores to class names; None for a regression, whose score is the answer."""
    if outputs.kind == "regression":
        return None
    names = np.array(outputs.class_names, dtype=object)
    if outputs.kind == "multiclass":
        return lambda scores: pa.array(names[scores.argmax(axis=1)], pa.string())
    [score] = read_json(folder / "signature.json")["outputs"]
    threshold = score.get("threshold", {}).get("value", 0.5)
    return lambda scores: pa.array(names[(scores[:, 0] >= threshold).astype(np.int64)], pa.string())


@contextlib.contextmanager
def _writer(output: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends rows to a file, which appears when all are written."""
    output.parent.mkdir(parents=True, exist_ok=True)
    attempt = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}")
    opened: list[Any] = []

    def write(table: pa.Table) -> None:
        if not opened:
            opened.append(_open(attempt, output.suffix, table.schema))
        opened[0].write(table)

    try:
        yield write
        opened[0].close()
        attempt.replace(output)
    finally:
        attempt.unlink(missing_ok=True)


class _JsonLines:
    """A writer of one JSON object a row."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w")

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for row in table.to_pylist():
            self._stream.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _open(path: Path, suffix: str, schema: pa.Schema) -> Any:
    match suffix:
        case ".parquet":
            return pq.ParquetWriter(path, schema)
        case ".csv":
            return pacsv.CSVWriter(path, schema)
        case _:
            return _JsonLines(path)
