"""Training pipelines for Kubeflow Pipelines v2: one verb a step, the same on a laptop and on a cluster."""

__version__ = "0.1.0"
