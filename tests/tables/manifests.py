"""Manifests of files that others wrote and that stay where they are, as reference mode makes them."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainwright.artifacts import Column, Snapshot, SnapshotFile

MODERN = int(pa.__version__.split(".")[0]) >= 14
"""Whether this pyarrow knows the checksums of pages."""


def entry(
    path: Path,
    rows: int,
    split: str = "train",
    kind: str = "md5",
    digest: Callable[[bytes], Any] = hashlib.md5,
) -> SnapshotFile:
    content = path.read_bytes()
    checksum = f"{kind}:{digest(content).hexdigest()}"
    return SnapshotFile(uri=str(path), size=len(content), checksum=checksum, rows=rows, split=split)


def manifest(types: Mapping[str, str], *files: SnapshotFile) -> Snapshot:
    return Snapshot(files=files, columns=tuple(Column(name=name, type=kind) for name, kind in types.items()))
