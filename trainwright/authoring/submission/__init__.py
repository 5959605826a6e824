"""Submit a compiled pipeline to Kubeflow exactly once, and follow the run."""
