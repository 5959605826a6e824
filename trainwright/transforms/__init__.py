"""From raw columns to what a network reads, fitted once and applied by the same code everywhere.

Everything is fitted on the training split alone, in one pass over batches (:class:`Fit`), and is then a
small JSON document (:class:`Transforms`) that lies in the model's folder. Training, evaluation and serving
all call :meth:`Transforms.encode`. Only numpy and the standard library are needed.
"""

from trainwright.transforms.encoding import (
    MISSING_TIME,
    Categories,
    Category,
    Encoded,
    Kind,
    Number,
    Ranked,
    TimeOf,
    Transforms,
    Values,
)
from trainwright.transforms.fitting import Fit, Scaling

__all__ = [
    "MISSING_TIME",
    "Categories",
    "Category",
    "Encoded",
    "Fit",
    "Kind",
    "Number",
    "Ranked",
    "Scaling",
    "TimeOf",
    "Transforms",
    "Values",
]
