"""The count of operations, against PyTorch's own."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.steps.flops import flops_per_token, matrix_weights, peak_flops
from trainwright.experiment import LanguageModel
from trainwright.train.architectures import Inputs, Target, make

NETWORK = LanguageModel(vocabulary=96, width=64, heads=4, groups=2, layers=3, hidden=128, context=32)


def test_matrix_weights_are_those_of_the_module_without_look_up() -> None:
    for tied in (True, False):
        network = NETWORK.model_copy(update={"tied": tied})
        module = make(network).build(Inputs(Target("tokens")))
        held = sum(weight.numel() for weight in module.parameters())
        assert matrix_weights(network) == held - (0 if tied else 96 * 64)


def test_flops_per_token_match_pytorchs_counter() -> None:
    architecture = make(NETWORK)
    module = architecture.build(Inputs(Target("tokens")))
    tokens = torch.randint(0, 96, (5, 32))
    # As plain products: the counter does not know the CPU's flash kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        architecture.loss(module(tokens), tokens).sum().backward()
    # The weights of norms are in N, and in no product.
    norms = 6 * (2 * NETWORK.layers + 1) * NETWORK.width
    counted = counter.get_total_flops() / tokens.numel()
    assert counted == flops_per_token(NETWORK) - norms


def test_a_causal_model_needs_half_the_attention() -> None:
    half = 6 * NETWORK.layers * NETWORK.width * NETWORK.context
    assert flops_per_token(NETWORK) - flops_per_token(NETWORK, causal=True) == half


def test_peak_flops_are_found_by_device_name() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("a device of tomorrow") is None
