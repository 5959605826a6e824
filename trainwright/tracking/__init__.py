"""What a step leaves about itself: its record, and the curves of a training on their way to MLflow."""

from trainwright.tracking.record import Stopwatch, environment, library_digest

__all__ = ["Stopwatch", "environment", "library_digest"]
