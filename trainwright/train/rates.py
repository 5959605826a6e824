"""The learning rate of each step."""

import math

from trainwright.experiment import Training


def learning_rate(step: int, total: int, training: Training) -> float:
    """Return the rate of a step: up in a line during the warm-up, then down to almost 0, or flat.

    Args:
        step: Number of the step, from 0.
        total: Number of steps.
        training: Peak, share of warm-up, and form of the fall.
    """
    peak = training.learning_rate
    rising = max(1, math.ceil(total * training.warmup))
    if step < rising:
        return peak * (step + 1) / rising
    done = (step - rising + 1) / (total - rising + 1)
    match training.schedule:
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return peak * (1 - done)
        case "constant":
            return peak
