"""The architectures that come with the library, by the kind of their section."""

from trainwright.errors import InputError
from trainwright.experiment import Mlp, Network
from trainwright.train.architectures.contract import Architecture
from trainwright.train.architectures.mlp import TabularMlp


def make(network: Network) -> Architecture:
    """Return the architecture that a section describes.

    Raises:
        InputError: It cannot be made.
    """
    if isinstance(network, Mlp):
        return TabularMlp(network)
    raise InputError(f"no architecture {network.kind!r}", where="network.kind")
