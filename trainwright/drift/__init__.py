"""Drift between two samples of columns: distances, their limits, findings, and baselines. Without TFDV."""
