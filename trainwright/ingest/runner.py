"""On what shards are made: in this process, in several processes of this machine, or by Apache Beam.

All of them call the same function with the same plan and the same shards, so one setting decides how many
machines work, and nothing else of the result.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainwright.errors import InternalError, TrainwrightError, in_our_words
from trainwright.ingest.reports import ShardReport, packed, unpacked
from trainwright.ingest.shards import Plan, Shard, make_shard


@dataclass(frozen=True)
class Outcome:
    """What became of one shard, as plain data that crosses between processes.

    Attributes:
        shard: Its place.
        report: Its report as JSON; None if it failed.
        failure: Of a failure: the class of the error, what, where, and what next.
    """

    shard: int
    report: str | None
    failure: tuple[str, str, str, str] | None = None

    def to_json(self) -> str:
        """Write it as JSON."""
        return json.dumps([self.shard, self.report, self.failure])

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        """Read it again."""
        shard, report, failure = json.loads(text)
        return cls(shard, report, tuple(failure) if failure else None)


def attempt(plan: Plan, shard: Shard) -> Outcome:
    """Make one shard, and turn an error into data: not every exception survives a pickle."""
    try:
        return Outcome(shard.index, packed(make_shard(plan, shard)).decode())
    except Exception as error:
        told = in_our_words(error)
        if isinstance(told, TrainwrightError):
            return Outcome(shard.index, None, (type(told).__name__, told.what, told.where, told.hint))
        traceback.print_exc(file=sys.stderr)
        what = f"shard {shard.index} failed: {type(error).__name__}: {error}"
        return Outcome(shard.index, None, (InternalError.__name__, what, "", "The traceback is in the log."))


def make(plan: Plan, shards: Sequence[Shard]) -> list[ShardReport]:
    """Make shards with the runner that the plan names.

    Args:
        plan: What every worker is given.
        shards: Those that are not there yet.

    Returns:
        Their reports, in the order of the shards.

    Raises:
        TrainwrightError: Of the shards that failed, the first one's error; it does not depend on how many
            workers there are.
        TransientError: A worker died.
    """
    outcomes = sorted(_outcomes(plan, shards), key=lambda outcome: outcome.shard)
    for outcome in outcomes:
        if outcome.failure:
            raise _error(*outcome.failure)
    return [unpacked(outcome.report.encode(), "shard") for outcome in outcomes if outcome.report is not None]


def _outcomes(plan: Plan, shards: Sequence[Shard]) -> Iterator[Outcome]:
    runner = plan.data.runner
    if runner.engine == "beam":
        from trainwright.ingest.beam import run_with_beam

        yield from run_with_beam(plan, shards)
    elif min(runner.workers, len(shards)) > 1:
        from trainwright.ingest.processes import run_in_processes

        yield from run_in_processes(plan, shards, attempt)
    else:
        for shard in shards:
            outcome = attempt(plan, shard)
            yield outcome
            if outcome.failure:
                return


def _error(name: str, what: str, where: str, hint: str) -> TrainwrightError:
    kinds = {kind.__name__: kind for kind in _below(TrainwrightError)}
    return kinds[name](what, where=where, hint=hint)


def _below(kind: type[TrainwrightError]) -> Iterator[type[TrainwrightError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _below(child)
