"""What the workers of a test do instead of a shard; they are found by their names in other processes."""

import os
import signal
import time
from pathlib import Path

from trainwright.ingest.runner import Outcome
from trainwright.ingest.shards import Plan, Shard


def die_at_three(plan: Plan, shard: Shard) -> Outcome:
    """Be killed, as by a lack of memory, while the fourth shard is made."""
    if shard.index == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(shard.index, "{}")


def fail_from_two(plan: Plan, shard: Shard) -> Outcome:
    """Fail at the third shard late, and at the fourth at once."""
    if shard.index < 2:
        return Outcome(shard.index, "{}")
    time.sleep(0.5 if shard.index == 2 else 0)
    return Outcome(shard.index, None, ("InputError", f"shard {shard.index} is bad", "here", ""))


def write_pid(plan: Plan, shard: Shard) -> Outcome:
    """Leave this process's number in a folder that the plan's source names, and work for a while."""
    (Path(plan.data.source) / str(os.getpid())).touch()
    time.sleep(0.5)
    return Outcome(shard.index, "{}")
