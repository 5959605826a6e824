"""How numbers are computed: the same every time, and at the precision that was asked for."""

import hashlib
from typing import Any

import torch
from torch import nn

from trainwright.experiment import Training

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def settle_arithmetic() -> None:
    """Make every operation of this process give the same result each time, float32 at its full precision.

    TF32 is never used: whoever wants less than float32 asks for ``bf16`` and then knows it. Memory is not
    filled before it is used (PyTorch does this in deterministic mode to expose reads of memory that was never
    written; it costs a pass over every tensor).
    """
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def seed_step(seed: int, step: int, stream: int, device: torch.device) -> None:
    """Give one step of one process random numbers of its own, whatever was drawn before.

    ``torch.manual_seed`` would do, but where there is no GPU it notes down, at every call and for good, what
    to do once there is one.

    Args:
        seed: The training's.
        step: Number of the step.
        stream: Number of the process's random stream.
        device: Where the process computes.
    """
    digest = hashlib.blake2b(f"{seed} {step} {stream}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") >> 1
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def low_precision(training: Training) -> torch.dtype | None:
    """Return the type that matrices are multiplied in; ``None`` for float32."""
    return _TYPES.get(training.precision)


def compute_low(module: nn.Module, training: Training, device: torch.device) -> None:
    """Let a module compute in low precision; its weights stay float32.

    The module's own ``forward`` is replaced, so that it does so wherever it is called from: by itself, by DDP
    or by the schedule of a pipeline.
    """
    kind = low_precision(training)
    if kind is None:
        return
    forward = module.forward

    def in_low_precision(*inputs: Any, **options: Any) -> Any:
        with torch.autocast(device.type, kind):
            return forward(*inputs, **options)

    module.forward = in_low_precision
