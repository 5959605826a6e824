"""Training pipelines for Kubeflow Pipelines v2: one verb a step, the same on a laptop and on a cluster."""

__version__ = "0.1.0"

ENVIRONMENT_FILE = "trainwright-environment.json"
"""Written into an environment's prefix when it is made, in the image and locally: its name and lock."""
