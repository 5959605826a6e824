"""Metadata of artifacts, for Kubeflow's lists and comparisons, read from their documents.

Kubeflow Pipelines shows an artifact by its metadata alone, in the list of artifacts, in the lineage and in a
comparison of runs. Every value is a text or a number, since the UI shows nothing else.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwright.artifacts.model import Model
from trainwright.artifacts.record import Record
from trainwright.artifacts.snapshot import Snapshot
from trainwright.errors import InputError

Facts = dict[str, str | float | int]

SHOWN = 12
"""Digits of a digest in a name; the metadata has all 64."""

DISPLAY = "display_name"
"""The name of an artifact in the UI of Kubeflow Pipelines; without it, the name of the output."""

_REGISTRATION = "registration.json"


def facts_of(folder: Path, name: str = "") -> Facts:
    """Return the metadata of an artifact.

    Args:
        folder: The artifact's folder, with a document of this library in it.
        name: What it is called in lists, before its version; empty for the folder's name.
    """
    found: Facts = {}
    for file, read in _READERS.items():
        if (folder / file).exists():
            found |= read(folder)
    if (folder / Record.FILE).exists():
        found |= _of_record(Record.read(folder), found)
    if version := str(found.get("version", "")):
        found[DISPLAY] = f"{found.get('kind', '')} {name or folder.name} {version[:SHOWN]}".strip()
    if {"model", "model_version"} <= found.keys():
        found[DISPLAY] = f"{found['model']} version {version}"
    return found


def _of_snapshot(folder: Path) -> Facts:
    snapshot = Snapshot.read(folder)
    return {
        "version": snapshot.digest,
        "rows": snapshot.rows,
        "columns": len(snapshot.columns),
        "files": len(snapshot.files),
        "bytes": sum(entry.size for entry in snapshot.files),
        **{f"rows_{split}": rows for split, rows in snapshot.splits.items()},
        **_parents(snapshot.parents),
    }


def _of_model(folder: Path) -> Facts:
    model = Model.read(folder)
    return {
        "version": model.digest,
        "kind": model.kind,
        "label": model.label,
        "inputs": len(model.inputs),
        "training_data": model.training_data,
        **_parents(model.parents),
        **model.metrics,
    }


def _of_registration(folder: Path) -> Facts:
    path = folder / _REGISTRATION
    try:
        entry = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"expected JSON, found none: {error}", where=str(path)) from None
    if not isinstance(entry, dict):
        raise InputError(f"expected a JSON object, found {type(entry).__name__}", where=str(path))
    names = ("model", "version", "model_version", "data_version", "commit", "data_decision", "page", "run")
    return {name: str(entry[name]) for name in names if entry.get(name)}


def _of_record(record: Record, known: Mapping[str, object]) -> Facts:
    made = {name: digest for name, digest in record.outputs.items() if digest not in known.values()}
    said = {"step": record.step, "headline": record.headline, "decision": record.decision}
    return {name: text for name, text in {**said, **made}.items() if text}


def _parents(parents: Mapping[str, str]) -> Facts:
    return {f"from_{name}": digest for name, digest in parents.items()}


_READERS: Mapping[str, Callable[[Path], Facts]] = {
    Snapshot.FILE: _of_snapshot,
    Model.FILE: _of_model,
    _REGISTRATION: _of_registration,
}


def describe(step: str, *artifacts: Any, name: str = "") -> None:
    """Put the facts of output artifacts of Kubeflow Pipelines into their metadata, with a name for the UI.

    A document has its version in its name. Anything else is named after its step and its output, such as
    ``evaluate report``: Kubeflow would call the reports of all steps ``report``.

    Args:
        step: The step that made them.
        artifacts: Each a ``dsl.Artifact`` that was written.
        name: As :func:`facts_of` has it; empty for the output's own.
    """
    for artifact in artifacts:
        path = Path(artifact.path)
        found = facts_of(path, name) if path.is_dir() else {}
        artifact.metadata.update({DISPLAY: f"{step} {artifact.name or path.name}"} | found)
