"""The images of the components: one short name per toolchain, tagged with the library's version.

``trainwright compile --registry`` adds a registry to every name.
"""

from trainwright import __version__


def name(toolchain: str) -> str:
    """Return the image of a toolchain, such as ``trainwright/tabular:0.1.0``."""
    return f"trainwright/{toolchain}:{__version__}"


USER = 65532
"""User and group of every image, as in ``images/Dockerfile``."""

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

TUNE = name("tune")
"""Optuna, beside what the launcher needs."""

MLFLOW = name("mlflow")
"""MLflow's client and its embedded SQLite store."""

SERVICE = name("service")
"""FastAPI, beside what MLflow's client and Kubeflow's API need."""
