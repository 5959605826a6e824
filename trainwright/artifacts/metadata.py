"""Metadata of artifacts, for Kubeflow's lists and comparisons, read from their documents.

Kubeflow Pipelines shows an artifact by its metadata alone, in the list of artifacts, in the lineage and in a
comparison of runs. Every value is a text or a number, since the UI shows nothing else.
"""

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
_VERDICT = "verdict.json"
_REGISTERED = ("model", "version", "model_version", "data_version", "commit", "data_decision", "page", "run")


def metadata_of(folder: Path, name: str = "") -> ArtifactMetadata:
    """Return the metadata of an artifact; its name before the version is that of the folder by default.

    Raises:
        InputError: A document in the folder is invalid.
    """
    found: ArtifactMetadata = {}
    if (folder / Snapshot.FILE).exists():
        snapshot = Snapshot.read(folder)
        found |= {
            "version": snapshot.digest,
            "rows": snapshot.rows,
            "columns": len(snapshot.columns),
            "files": len(snapshot.files),
            "bytes": sum(entry.size for entry in snapshot.files),
            **{f"rows_{split}": rows for split, rows in snapshot.splits.items()},
            **{f"from_{name}": digest for name, digest in snapshot.parents.items()},
        }
    if (folder / Model.FILE).exists():
        model = Model.read(folder)
        found |= {
            "version": model.digest,
            "kind": model.kind,
            "label": model.label,
            "inputs": len(model.inputs),
            "training_data": model.training_data,
            **{f"from_{name}": digest for name, digest in model.parents.items()},
            **model.metrics,
        }
    if (path := folder / _REGISTRATION).exists():
        entry = read_json(path)
        if not isinstance(entry, dict):
            raise InputError(f"expected a JSON object, found {entry!r:.80}", where=str(path), hint=RUN_AGAIN)
        found |= {key: str(entry[key]) for key in _REGISTERED if entry.get(key)}
    if (folder / Record.FILE).exists():
        record = Record.read(folder)
        outputs = {key: digest for key, digest in record.outputs.items() if digest not in found.values()}
        texts = {"step": record.step, "headline": record.headline, "decision": record.decision} | outputs
        found |= {key: text for key, text in texts.items() if text}
    if (path := folder / _VERDICT).exists():  # of data that was held before, it is worse than join's record
        found["decision"] = str(read_json(path)["decision"])
    if version := str(found.get("version", "")):
        found[DISPLAY] = f"{found.get('kind', '')} {name or folder.name} {version[:_DIGITS]}".strip()
    if {"model", "model_version"} <= found.keys():
        found[DISPLAY] = f"{found['model']} version {version}"
    return found


def describe(step: str, *artifacts: Any, name: str = "") -> None:
    """Write the metadata of output artifacts, with a display name.

    The name of a document has its version. Other artifacts are named by step and output, such as
    ``evaluate report``: Kubeflow would name the reports of all steps ``report``.
    """
    for artifact in artifacts:
        path = Path(artifact.path)
        found = metadata_of(path, name) if path.is_dir() else {}
        artifact.metadata.update({DISPLAY: f"{step} {artifact.name or path.name}"} | found)
