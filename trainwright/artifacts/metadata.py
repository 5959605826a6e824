"""Metadata of artifacts, for Kubeflow's lists and comparisons, read from their documents.

Kubeflow Pipelines shows an artifact by its metadata alone, in the list of artifacts, in the lineage and in a
comparison of runs. Every value is a text or a number, since the UI shows nothing else.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwright.artifacts.model import Model
from trainwright.artifacts.record import Record
from trainwright.artifacts.snapshot import RUN_AGAIN, Snapshot
from trainwright.documents import read_json
from trainwright.errors import InputError

ArtifactMetadata = dict[str, str | float | int]

_DIGITS = 12
"""Digits of a digest in a display name; the metadata has all 64."""

DISPLAY = "display_name"
"""Key of an artifact's name in the UI; without it, the UI shows the name of the output."""

_REGISTRATION = "registration.json"


def metadata_of(folder: Path, name: str = "") -> ArtifactMetadata:
    """Return the metadata of an artifact.

    Args:
        folder: Folder of the artifact.
        name: Name before the version; default: the folder's name.

    Raises:
        InputError: A document in the folder is invalid.
    """
    found: ArtifactMetadata = {}
    for file, read in _READERS.items():
        if (folder / file).exists():
            found |= read(folder)
    if (folder / Record.FILE).exists():
        found |= _of_record(Record.read(folder), found)
    if version := str(found.get("version", "")):
        found[DISPLAY] = f"{found.get('kind', '')} {name or folder.name} {version[:_DIGITS]}".strip()
    if {"model", "model_version"} <= found.keys():
        found[DISPLAY] = f"{found['model']} version {version}"
    return found


def _of_snapshot(folder: Path) -> ArtifactMetadata:
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


def _of_model(folder: Path) -> ArtifactMetadata:
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


def _of_registration(folder: Path) -> ArtifactMetadata:
    path = folder / _REGISTRATION
    entry = read_json(path)
    if not isinstance(entry, dict):
        raise InputError(f"expected a JSON object, found {entry!r:.80}", where=str(path), hint=RUN_AGAIN)
    names = ("model", "version", "model_version", "data_version", "commit", "data_decision", "page", "run")
    return {name: str(entry[name]) for name in names if entry.get(name)}


def _of_record(record: Record, known: Mapping[str, object]) -> ArtifactMetadata:
    made = {name: digest for name, digest in record.outputs.items() if digest not in known.values()}
    said = {"step": record.step, "headline": record.headline, "decision": record.decision}
    return {name: text for name, text in {**said, **made}.items() if text}


def _parents(parents: Mapping[str, str]) -> ArtifactMetadata:
    return {f"from_{name}": digest for name, digest in parents.items()}


_READERS: Mapping[str, Callable[[Path], ArtifactMetadata]] = {
    Snapshot.FILE: _of_snapshot,
    Model.FILE: _of_model,
    _REGISTRATION: _of_registration,
}


def describe(step: str, *artifacts: Any, name: str = "") -> None:
    """Write the metadata of output artifacts, with a display name.

    The name of a document has its version. Other artifacts are named by step and output, such as
    ``evaluate report``: Kubeflow would name the reports of all steps ``report``.

    Args:
        step: Name of the step.
        artifacts: Written ``dsl.Artifact`` objects.
        name: As in :func:`metadata_of`.
    """
    for artifact in artifacts:
        path = Path(artifact.path)
        found = metadata_of(path, name) if path.is_dir() else {}
        artifact.metadata.update({DISPLAY: f"{step} {artifact.name or path.name}"} | found)
