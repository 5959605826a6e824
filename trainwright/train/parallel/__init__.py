"""Dividing a training over processes: copies, shards, divided matrices and stages, on one mesh of devices."""

from trainwright.train.parallel.arithmetic import settle_arithmetic
from trainwright.train.parallel.layout import Layout, lay_out
from trainwright.train.parallel.weights import full_weights

__all__ = ["Layout", "full_weights", "lay_out", "settle_arithmetic"]
