"""Transforms of raw columns into the inputs of a network, fitted on the training split alone (:class:`Fit`).

:class:`Transforms` is a small JSON document in the model's folder, which encodes rows in numpy. The exported
program has the same steps as a torch module (``encoder``).
"""

from trainwright.transforms.encoding import (
    MISSING_CATEGORY,
    MISSING_TIME,
    Categories,
    Category,
    Encoded,
    Kind,
    Number,
    Ranked,
    Raw,
    TimeOf,
    Transforms,
    Values,
    fingerprint,
)
from trainwright.transforms.fitting import Fit, Scaling

__all__ = [
    "MISSING_CATEGORY",
    "MISSING_TIME",
    "Categories",
    "Category",
    "Encoded",
    "Fit",
    "Kind",
    "Number",
    "Ranked",
    "Raw",
    "Scaling",
    "TimeOf",
    "Transforms",
    "Values",
    "fingerprint",
]
