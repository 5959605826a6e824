"""The process that grows trees on its machine's rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from trainwright.serving.trees import MatrixLayout
from trainwright.train.architectures import Target
from trainwright.train.samples import Samples

_BLOCK = 65_536
_Add = Callable[..., Any]


class _Blocks(xgboost.DataIter):
    """Rows in blocks, as XGBoost asks for them: several times, and never all at once."""

    def __init__(self, samples: Samples, rows: range, layout: MatrixLayout, target: Target) -> None:
        super().__init__(release_data=True)
        self._samples, self._rows, self._layout, self._target = samples, rows, layout, target
        self._next = rows.start

    def reset(self) -> None:
        """Start again."""
        self._next = self._rows.start

    def next(self, input_data: _Add) -> bool:
        """Give one block; False if there is none left."""
        if self._next >= self._rows.stop:
            return False
        end = min(self._next + _BLOCK, self._rows.stop)
        batch = self._samples.take(np.arange(self._next, end))
        numeric, categories = (part.numpy() for part in batch.inputs)
        input_data(
            data=self._layout.matrix(numeric, categories),
            label=standardised(batch.target.numpy(), self._target),
            weight=batch.weight.numpy(),
            feature_types=list(self._layout.types),
        )
        self._next = end
        return True


def standardised(label: NDArray[Any], target: Target) -> NDArray[np.float32]:
    """Return labels as they are learned: a number in units of its deviation, from its mean."""
    if target.kind != "regression":
        return label.astype(np.float32)
    mean, deviation = target.rates
    return ((label.astype(np.float64) - mean) / deviation).astype(np.float32)


class Worker:
    """Grows trees on some rows, and says how well they fit.

    Args:
        told: XGBoost's parameters.
        target: What is to be predicted.
        layout: From encoded rows to columns.
        rows: The split that is learned from, and this machine's part of it.
        watched: The split that is watched, and this machine's part of it.
        trees: Trees to go on with, as :attr:`trees` gave them.
    """

    def __init__(
        self,
        told: dict[str, Any],
        target: Target,
        layout: MatrixLayout,
        rows: tuple[Samples, range],
        watched: tuple[Samples, range] | None = None,
        trees: bytes | None = None,
    ) -> None:
        self._target = target
        self._fresh_each_round = told["subsample"] < 1 or told["colsample_bytree"] < 1
        options = {"max_bin": told["max_bin"], "nthread": told["nthread"], "enable_categorical": True}
        self._rows = xgboost.QuantileDMatrix(_Blocks(*rows, layout, target), **options)
        self._watched = None
        if watched:
            self._watched = xgboost.QuantileDMatrix(
                _Blocks(*watched, layout, target), ref=self._rows, **options
            )
        known = [matrix for matrix in (self._rows, self._watched) if matrix is not None]
        self._booster = xgboost.Booster(told, known, model_file=bytearray(trees) if trees else None)

    @property
    def booster(self) -> xgboost.Booster:
        """The trees so far."""
        return self._booster

    @property
    def trees(self) -> bytes:
        """The trees so far, in XGBoost's own format."""
        return bytes(self._booster.save_raw("ubj"))

    def grow(self, number: int) -> None:
        """Grow the trees of one round.

        Args:
            number: Number of the round, from 0: what is drawn at random is a function of the seed and of it.
        """
        if self._fresh_each_round:
            # XGBoost draws the seed of its columns when its updater is made, from the generator that it seeds
            # anew every round. An updater that is made anew every round thus knows nothing of those before,
            # and a training that is resumed draws the same.
            self._booster.set_param({"tree_method": "approx"})
            self._booster.save_config()
            self._booster.set_param({"tree_method": "hist"})
        self._booster.update(self._rows, number)

    def fit(self) -> tuple[float, float]:
        """Return the sum of the losses of this machine's rows, and of their weights."""
        return self._sums(self._rows)

    def watch(self) -> tuple[float, float]:
        """Return the same of the split that is watched; zeros if there is none."""
        return self._sums(self._watched) if self._watched is not None else (0.0, 0.0)

    def _sums(self, rows: xgboost.QuantileDMatrix) -> tuple[float, float]:
        margin = self._booster.predict(rows, output_margin=True).astype(np.float64)
        label, weight = rows.get_label(), rows.get_weight().astype(np.float64)
        return float(weight @ losses(margin, label, self._target.kind)), float(weight.sum())


def losses(margin: NDArray[np.float64], label: NDArray[np.float32], kind: str) -> NDArray[np.float64]:
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
