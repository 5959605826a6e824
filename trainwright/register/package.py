"""A model's folder as MLflow reads one: the same files, and an ``MLmodel`` beside them. No pickle."""

import json
import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from trainwright.artifacts import Model
from trainwright.errors import InputError

LOADER = "trainwright.serving"
"""The module whose ``_load_pyfunc(path)`` opens a registered model; it needs the torch environment."""

_TYPES = {
    "halffloat": "double",
    "float": "double",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date32[day]": "datetime",
    "timestamp": "datetime",
}
"""Arrow's types in MLflow's words, where a missing value has a place in both.

MLflow's integers and booleans take none, its ``double`` takes no int64, and its ``float`` no float64; the
model reads every number as a float64. So every float is declared ``double``, and whatever is not named here,
such as an integer, is left open (``any``): frames of whole numbers are taken, and so are those with gaps.
"""


def pack(folder: Path, model: Model, target: Path, *, run: str, time_ms: int) -> None:
    """Copy the files of a model and describe them for MLflow.

    Args:
        folder: The model's folder, already checked against its manifest.
        model: Its manifest.
        target: A new folder.
        run: MLflow's run.
        time_ms: When that run began, in milliseconds since 1970; the package bears this time.

    Raises:
        InputError: The model has no signature or no input example.
    """
    target.mkdir(parents=True)
    for name in (Model.FILE, *(entry.path for entry in model.files)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target / name)
    description = describe(folder, run=run, time_ms=time_ms)
    (target / "MLmodel").write_text(yaml.safe_dump(description, default_flow_style=False))


def describe(folder: Path, *, run: str, time_ms: int) -> dict[str, Any]:
    """Return the content of ``MLmodel``.

    The signature is written in its documented JSON form rather than by MLflow's classes, which would
    bring pandas and numpy (104 MB) into this environment for nothing else.
    """
    from mlflow.models import Model as Description

    flavour = {"loader_module": LOADER, "python_version": platform.python_version()}
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
    created = moment.isoformat(" ", timespec="microseconds")
    description: dict[str, Any] = Description(
        run_id=run, utc_time_created=created, model_uuid=run, flavors={"python_function": flavour}
    ).to_dict()
    example = {"artifact_path": _require(folder, "input_example.json").name, "type": "dataframe"}
    return description | {
        "signature": _signature(_require(folder, "signature.json")),
        "saved_input_example_info": example | {"pandas_orient": "split"},
    }


def _require(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise InputError(
            f"the model has no {name}, and is not registered without",
            where=str(folder),
            hint="Train it with the train component, or write the file beside its model.json.",
        )
    return folder / name


def _signature(path: Path) -> dict[str, str | None]:
    described = json.loads(path.read_text())
    inputs = [_column(entry, required=False) for entry in described["inputs"]]
    outputs = [_column(entry, required=True) for entry in described["outputs"]]
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": None}


def _column(entry: dict[str, Any], *, required: bool) -> dict[str, Any]:
    kind = str(entry["type"])
    known = _TYPES.get(kind, _TYPES.get(kind.partition("[")[0], "any"))
    return {"type": known, "name": entry["name"], "required": required}
