"""Who grows the trees: one process a machine, with the threads of all of that machine's processes."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from xgboost import collective
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

from trainwright.errors import DependencyError
from trainwright.train.group import Group

_JOINING = timedelta(minutes=10)


def nodes(group: Group) -> int:
    """Return the number of machines."""
    return group.size // group.local_size


def threads(group: Group) -> int:
    """Return the threads of all processes of this machine; the trees do not depend on their number."""
    return max(1, group.local_size * torch.get_num_threads())


def share(rows: int, group: Group) -> range:
    """Return the rows that are this machine's: neighbours, as many on each as whole numbers allow."""
    node, count = group.rank // group.local_size, nodes(group)
    return range(node * rows // count, (node + 1) * rows // count)


@contextmanager
def joined_workers(group: Group, collective_s: float) -> Iterator[None]:
    """Let the growing processes of several machines add up what they find; does nothing on one machine.

    XGBoost has a network of its own for that, which the first process starts.

    Args:
        group: The processes.
        collective_s: Seconds that one of them waits for the others.

    Raises:
        DependencyError: They do not find each other.
    """
    count = nodes(group)
    if count == 1:
        yield
        return
    tracker: RabitTracker | None = None
    told: list[dict[str, Any] | None] = [None]
    if group.leads:
        tracker = RabitTracker(count, _address(), sortby="task", timeout=_JOINING.seconds)
        tracker.start()
        told = [tracker.worker_args()]
    distributed.broadcast_object_list(told)
    if group.local_rank:
        yield
        return
    _join(told[0] or {}, group, collective_s)
    try:
        yield
    except BaseException:
        # The others may be waiting for this process, so nothing is taken down in order. The tracker's thread
        # runs on: to free it now would crash this process before it has told its error.
        if tracker:
            del tracker.handle
        raise
    collective.finalize()
    if tracker:
        tracker.wait_for(timeout=_JOINING.seconds)


def _join(told: Mapping[str, Any], group: Group, collective_s: float) -> None:
    try:
        collective.init(**told, dmlc_task_id=f"{group.rank:08}", dmlc_timeout=int(collective_s))
    except XGBoostError as error:
        raise DependencyError(
            f"the machines that grow trees did not find each other: {error}",
            where=f"tracker {told.get('dmlc_tracker_uri')}:{told.get('dmlc_tracker_port')}",
            hint="The job's pods must reach each other on any port.",
        ) from error


def _address() -> str | None:
    """Return the first machine's address as torchrun names it; None lets XGBoost look for it."""
    name = os.environ.get("MASTER_ADDR", "localhost")
    address = socket.gethostbyname(name)
    alias = address.startswith("127.") and not name.startswith(("127.", "localhost"))
    return None if alias else address
