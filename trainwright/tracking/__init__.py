"""The record of a step, the history of a training, and its upload to MLflow."""

from trainwright.tracking.record import Stopwatch, environment, library_digest

__all__ = ["Stopwatch", "environment", "library_digest"]
