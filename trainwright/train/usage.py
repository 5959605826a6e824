"""What a training uses of its machine: processor, memory, GPUs; sampled beside the steps."""

import contextlib
import threading
from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]
import torch

_EVERY_S = 5.0


class Usage:
    """Samples the use of this machine in a thread of its own, every few seconds.

    Args:
        gpus: GPUs of this machine that the training uses.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._values: Mapping[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_all, name="usage", daemon=True)
        self._thread.start()

    @property
    def values(self) -> Mapping[str, float]:
        """The newest sample, by name: shares in [0, 1], memory in GiB."""
        return self._values

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(2 * _EVERY_S)

    def _sample_all(self) -> None:
        psutil.cpu_percent()  # the first answer of a process means nothing
        handles = _gpus(self._gpus)
        while not self._stop.wait(_EVERY_S):
            self._values = _host() | _devices(handles)


def _host() -> dict[str, float]:
    memory = psutil.virtual_memory()
    return {
        "host_cpu": psutil.cpu_percent() / 100,
        "host_memory_gib": (memory.total - memory.available) / 2**30,
    }


def _gpus(count: int) -> list[object]:
    """Return NVML's handles of the GPUs that torch sees; none where NVML cannot be had."""
    if not count:
        return []
    import pynvml  # type: ignore[import-untyped]

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
        return [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
    return []


def _devices(handles: list[object]) -> dict[str, float]:
    if not handles:
        return {}
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        used = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
        memory = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
        return {
            "gpu_use": sum(used) / len(used) / 100,
            "gpu_memory_gib": max(memory) / 2**30,
        }
    return {}
