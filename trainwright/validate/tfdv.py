"""TFDV and what comes with it, loaded without the dozen lines that they print while they load.

TensorFlow, Beam and TFDV tell of processor instructions, notebooks and filesystems that no step here uses,
and an error that follows them is hard to find. If loading fails, all that they said is shown.
"""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


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
    stream, handlers, before = _Muted(), list(logging.root.handlers), os.environ.get(_LEVEL)
    os.environ.setdefault(_LEVEL, "2")
    try:
        with warnings.catch_warnings(), redirect_stderr(stream):
            warnings.simplefilter("ignore")
            yield
    except BaseException:
        sys.stderr.writelines(stream.kept or [])
        raise
    finally:
        stream.kept = None
        logging.root.handlers[:] = handlers
        if before is None:
            os.environ.pop(_LEVEL, None)


with _muted():
    import tensorflow_data_validation as tfdv  # type: ignore[import-untyped]
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped, unused-ignore]
    from tensorflow_data_validation.statistics import stats_impl  # type: ignore[import-untyped]
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
]
