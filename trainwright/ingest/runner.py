"""Make shards in this process, in worker processes, or by Apache Beam; the result is the same."""

import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from trainwright import storage
from trainwright.documents import canonical, read_json
from trainwright.errors import (
    DependencyError,
    InputError,
    InternalError,
    TrainwrightError,
    TransientError,
    in_our_words,
    traceback_of,
)
from trainwright.ingest.reports import ShardReport
from trainwright.ingest.shards import ShardPlan, SourceShard, make_shard
from trainwright.tables.workers import Pool

_HERE = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""Beam's runner for one machine. What Beam calls ``DirectRunner`` first looks for a program to download."""

_LOCAL = {"", "DirectRunner", "direct", "FnApiRunner", _HERE}
_THREADS = 16


def make_shards(plan: ShardPlan, shards: Sequence[SourceShard]) -> list[ShardReport]:
    """Make shards with the runner that the plan names."""
    if plan.data.runner.engine == "beam":
        return _with_beam(plan, shards)
    processes = min(plan.data.runner.workers, len(shards))
    pool = Pool(
        partial(make_shard, plan),
        processes,
        describe=lambda shard: f"shard {shard.index}",
        died=TransientError,
        threads=max(1, (os.cpu_count() or 1) // max(1, processes)),
        ahead=1,
        # Threads of storage clients hold locks across a fork: a fork server has none.
        preload=["trainwright.ingest.runner"],
    )
    return list(pool.run(shards))


def _with_beam(plan: ShardPlan, shards: Sequence[SourceShard]) -> list[ShardReport]:
    """Make shards by Beam. Each result is written beside the reports, and read from there."""
    mark = "--runner="
    options = plan.data.runner.options
    runner = next((x.removeprefix(mark) for x in reversed(options) if x.startswith(mark)), "")
    if runner not in _LOCAL and plan.data.store is None:
        raise InputError(
            f"--runner={runner} works on other machines, which cannot write into this step's folder",
            where="data.runner",
            hint="Name a bucket in data.store.",
        )
    folder = storage.join(plan.place.spills, f"outcomes-{secrets.token_hex(4)}")
    others = [option for option in options if not option.startswith(mark)]
    _run_pipeline(
        [f"{mark}{_HERE if runner in _LOCAL else runner}", *others],
        partial(write_result, plan, folder),
        shards,
    )
    with ThreadPoolExecutor(_THREADS) as threads:
        results = list(threads.map(partial(_read_result, plan, folder), shards))
    for result in results:
        if isinstance(result, TrainwrightError):
            raise result
    return [result for result in results if isinstance(result, ShardReport)]


def _run_pipeline(
    options: Sequence[str], work: Callable[[SourceShard], None], shards: Sequence[SourceShard]
) -> None:
    try:
        import apache_beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise DependencyError(
            f"Apache Beam is not installed here: {error}",
            where="data.runner",
            hint="Install apache-beam, or set data.runner.engine to processes.",
        ) from None
    beam: Any = apache_beam  # its functions have no types
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Beam about packages that it could also use, and about itself
            pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
            # Reshuffled, so that Beam does not fuse shards into one unit of work.
            _ = pipeline | beam.Create(list(shards)) | beam.Reshuffle() | beam.Map(work)
            state = pipeline.run().wait_until_finish()
    except Exception as error:
        raise _lost(f"{type(error).__name__}: {error}") from error
    if state != "DONE":
        raise _lost(f"it ended as {state}")


def write_result(plan: ShardPlan, folder: str, shard: SourceShard) -> None:
    """Make one shard and write its report, or its error; the first result counts, as Beam may try twice."""
    try:
        content = make_shard(plan, shard).packed()
    except Exception as error:
        known = in_our_words(error)
        if not isinstance(known, TrainwrightError):
            sys.stderr.write(traceback_of(error))
            known = InternalError(
                f"shard {shard.index} failed: {type(error).__name__}: {error}",
                hint="The traceback is in the log.",
            )
        failure = [type(known).__name__, known.what, known.where, known.hint]
        content = canonical({"failure": failure}).encode()
    with suppress(storage.AlreadyExists):
        storage.create(_result_uri(folder, shard), content, plan.access)


def _read_result(plan: ShardPlan, folder: str, shard: SourceShard) -> ShardReport | TrainwrightError:
    uri = _result_uri(folder, shard)
    try:
        content = storage.read_bytes(uri, access=plan.access)
    except InputError:
        raise _lost(f"shard {shard.index} was not made") from None
    storage.remove([uri], plan.access)
    data = read_json(content, where=uri)
    if "failure" not in data:
        return ShardReport.from_json(data, uri)
    name, what, where, hint = data["failure"]
    kinds = {kind.__name__: kind for kind in _subclasses(TrainwrightError)}
    return kinds[name](what, where=where, hint=hint)


def _subclasses(kind: type[TrainwrightError]) -> Iterator[type[TrainwrightError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)


def _result_uri(folder: str, shard: SourceShard) -> str:
    return storage.join(folder, f"{shard.index:05d}.outcome")


def _lost(what: str) -> TransientError:
    return TransientError(
        f"Beam did not make all shards: {what:.500}",
        where="data.runner",
        hint="See Beam's own log. What was committed before is used again by the next run.",
    )
