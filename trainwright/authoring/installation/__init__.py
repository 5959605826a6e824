"""Inspect an installation of Kubeflow: what a run would lack there, what that costs, and what to apply."""
