"""The experiment file with which the suite submits ``train_and_register``: a training of seconds."""

from pathlib import Path
from typing import Any

import yaml

from tests.kubeflow.pipeline import DATA

SERVICE = "acceptance"
SIZES = {
    "ingest": ("300m", "1G"), "validate": ("600m", "2G"), "join": ("600m", "1500M"), "score": ("300m", "1G"),
    "evaluate": ("300m", "1G"), "smoke_test": ("600m", "1500M"),
}  # fmt: skip


DRIFTED: dict[str, Any] = {
    "splits": {
        "train": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-15T00:00:00Z"},
        "evaluate": {"start": "2026-01-15T00:00:00Z", "end": "2026-02-01T00:00:00Z"},
    },
    "split_by": None,
}
"""Splits by time in place of shares: ``queue`` grows with time, so they are not alike."""


def write(folder: Path, name: str, source: str, tracking_uri: str, **changes: dict[str, Any]) -> Path:
    """Write the file.

    Args:
        folder: Where it goes.
        name: Of the file, without a suffix.
        source: Folder or URI of what ``sample`` has written.
        tracking_uri: Address of MLflow as the pods reach it.
        changes: Keys of sections, laid over the section.
    """
    repository = f"{source}/feature_repo"
    file: dict[str, Any] = {
        "schema_version": 1,
        "schema_file": f"{source}/schema.pbtxt",
        "data": DATA | {"source": f"{source}/rows.csv"},
        "validation": {"on_missing_baseline": "bootstrap", "ignore": ["id", "at"]},
        "features": {
            "repository": repository,
            "source": f"{repository}/**/*[!c]",
            "service": SERVICE,
            "request": ["shop", "queue"],
        },
        "network": {"kind": "mlp", "hidden": [16]},
        "training": {"epochs": 3, "batch_size": 256, "learning_rate": 0.05},
        "resources": {"launcher": "auto", "nodes": 1, "processes": 2, "timeout_s": 900},
        "steps": {step: {"cpu": cpu, "memory": memory} for step, (cpu, memory) in SIZES.items()},
        "evaluation": {"min_auc": 0.6, "missing_baseline": "bootstrap", "resamples": 200},
        "registry": {"model": "acceptance", "tracking_uri": tracking_uri},
    }
    for section, keys in changes.items():
        file[section] |= keys
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(file))
    return path
