"""From raw columns to what a network reads, fitted once and applied by the same code everywhere.

Everything is fitted on the training split alone, in one pass over batches (:class:`Fit`), and is then a
small JSON document (:class:`Transforms`) that lies in the model's folder. To encode rows it becomes a torch
module (``trainwright.transforms.encoder``): training calls it through :meth:`Transforms.encode`, and the same
module is exported with the network. All else needs only numpy.
"""

from trainwright.transforms.encoding import Category, Encoded, Kind, Number, Ranked, TimeOf, Transforms
from trainwright.transforms.fitting import Fit, Scaling
from trainwright.transforms.raw import MISSING_CATEGORY, MISSING_TIME, Categories, Raw, Values, fingerprint

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
