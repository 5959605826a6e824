"""Shards made by Apache Beam: on this machine, or by Flink, Spark or Dataflow, as its options say."""

import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from trainwright import storage
from trainwright.errors import DependencyError, InputError, TransientError
from trainwright.ingest.runner import Outcome, attempt
from trainwright.ingest.shards import Plan, Shard
from trainwright.storage import Access

_HERE = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""Beam's runner for one machine. What Beam calls ``DirectRunner`` first looks for a program to download."""

_LOCAL = {"", "DirectRunner", "direct", "FnApiRunner", _HERE}
_AT_A_TIME = 16


def run_with_beam(plan: Plan, shards: Sequence[Shard]) -> Iterator[Outcome]:
    """Make shards by Beam. What becomes of each is written beside the reports, and read from there.

    Args:
        plan: What every worker needs; can be pickled.
        shards: What to do.

    Raises:
        InputError: Other machines are to work, but the shards would go to a folder of this one.
        DependencyError: Beam is not installed.
        TransientError: Beam's own pipeline failed, or a shard was lost.
    """
    runner, options = _runner(plan.data.runner.options)
    if runner not in _LOCAL and plan.data.store is None:
        raise InputError(
            f"--runner={runner} works on other machines, which cannot write into this step's folder",
            where="data.runner",
            hint="Name a bucket in data.store.",
        )
    place = storage.join(plan.place.spills, f"outcomes-{secrets.token_hex(4)}")
    _run([f"--runner={_HERE if runner in _LOCAL else runner}", *options], plan, shards, place)
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        yield from threads.map(partial(_outcome, plan.access, place), (shard.index for shard in shards))


def _runner(options: Sequence[str]) -> tuple[str, list[str]]:
    """Part the runner from the other options."""
    mark = "--runner="
    named = [option.removeprefix(mark) for option in options if option.startswith(mark)]
    return (named[-1] if named else ""), [option for option in options if not option.startswith(mark)]


def _run(options: Sequence[str], plan: Plan, shards: Sequence[Shard], place: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Beam about packages that it could also use, and about itself
        state = _state(options, partial(write_outcome, plan, place), shards)
    if state != "DONE":
        raise _lost(f"it ended as {state}")


def _state(options: Sequence[str], work: Callable[[Shard], None], shards: Sequence[Shard]) -> str:
    """Run the pipeline: one shard an element, dealt out anew so that no two need be made together."""
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
        pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
        _ = pipeline | beam.Create(list(shards)) | beam.Reshuffle() | beam.Map(work)
        return str(pipeline.run().wait_until_finish())
    except Exception as error:
        raise _lost(f"{type(error).__name__}: {error}") from error


def write_outcome(plan: Plan, place: str, shard: Shard) -> None:
    """Make one shard and write what became of it; what is written first counts, as Beam may try twice."""
    outcome = attempt(plan, shard)
    try:
        storage.create(_name(place, shard.index), outcome.to_json().encode(), plan.access)
    except storage.AlreadyThere:
        return


def _outcome(access: Access, place: str, shard: int) -> Outcome:
    uri = _name(place, shard)
    try:
        content = storage.read_bytes(uri, access=access)
    except InputError:
        raise _lost(f"shard {shard} was not made") from None
    storage.remove([uri], access)
    return Outcome.from_json(content.decode())


def _name(place: str, shard: int) -> str:
    return storage.join(place, f"{shard:05d}.outcome")


def _lost(what: str) -> TransientError:
    return TransientError(
        f"Beam did not make all shards: {what:.500}",
        where="data.runner",
        hint="See Beam's own log. What was committed before is used again by the next run.",
    )
