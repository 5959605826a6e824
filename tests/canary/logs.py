"""Logs of served requests, as a service would write them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
OLD, NEW = "3", "4"


def write(path: Path, versions: list[str], **columns: Any) -> Path:
    """Write a log, one answer a second."""
    times = [BEGIN + timedelta(seconds=index) for index in range(len(versions))]
    pq.write_table(pa.table({"time": times, "version": versions, **columns}), path)
    return path


def flights(path: Path, rows: int, *, worse: float = 0.0, share: float = 0.0, seed: int = 1) -> Path:
    """Log a flight's chance to be late, and whether it was; ``worse`` is the candidate's extra noise.

    Without a share both versions answer each request.
    """
    draw = np.random.default_rng(seed)
    chance = draw.uniform(0, 1, rows)
    late = (draw.uniform(0, 1, rows) < chance).astype(float)
    noisy = np.clip(chance + draw.normal(0, worse, rows) if worse else chance, 0, 1)
    request = [f"r{index}" for index in range(rows)]
    if not share:
        both = {"request": request * 2, "score": [*chance, *noisy], "outcome": [*late, *late]}
        return write(path, [OLD] * rows + [NEW] * rows, **both)
    new = draw.uniform(0, 1, rows) < share
    versions = [NEW if one else OLD for one in new]
    return write(path, versions, request=request, score=np.where(new, noisy, chance), outcome=late)
