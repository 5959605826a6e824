"""The images that components run in: one short name a toolchain, tagged with the library's version.

No registry is named here: ``trainwright compile --registry`` puts one in front of every name.
"""

from trainwright import __version__


def name(toolchain: str) -> str:
    """Return the image of a toolchain, such as ``trainwright/tabular:0.1.0``."""
    return f"trainwright/{toolchain}:{__version__}"


USER = 65532
"""User and group that every image runs as; the same number stands in ``images/Dockerfile``."""

INGEST = name("ingest")
"""Sources: object stores, databases, table formats; Beam past one machine."""

TABULAR = name("tabular")
"""Rows, figures and reports: pyarrow, numpy, scipy."""

TFDV = name("tfdv")
"""TensorFlow Data Validation; fixes its Python at 3.11."""

FEAST = name("feast")
"""Feast with its DuckDB offline store."""

TORCH = name("torch")
"""PyTorch: what the pods of a training job run."""

LAUNCHER = name("launcher")
"""The small image that submits a training job and waits for it."""

MLFLOW = name("mlflow")
"""MLflow's client and its embedded SQLite store."""
