"""How many operations a language model's training takes: what its use of a device is measured by."""

from trainwright.experiment import LanguageModel

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
"""Dense bf16 operations a second of NVIDIA's devices (SXM where there are two), from their data sheets."""


def weights(network: LanguageModel) -> int:
    """Return how many weights take part in a matrix product for every token: all but a mere look-up table."""
    width, depth = network.width, network.width // network.heads
    attention = 2 * width * width + 2 * width * network.shared_heads * depth
    block = attention + 3 * width * network.units + 2 * width
    return network.layers * block + width + network.vocabulary * width


def flops_per_token(network: LanguageModel, *, causal: bool = False) -> int:
    """Return the operations of a forward and a backward pass for one token.

    ``6 N + 12 L W T``: each of N weights is multiplied and added once forward and twice backward; in each of
    L blocks, T keys and values of width W meet each token. This is what PaLM (Chowdhery et al., 2022,
    appendix B) and TorchTitan divide by, so figures can be compared. Recomputed activations do not count.

    Args:
        network: The model.
        causal: Count only the half of the attention that a causal model needs: 6 L W T.
    """
    attention = 12 * network.layers * network.width * network.context
    return 6 * weights(network) + (attention // 2 if causal else attention)


def peak_of(device: str) -> float | None:
    """Return the bf16 operations a second that a device of a name can do at most; ``None`` if not known."""
    return next((peak for name, peak in PEAKS.items() if name in device), None)
