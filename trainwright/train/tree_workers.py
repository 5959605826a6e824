"""The processes that train trees: one per machine, with the threads of all of that machine's processes."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import xgboost
from numpy.typing import NDArray
from torch import distributed
from xgboost import collective
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

from trainwright.errors import DependencyError
from trainwright.serving.trees import MatrixLayout
from trainwright.train.architectures import Target
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.rows import EncodedRows
from trainwright.train.process_group import Ranks

if TYPE_CHECKING:
    from trainwright.train.trainers import TrainingRows

_BLOCK_ROWS = 65_536
_CONNECT_TIMEOUT = timedelta(minutes=10)


def machines(ranks: Ranks) -> int:
    """Return the number of machines."""
    return ranks.size // ranks.local_size


class _Blocks(xgboost.DataIter):
    """Yields this machine's share of a split in blocks to XGBoost, which reads them several times."""

    def __init__(self, rows: "TrainingRows", samples: EncodedRows) -> None:
        super().__init__(release_data=True)
        ranks, count = rows.ranks, machines(rows.ranks)
        machine = ranks.rank // ranks.local_size
        self._start, self._stop = (edge * len(samples) // count for edge in (machine, machine + 1))
        self._next, self._samples, self._target = self._start, samples, rows.target
        self._layout = MatrixLayout.of(rows.transforms)

    def reset(self) -> None:
        """Start again."""
        self._next = self._start

    def next(self, input_data: Callable[..., Any]) -> bool:
        """Pass one block; return False at the end."""
        if self._next >= self._stop:
            return False
        end = min(self._next + _BLOCK_ROWS, self._stop)
        batch = self._samples.take(np.arange(self._next, end))
        numeric, categories = (part.numpy() for part in batch.inputs)
        input_data(
            data=self._layout.matrix(numeric, categories),
            label=xgboost_labels(batch, self._target),
            weight=batch.weight.numpy(),
            feature_types=list(self._layout.types),
        )
        self._next = end
        return True


def xgboost_labels(batch: Batch, target: Target) -> NDArray[np.float32]:
    """Return the labels as XGBoost learns them: classes by number, numbers standardised."""
    label = batch.target.numpy()
    if target.kind == "regression":
        mean, deviation = target.rates
        label = (label.astype(np.float64) - mean) / deviation
    return label.astype(np.float32)


class TreeWorker:
    """Trains trees on this machine's rows, and measures their losses."""

    def __init__(
        self,
        parameters: dict[str, Any],
        rows: "TrainingRows",
        watched: EncodedRows | None = None,
        trees: bytes | None = None,
    ) -> None:
        self._kind = rows.target.kind
        self._draws = parameters["subsample"] < 1 or parameters["colsample_bytree"] < 1
        options = {name: parameters[name] for name in ("max_bin", "nthread")} | {"enable_categorical": True}
        self._rows = xgboost.QuantileDMatrix(_Blocks(rows, rows.rows), **options)
        self._watched = None
        if watched is not None:
            self._watched = xgboost.QuantileDMatrix(_Blocks(rows, watched), ref=self._rows, **options)
        known = [matrix for matrix in (self._rows, self._watched) if matrix is not None]
        self.booster = xgboost.Booster(parameters, known, model_file=bytearray(trees) if trees else None)

    @property
    def trees(self) -> bytes:
        """The trees so far, in XGBoost's own format."""
        return bytes(self.booster.save_raw("ubj"))

    def boost(self, number: int) -> None:
        """Train one round; its number, from 0, and the seed determine all random draws."""
        if self._draws:
            # XGBoost draws the seed of its columns when it creates its updater, from the generator that it
            # seeds anew every round. A new updater every round is independent of earlier rounds, so that a
            # resumed training draws the same. Switching the method forces a new updater.
            self.booster.set_param({"tree_method": "approx"})
            self.booster.save_config()
            self.booster.set_param({"tree_method": "hist"})
        self.booster.update(self._rows, number)

    def losses(self) -> list[float]:
        """Return the weighted sum of the losses of this machine's rows, and the sum of weights.

        The same follows for the watched split; zeros if there is none.
        """
        sums = []
        for rows in (self._rows, self._watched):
            if rows is None:
                sums += [0.0, 0.0]
                continue
            margin = self.booster.predict(rows, output_margin=True).astype(np.float64)
            label, weight = rows.get_label(), rows.get_weight().astype(np.float64)
            sums += [float(weight @ row_losses(margin, label, self._kind)), float(weight.sum())]
        return sums


def row_losses(margin: NDArray[np.float64], label: NDArray[np.float32], kind: str) -> NDArray[np.float64]:
    """Return the cross-entropy of each row in nats, or its squared error in units of the variance.

    Args:
        margin: Shape (rows,), or (rows, classes): log-odds, logits, or standardised predictions.
        label: Shape (rows,): 0 or 1, the number of the class, or the standardised label.
        kind: ``binary``, ``multiclass`` or ``regression``.
    """
    if kind == "binary":
        return np.logaddexp(0, margin) - label * margin
    if kind == "regression":
        return np.square(margin - label)
    top = margin.max(axis=1)
    total = top + np.log(np.exp(margin - top[:, None]).sum(axis=1))
    return total - margin[np.arange(len(label)), label.astype(np.int64)]  # type: ignore[no-any-return]


@contextmanager
def xgboost_communicator(ranks: Ranks, collective_s: float) -> Iterator[None]:
    """Connect the training processes of several machines by XGBoost's own network; nothing on one machine."""
    count = machines(ranks)
    if count == 1:
        yield
        return
    tracker: RabitTracker | None = None
    shared: list[dict[str, Any]] = [{}]
    if ranks.leads:
        tracker = RabitTracker(count, _tracker_address(), sortby="task", timeout=_CONNECT_TIMEOUT.seconds)
        tracker.start()
        shared = [tracker.worker_args()]
    distributed.broadcast_object_list(shared)
    if ranks.local_rank:
        yield
        return
    arguments = shared[0]
    try:
        collective.init(**arguments, dmlc_task_id=f"{ranks.rank:08}", dmlc_timeout=int(collective_s))
    except XGBoostError as error:
        raise DependencyError(
            f"the machines that train trees could not connect: {error}",
            where=f"tracker {arguments.get('dmlc_tracker_uri')}:{arguments.get('dmlc_tracker_port')}",
            hint="The job's pods must reach each other on any port.",
        ) from error
    try:
        yield
    except BaseException:
        # The other processes may be waiting for this one, so there is no orderly shutdown. The tracker's
        # thread keeps running: freeing it now would crash this process before it reports its error.
        if tracker:
            del tracker.handle
        raise
    collective.finalize()
    if tracker:
        tracker.wait_for(timeout=_CONNECT_TIMEOUT.seconds)


def _tracker_address() -> str | None:
    """Return the first machine's address by torchrun's name; None lets XGBoost find it."""
    name = os.environ.get("MASTER_ADDR", "localhost")
    address = socket.gethostbyname(name)
    alias = address.startswith("127.") and not name.startswith(("127.", "localhost"))
    return None if alias else address
