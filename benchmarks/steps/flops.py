"""Operations of a language model per token, and of a device per second: for model FLOPs utilization."""

from trainwright.experiment import LanguageModel

_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
"""Dense bf16 operations per second of NVIDIA's devices (SXM where there are two), from their data sheets."""


def matrix_weights(network: LanguageModel) -> int:
    """Return the number of weights in matrix products of a token: all but a look-up table."""
    width, depth = network.width, network.width // network.heads
    attention = 2 * width * width + 2 * width * network.shared_heads * depth
    block = attention + 3 * width * network.units + 2 * width
    return network.layers * block + width + network.vocabulary * width


def flops_per_token(network: LanguageModel, *, causal: bool = False) -> int:
    """Return the operations of a forward and a backward pass for one token, for model FLOPs utilization.

    ``6 N + 12 L W T``: each of N weights is multiplied and added once forward and twice backward; in each of
    L blocks, T keys and values of width W meet each token. PaLM (Chowdhery et al., 2022, appendix B) and
    TorchTitan divide by the same, so figures can be compared. Recomputed activations do not count.

    Args:
        network: The model.
        causal: Count only the half of the attention that a causal model needs: 6 L W T.
    """
    attention = 12 * network.layers * network.width * network.context
    return 6 * matrix_weights(network) + (attention // 2 if causal else attention)


def peak_flops(device: str) -> float | None:
    """Return the dense bf16 operations per second of a device by its name; None if it is unknown."""
    return next((peak for name, peak in _PEAK_FLOPS.items() if name in device), None)
