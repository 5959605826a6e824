"""The scale of a loss whose gradients are computed in float16, so that small ones do not become 0.

PyTorch's own scaler looks at one process's plain gradients and then decides; here the decision is taken on
numbers that all processes have summed, so that those that hold other shards or stages take the same one.
"""

import math
from typing import Any

_FIRST, _LEAST, _MOST = 2.0**16, 1.0, 2.0**24
_GROWTH_STEPS = 2000


class Scale:
    """Doubles the scale every so often, and halves it when a gradient overflows (Micikevicius et al., 2018).

    Args:
        active: Whether anything is scaled; otherwise the scale is 1 and stays it.

    """

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._facts: dict[str, Any] = {"scale": _FIRST if active else 1.0, "steps": 0}

    @property
    def value(self) -> float:
        """What the loss is multiplied by."""
        return float(self._facts["scale"])

    def take_up(self, facts: dict[str, Any]) -> None:
        """Go on with what a checkpoint kept under ``scale``, if anything, and keep it there from now on.

        Args:
            facts: The facts of a training's state; the scale, and the steps since it changed, live in them.
        """
        if self._active:
            self._facts = facts.setdefault("scale", self._facts)

    def overflowed(self, loss: float, square: float) -> bool:
        """Tell whether it is for the scale alone that a gradient is not finite.

        Args:
            loss: Mean loss, unscaled.
            square: Squared norm of the scaled gradient.
        """
        return self.value > _LEAST and math.isfinite(loss) and not math.isfinite(square)

    def saw(self, *, overflowed: bool) -> None:
        """Choose the scale of the next step."""
        if not self._active:
            return
        self._facts["steps"] += 1
        if overflowed:
            self._facts.update(scale=max(self.value / 2, _LEAST), steps=0)
        elif self._facts["steps"] >= _GROWTH_STEPS:
            self._facts.update(scale=min(self.value * 2, _MOST), steps=0)
