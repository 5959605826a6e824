import warnings

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore"
    )  # Beam brings grpcio along, and Google's library misses grpcio-status then
    import google.api_core.exceptions  # noqa: F401

from tests.engines.beam_clusters import flink

__all__ = ["flink"]
