"""Predict with a registered model, or with the model in a folder."""

import importlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from trainwright import sandbox
from trainwright.errors import InputError, TrainwrightError

_TIME_LIMIT_S = 24 * 3600.0
Rows = Any
"""Rows in memory, as :func:`write_rows` takes them."""


@dataclass(frozen=True)
class ScoredFile:
    """A written file of predictions: its path, rows and columns, and the model in words."""

    path: Path
    rows: int
    columns: tuple[str, ...]
    model: str

    def __str__(self) -> str:
        """Return the result in one line."""
        return f"{self.rows:,} rows scored by {self.model}: {self.path} ({', '.join(self.columns)})"


@overload
def predict(
    model: str | os.PathLike[str],
    rows: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    tracking_uri: str = "",
) -> ScoredFile: ...


@overload
def predict(
    model: str | os.PathLike[str],
    rows: Rows,
    *,
    config: str | os.PathLike[str] | None = None,
    tracking_uri: str = "",
) -> dict[str, list[Any]]: ...


def predict(
    model: str | os.PathLike[str],
    rows: str | os.PathLike[str] | Rows,
    output: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    tracking_uri: str = "",
) -> ScoredFile | dict[str, list[Any]]:
    """Score rows with a model, in the environment of serving.

    ::

        trainwright.predict("flight-delay@candidate", "rows.csv", config="experiment.yaml")
        trainwright.predict(run.model, {"distance": [1400], "carrier": ["UA"]})["prediction"]

    Args:
        model: ``NAME@ALIAS`` or ``NAME/VERSION`` of a registered model, or the folder of a model.
        rows: A Parquet, CSV or JSON lines file; or a pandas data frame, an Arrow table, or arrays or lists by
            the name of the column.
        output: File to write; default: beside ``rows``, with ``.predictions`` before its suffix.
        config: Experiment file that names the registry, and how its text files are read: ``data.csv`` and
            ``data.missing``.
        tracking_uri: MLflow's address, in place of the file's.

    Returns:
        The written file; of rows in memory, the columns of the predictions by name.

    Raises:
        TrainwrightError: There is no such model, or the rows lack a column that it reads.
    """
    with TemporaryDirectory(prefix="trainwright-") as scratch:
        folder, digest, words = _model(model, config, tracking_uri, Path(scratch))
        if is_table(rows):
            return _predict_table(folder, digest, rows, Path(scratch))
        source = Path(rows)
        target = Path(output) if output else source.with_suffix(f".predictions{source.suffix}")
        made = _score(folder, digest, source, target, config)
        return ScoredFile(target, made["rows"], tuple(made["columns"]), words or f"model {made['model'][:6]}")


def _predict_table(folder: Path, digest: str, rows: Any, scratch: Path) -> dict[str, list[Any]]:
    source, target = write_rows(rows, scratch, "rows"), scratch / "predictions.jsonl"
    try:
        columns = _score(folder, digest, source, target)["columns"]
    except TrainwrightError as error:
        if error.where == str(source.resolve()):
            error.where = "rows"  # their file is gone by now
        raise
    scored = [json.loads(line) for line in target.read_text().splitlines()]
    return {name: [row[name] for row in scored] for name in columns}


def _model(
    model: str | os.PathLike[str], config: str | os.PathLike[str] | None, uri: str, scratch: Path
) -> tuple[Path, str, str]:
    """Return a model's folder, its expected digest and its version in words; both are empty for a folder."""
    if (Path(model) / "model.json").is_file():
        return Path(model), "", ""
    from trainwright.registry.names import REFERENCE

    reference = REFERENCE.fullmatch(os.fspath(model))
    if not reference:
        raise InputError(
            f"{os.fspath(model)!r} is neither the folder of a model nor NAME@ALIAS or NAME/VERSION",
            where="model",
            hint="Such as flight-delay@candidate, flight-delay/3 or runs/ID/train/model.",
        )
    from trainwright.authoring import arguments
    from trainwright.authoring.environments import python
    from trainwright.command import run_package

    registry = arguments.read_registry(reference["name"], Path(config) if config else None, "", uri)
    which = reference["alias"] or reference["version"]
    command = ("registry", "download", registry, which, str(scratch / "model"))
    found = json.loads(run_package(python("mlflow"), *command).splitlines()[-1])
    return Path(found["folder"]), found["model"], f"{reference['name']} version {found['version']}"


def _score(
    folder: Path, digest: str, rows: Path, output: Path, config: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    if not rows.exists():
        raise InputError("there is no such file of rows", where=str(rows))
    if output.resolve() == rows.resolve():
        raise InputError("the output is the file of the rows", where=str(output), hint="Name another file.")
    from trainwright.authoring.arguments import read_text_form
    from trainwright.authoring.environments import python

    form = ["--form", read_text_form(Path(config))] if config else []
    output.parent.mkdir(parents=True, exist_ok=True)
    # The process may write to a folder of its own alone; the file moves from there to its place.
    with TemporaryDirectory(prefix=".trainwright-", dir=output.parent) as scratch:
        written = Path(scratch).resolve() / output.name
        limits = sandbox.model_limits(folder, rows, write=[written.parent], seconds=_TIME_LIMIT_S)
        paths = (str(path.resolve()) for path in (folder, rows, written))  # storage rejects ".." in a path
        arguments = [*paths, *(["--digest", digest] if digest else []), *form]
        done = sandbox.run("trainwright.serving", arguments, limits, interpreter=str(python("torch")))
        if done.error:
            raise done.error
        written.replace(output)
    return done.answer


def is_table(rows: object) -> bool:
    """Tell whether rows lie in memory, and not in a file that a path or a URI names."""
    return not isinstance(rows, str | os.PathLike)


def write_rows(rows: Any, folder: Path, name: str) -> Path:
    """Write rows to a new file of a folder, and return it: Parquet, or JSON lines where pyarrow is missing.

    Args:
        rows: A pandas data frame, an Arrow table, or arrays or lists of one length by name.
        folder: The folder; it is created.
        name: Name of the file, without its suffix.

    Raises:
        InputError: These are no rows, or the columns have different lengths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, Mapping):
        return _write_columns(rows, folder / f"{name}.jsonl")
    if type(rows).__module__.startswith("pyarrow"):
        importlib.import_module("pyarrow.parquet").write_table(rows, folder / f"{name}.parquet")
        return folder / f"{name}.parquet"
    if not hasattr(rows, "to_parquet"):
        raise InputError(
            f"expected a path, a data frame, an Arrow table or columns by name, found {type(rows).__name__}",
            where="rows",
        )
    if importlib.util.find_spec("pyarrow"):
        rows.to_parquet(folder / f"{name}.parquet", index=False)
        return folder / f"{name}.parquet"
    rows.to_json(folder / f"{name}.jsonl", orient="records", lines=True, date_format="iso")
    return folder / f"{name}.jsonl"


def _write_columns(rows: Mapping[str, Any], path: Path) -> Path:
    columns = {
        name: values.tolist() if hasattr(values, "tolist") else list(values) for name, values in rows.items()
    }
    if len({len(values) for values in columns.values()}) > 1:
        sizes = {name: len(values) for name, values in columns.items()}
        raise InputError(f"the columns have different lengths: {sizes}", where="rows")
    lines = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
    return path
