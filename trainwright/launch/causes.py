"""What an error of a process amounts to: in our words, its class of failures, and whether to try again."""

from dataclasses import dataclass

from trainwright.errors import Hang, InputError, TrainwrightError, TransientError, in_our_words

REPEATED = frozenset({"HANG", "INFRASTRUCTURE", "NCCL_TIMEOUT", "NODE_GPU", "UNKNOWN"})
"""Classes of failures after which the processes are started again: they may well not come back."""

CLASSES = {
    "InputError": "CONFIG",
    "PermissionRefused": "CONFIG",
    "DataRefused": "USER_EXCEPTION",
    "ModelRefused": "USER_EXCEPTION",
    "TransientError": "INFRASTRUCTURE",
    "DependencyError": "INFRASTRUCTURE",
    "Diverged": "DIVERGED",
    "Hang": "HANG",
    "Preempted": "PREEMPTED",
    "PreemptedUnsaved": "PREEMPTED",
    "InternalError": "USER_EXCEPTION",
}
"""What an error of ours amounts to, by the name of its class."""


@dataclass(frozen=True)
class Cause:
    """An error, understood.

    Attributes:
        error: The error of ours that says the same, or the error itself if there is none.
        kind: Class of failures (:data:`trainwright.launch.failure.CLASSES`).
        follows: Whether it mostly is the consequence of another process's end.
    """

    error: BaseException
    kind: str
    follows: bool = False


def understood(error: BaseException) -> Cause:
    """Say what an error amounts to. An error of ours may name its class itself, as ``kind``."""
    ours = in_our_words(error)
    if isinstance(ours, TrainwrightError):
        names = [kind.__name__ for kind in type(ours).__mro__]
        usual = next((CLASSES[name] for name in names if name in CLASSES), "USER_EXCEPTION")
        return Cause(ours, getattr(ours, "kind", usual))
    return _of_another_library(error)


def _of_another_library(error: BaseException) -> Cause:
    # Not above: the package reads this module's errors, too.
    from trainwright.launch.diagnosis import log

    said = f"{type(error).__name__}: {error}"
    first = said.splitlines()[0][:300]
    clue = log.kind_of(said)
    match "HOST_OOM" if isinstance(error, MemoryError) else clue.kind if clue else "":
        case "CUDA_OOM":
            ours: TrainwrightError = InputError(
                f"a GPU ran out of memory: {first}",
                where="training.micro_batch",
                hint="Set or lower it: gradients of a batch add up over micro-batches, so the result stays. "
                "Or recompute: true, more processes to shard over, or a GPU with more memory.",
            )
        case "HOST_OOM":
            ours = InputError(
                f"the process could not get the memory it asked for: {first}",
                where="resources.memory_gib",
                hint="Raise it, or use fewer processes a node or a smaller batch.",
            )
        case "NCCL_TIMEOUT":
            ours = Hang(
                f"waited in vain for another process: {first}",
                where="training.guards.collective_s",
                hint="The stacks of all ranks, in stacks/, tell which one did not come. If it was only slow, "
                "allow more time.",
            )
        case "NODE_GPU":
            ours = TransientError(f"a GPU failed: {first}", hint="Have its node drained and looked at.")
        case "INFRASTRUCTURE":
            ours = TransientError(f"another process was lost: {first}", hint="Its own log tells why.")
        case _:
            return Cause(error, "USER_EXCEPTION")
    kind = clue.kind if clue else "HOST_OOM"
    return Cause(ours, kind, follows=kind in {"NCCL_TIMEOUT", "INFRASTRUCTURE"})
