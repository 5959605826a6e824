"""What XGBoost is told, from the sections of an experiment."""

import math
from typing import Any

import numpy as np

from trainwright.experiment import Training, Trees
from trainwright.train.architectures import Target
from trainwright.train.objective import class_weights

_OBJECTIVES = {"binary": "binary:logistic", "multiclass": "multi:softprob", "regression": "reg:squarederror"}


def parameters(network: Trees, training: Training, target: Target, threads: int) -> dict[str, Any]:
    """Return XGBoost's parameters for a training.

    The seed of every round is a function of the seed and of the round, so that a training which is resumed
    draws the same rows and columns.
    """
    told = {
        "objective": _OBJECTIVES[target.kind],
        "tree_method": "hist",
        "max_depth": network.depth,
        "learning_rate": network.learning_rate,
        "subsample": network.subsample,
        "colsample_bytree": network.columns,
        "min_child_weight": network.min_child_weight,
        "reg_lambda": network.penalty,
        "max_bin": network.bins,
        "base_score": _start(target, training),
        "seed": training.seed,
        "seed_per_iteration": True,
        "nthread": threads,
        "validate_parameters": True,
    }
    return told | ({"num_class": len(target.rates)} if target.kind == "multiclass" else {})


def _start(target: Target, training: Training) -> float | list[float]:
    """Return what no tree at all says: the base rate as it is weighed, or the mean."""
    if target.kind == "regression":
        return 0.0
    weights = class_weights(target, training.objective)
    rates = np.array(target.rates) * np.array(weights or 1.0)
    if target.kind == "binary":
        return float(rates[1])
    return [math.log(rate) for rate in rates]
