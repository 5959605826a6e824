"""TFDV and what comes with it, loaded without the dozen lines that they print while they load.

TensorFlow, Beam and TFDV tell of processor instructions, notebooks and filesystems that no step here uses,
and an error that follows them is hard to find. If loading fails, all that they said is shown.
"""

import gc
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": "1"}
"""What TensorFlow reads while it is loaded: tell errors only, and leave out Keras, which is not used here."""


class _Muted(io.TextIOBase):
    """Standard error that keeps what is written until it is opened: loggers made meanwhile hold on to it."""

    def __init__(self) -> None:
        self.kept: list[str] | None = []

    def write(self, text: str) -> int:
        """Keep the text, or pass it on."""
        if self.kept is None:
            return sys.stderr.write(text)
        self.kept.append(text)
        return len(text)


@contextmanager
def _muted() -> Iterator[None]:
    stream, handlers = _Muted(), list(logging.root.handlers)
    missing = [name for name in _QUIET if name not in os.environ]
    os.environ.update({name: _QUIET[name] for name in missing})
    try:
        with warnings.catch_warnings(), redirect_stderr(stream), _uncollected():
            warnings.simplefilter("ignore")
            yield
    except BaseException:
        sys.stderr.writelines(stream.kept or [])
        raise
    finally:
        stream.kept = None
        logging.root.handlers[:] = handlers
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Put off the search for garbage: thousands of modules leave none, and it takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


with _muted():
    import tensorflow_data_validation as tfdv  # type: ignore[import-untyped]
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped, unused-ignore]
    from tensorflow_data_validation.statistics import stats_impl  # type: ignore[import-untyped]
    from tensorflow_data_validation.statistics.generators import (  # type: ignore[import-untyped]
        top_k_uniques_sketch_stats_generator as top_k,
    )
    from tensorflow_metadata.proto.v0 import (  # type: ignore[import-untyped]
        anomalies_pb2,
        schema_pb2,
        statistics_pb2,
    )
    from tfx_bsl.arrow import array_util  # type: ignore[import-untyped]

__all__ = [
    "anomalies_pb2",
    "array_util",
    "json_format",
    "schema_pb2",
    "statistics_pb2",
    "stats_impl",
    "text_format",
    "tfdv",
    "top_k",
]
