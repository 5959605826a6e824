"""Feast's Spark: checked before it starts, and watched while it works."""

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from trainwright.errors import DependencyError, InputError, TrainwrightError
from trainwright.http_exchange import HttpStatus, exchange
from trainwright.retries import OUTAGE_S

EXECUTOR_WAIT_S = OUTAGE_S
"""How long a session may have no executor; a cluster that queues jobs may take so long to give one."""

_STANDALONE = "spark://"
_REST_PORT = "spark.master.rest.port"
_CONNECT_S = 10.0
_PYTHON = "PYTHON_VERSION_MISMATCH"
_AGAIN = "Nothing is lost: run again when the cluster answers."
_SAME = "Run the cluster with the versions of this step: docs/features.md."


@contextmanager
def spark_session(conf: Mapping[str, str] | None, what: str, where: str) -> Iterator[Any]:
    """Yield this process's Spark session, started with ``conf`` if there is none yet.

    Spark waits forever for executors that never come, or do not come back. So its jobs are cancelled once it
    has had none for :data:`EXECUTOR_WAIT_S`.

    Raises:
        InputError: A setting is not Spark's, or the cluster runs other versions than this process.
        DependencyError: The cluster is away or fails: ``what`` names the work.
    """
    from pyspark.sql import SparkSession  # type: ignore[import-not-found,unused-ignore]

    conf = conf or {}
    session = SparkSession.getActiveSession() or _start(conf, where)
    ended, lost = threading.Event(), threading.Event()
    watch = threading.Thread(target=_watch, args=(session, ended, lost), daemon=True)
    watch.start()
    try:
        try:
            yield session
        finally:
            ended.set()
            watch.join()
    except TrainwrightError:
        raise
    except Exception as error:
        with suppress(Exception):  # of a driver that died, which cannot be stopped
            session.stop()  # the next attempt needs a new one
        said = f"no executor for {EXECUTOR_WAIT_S:,.0f} s" if lost.is_set() else _text(error)
        if _PYTHON in said:
            raise InputError(
                f"Spark's workers have another Python: {said}", where=where, hint=_SAME
            ) from error
        raise DependencyError(f"{what}: {said}", where=where, hint=_AGAIN) from error


def _start(conf: Mapping[str, str], where: str) -> Any:
    """Check settings and master, and start a session."""
    from pyspark import SparkConf  # type: ignore[import-not-found,unused-ignore]
    from pyspark.sql import SparkSession  # type: ignore[import-not-found,unused-ignore]

    if unknown := sorted(name for name in conf if not name.startswith("spark.")):
        what = f"Spark has no option {', '.join(map(repr, unknown))}: all its options begin with spark."
        raise InputError(what, where=f"{where}: spark_conf", hint="Correct the name.")
    master = conf.get("spark.master", "")
    if master.startswith(_STANDALONE):
        # Spark's default is the host's name, which executors cannot resolve if it is a pod's.
        conf = {"spark.driver.host": _require_master(master, conf.get(_REST_PORT, "6066"), where), **conf}
    # Spark would start "python3", which may be one without Feast; all its nodes run the same image.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        return SparkSession.builder.config(conf=SparkConf().setAll(list(conf.items()))).getOrCreate()
    except Exception as error:
        what = f"Spark did not start on {master or 'this machine'}: {_text(error)}"
        raise DependencyError(what, where=where, hint=_AGAIN) from error


def address_towards(server: str) -> str:
    """Return this machine's address for a server at ``HOST:PORT``; '' if it accepts no connections.

    Raises:
        ValueError: The address has another form.
    """
    parts = urlsplit(f"//{server}")
    if not (parts.hostname and parts.port):
        raise ValueError(f"expected HOST:PORT, found {server!r}")
    try:
        with socket.create_connection((parts.hostname, parts.port), _CONNECT_S) as connection:
            return str(connection.getsockname()[0])
    except OSError:
        return ""


def _require_master(master: str, rest_port: str, where: str) -> str:
    """Return our address for a standalone master, which runs our version if its REST server tells it."""
    from pyspark import __version__  # type: ignore[import-not-found,unused-ignore]

    addresses = master.removeprefix(_STANDALONE).split(",")
    try:
        answering = {address: own for address in addresses if (own := address_towards(address))}
    except ValueError:
        what = f"expected spark://HOST:PORT, found {master!r}"
        raise InputError(what, where=f"{where}: spark.master", hint="Correct it.") from None
    if not answering:
        raise DependencyError(f"no Spark master answers at {master}", where=where, hint=_AGAIN)
    for address in answering:
        url = f"http://{address.rpartition(':')[0]}:{rest_port}/v1/submissions/status/none"
        try:
            found = str(json.loads(exchange("GET", url, {}, timeout_s=_CONNECT_S))["serverSparkVersion"])
        except (OSError, http.client.HTTPException, HttpStatus, ValueError, LookupError):
            continue
        if found != __version__:
            raise InputError(
                f"the Spark cluster at {master} runs {found}, this step's pyspark is {__version__}",
                where=where,
                hint=_SAME,
            )
    return next(iter(answering.values()))


def _watch(session: Any, ended: threading.Event, lost: threading.Event) -> None:
    """Cancel all jobs once there has been no executor for too long; locally, the driver executes."""
    context = session.sparkContext
    since = time.monotonic()
    while not context.master.startswith("local") and not ended.wait(1.0):
        if len(context._jsc.sc().statusTracker().getExecutorInfos()) > 1:  # the first is the driver
            since = time.monotonic()
            lost.clear()
        elif time.monotonic() - since > EXECUTOR_WAIT_S:
            lost.set()
            context.cancelAllJobs()


def require_same_feast(session: Any, where: str) -> None:
    """Check that a worker has the Feast of this process, as it writes with its own."""

    def feast(_: int) -> str:  # pickled by value: a worker need not have this library
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("feast")
        except PackageNotFoundError:
            return "missing"

    found, ours = session.sparkContext.parallelize([0], 1).map(feast).first(), feast(0)
    if found != ours:
        raise InputError(f"Feast of Spark's workers is {found}, of this step {ours}", where=where, hint=_SAME)


def _text(error: Exception) -> str:
    """Return the beginning of an error; Java's stack trace follows it."""
    return f"{type(error).__name__}: {error}".partition("\n\tat ")[0]
