"""Architectures by kind, each behind the same three methods; the user's own are no different."""

from trainwright.errors import InputError
from trainwright.experiment import FeatureTokenizer, Imported, LanguageModel, Mlp, Network
from trainwright.train.architectures.contract import (
    Architecture,
    InBlocks,
    InColumns,
    Inputs,
    InStages,
    Target,
)
from trainwright.train.architectures.feature_tokenizer import TabularTransformer
from trainwright.train.architectures.imported import import_architecture
from trainwright.train.architectures.language_model import DecoderLanguageModel
from trainwright.train.architectures.mlp import TabularMlp

__all__ = ["Architecture", "InBlocks", "InColumns", "InStages", "Inputs", "Target", "make"]


def make(network: Network) -> Architecture:
    """Return the architecture that a section describes."""
    if isinstance(network, Mlp):
        return TabularMlp(network)
    if isinstance(network, LanguageModel):
        return DecoderLanguageModel(network)
    if isinstance(network, FeatureTokenizer):
        return TabularTransformer(network)
    if isinstance(network, Imported):
        return import_architecture(network)
    raise InputError(f"no architecture {network.kind!r}", where="network.kind")
