"""A run that a signal strikes while it writes into Redis, at a moment that no load of the machine moves."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from trainwright.errors import TransientError
from trainwright.materialize.writers import SCRIPT_ROWS, RedisWriter

COUNT = 10 * SCRIPT_ROWS
"""Rows that go to Redis in ten calls."""

REPLIES = 3
"""After so many answers the signal comes: some rows are written by then, and some are not sent."""


def struck(blow: signal.Signals, work: Callable[[], object]) -> int:
    """Work in a copy of this process that sends itself a signal while it writes; return the copy's id.

    If it goes on after that, it ends with 0, or with the code of a ``TransientError``.
    """
    child = os.fork()
    if child:
        return child
    replies = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal replies
        if event == "return" and frame.f_code is RedisWriter._reply.__code__:
            replies += 1
            if replies == REPLIES:
                os.kill(os.getpid(), blow)

    threading.setprofile(watch)
    sys.setprofile(watch)
    status = 1
    try:
        work()
        status = 0
    except TransientError as error:
        status = error.code
    finally:
        os._exit(status)
