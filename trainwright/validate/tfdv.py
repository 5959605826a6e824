"""TFDV and what comes with it, loaded without the dozen lines that they print while they load.

TensorFlow, Beam and TFDV log processor instructions, notebooks and filesystems that no step here uses, and
hide an error that follows. If loading fails, everything that they logged is printed.
"""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from trainwright.imports import uncollected

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": "1"}
"""Variables that TensorFlow reads while it loads: log errors only, and leave out Keras, which is not used."""


class _Muted(io.TextIOBase):
    """Standard error that holds what is written until it is opened: loggers made meanwhile refer to it."""

    def __init__(self) -> None:
        self.held: list[str] | None = []

    def write(self, text: str) -> int:
        if self.held is None:
            return sys.stderr.write(text)
        self.held.append(text)
        return len(text)


@contextmanager
def _muted() -> Iterator[None]:
    stream, handlers = _Muted(), list(logging.root.handlers)
    missing = [name for name in _QUIET if name not in os.environ]
    os.environ.update({name: _QUIET[name] for name in missing})
    try:
        with warnings.catch_warnings(), redirect_stderr(stream):
            warnings.simplefilter("ignore")
            yield
    except BaseException:
        sys.stderr.writelines(stream.held or [])
        raise
    finally:
        stream.held = None
        logging.root.handlers[:] = handlers
        for name in missing:
            os.environ.pop(name, None)


with _muted(), uncollected():
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
