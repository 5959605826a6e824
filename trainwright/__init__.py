"""Training pipelines for Kubeflow Pipelines v2: one verb a step, the same on a laptop and on a cluster.

The Python interface, :mod:`trainwright.api`, is offered here and loaded at its first use::

    import trainwright

    run = trainwright.run("experiment.yaml")
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwright.api import LocalRun, ScoredFile, StepOutputs, init, open_run, predict, run, step

__all__ = ["LocalRun", "ScoredFile", "StepOutputs", "init", "open_run", "predict", "run", "step"]

__version__ = "0.1.0"

ENVIRONMENT_FILE = "trainwright-environment.json"
"""Written into an environment's prefix when it is made, in the image and locally: its name and lock."""

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "_components"

COMPONENTS = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "components"
"""The folder of the components: in an image or a wheel, or in the repository."""


def __getattr__(name: str) -> Any:
    """Load a name of the Python interface: every step imports this package, and none needs kfp."""
    if name in __all__:
        return getattr(importlib.import_module("trainwright.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
