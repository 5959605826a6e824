"""Fits a network of rows or of tokens, on all processes together."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Imported, ResolvedTraining
from trainwright.experiment.training import Checkpointing
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.launch.agent.rank_errors import rounds
from trainwright.train.architectures import Architecture, Inputs
from trainwright.train.architectures.imported import build, code_digest, require_exportable
from trainwright.train.checkpoint import Checkpointer
from trainwright.train.config import TrainConfig, degrees_of
from trainwright.train.feeding.loader import Loader, SampleOrder, SampleSource, order_of
from trainwright.train.feeding.rows import EncodedRows
from trainwright.train.feeding.tokens import TokenSequences
from trainwright.train.guards import SplitEvaluator
from trainwright.train.loop import FitResult, TrainingLoop
from trainwright.train.parallel import full_weights
from trainwright.train.process_group import Coordinator, Ranks, barrier
from trainwright.train.recorder import TrainingRecorder
from trainwright.train.step import Stepper
from trainwright.train.stop_signal import StopSignal

_DECISIVE_ORDER = ("samples", "batch_size", "streams", "seed", "block", "window")
_OOM = "CUDA_OOM"


@dataclass(frozen=True)
class TrainingRun:
    """A training in one process: its manifest of the training set, and the attempt's folder."""

    config: TrainConfig
    snapshot: Snapshot
    folder: Path
    ranks: Ranks
    recorder: TrainingRecorder
    stop: StopSignal

    @property
    def training(self) -> ResolvedTraining:
        """Section ``training``."""
        return self.config.settings

    @property
    def training_set(self) -> Path:
        """Folder of the training set."""
        return Path(self.config.training_set)


def fit_network(
    run: TrainingRun,
    architecture: Architecture,
    inputs: Inputs,
    samples: EncodedRows | TokenSequences,
    watched: SampleSource | None,
    labels: Callable[[], NDArray[np.generic]],
) -> tuple[nn.Module, FitResult]:
    """Fit a network; all processes call this together.

    ``labels`` returns the class of each sample, for balanced sampling.

    Returns:
        The module with its whole weights, on rank 0; and the result of the loop.

    Raises:
        Diverged: The loss diverged, or too many values were not finite.
        Preempted: A process received a stop signal; the state is saved.
    """
    ranks, recorder, folder, requested = run.ranks, run.recorder, run.folder, run.stop.requested
    barrier(ranks)
    configured = limit_micro_batch(run.training, run.config.processes, ranks)
    training = _with_fitting_micro_batch(configured, folder, ranks)
    torch.manual_seed(training.seed)
    module = build(architecture, inputs, ranks.device)
    if ranks.leads and isinstance(run.config.model, Imported):
        require_exportable(architecture, inputs)
    stepper = Stepper(module, architecture, training, ranks)
    layout = stepper.layout
    order = order_of(len(samples), training, labels)
    evaluate = None
    if watched:
        evaluate = SplitEvaluator(stepper, architecture, watched, configured, ranks, requested)
    pin, prefetch = ranks.device.type == "cuda", training.feeding.prefetch
    with (
        out_of_memory_advice(training, configured, ranks),
        Loader(samples, order, layout.part, layout.parts, prefetch=prefetch, pin=pin) as feeder,
        Heartbeat(folder, ranks.rank, training.guards.stall_s) as heartbeat,
    ):
        checkpointer = _make_checkpointer(run, order)
        recorder.committed_step = lambda: checkpointer.committed
        loop = TrainingLoop(
            stepper, feeder, training, ranks, checkpointer, [recorder], requested, evaluate, folder, heartbeat
        )
        if ranks.leads:
            sys.stderr.write(no_checkpoint_warning(training.checkpoints, loop.total))
        result = loop.run()
    waits = {"checkpoint_stall_s": checkpointer.stall_s, "resume_s": checkpointer.resume_s}
    rates = _input_rates(feeder, result, ranks) | samples.shards.encoding()
    recorder.note(result.steps, **waits, **rates)
    if ranks.leads:
        waited = rates["input_wait_s"] / max(result.seconds, 1e-9)
        sys.stderr.write(f"{samples.shards.describe(rates, waited)}\n")
    weights = full_weights(stepper.module, layout)
    module = architecture.build(inputs)
    if ranks.leads:
        module.load_state_dict(weights)
    return module, result


def _input_rates(feeder: Loader, result: FitResult, ranks: Ranks) -> dict[str, float]:
    """Return the samples per second of all processes that the steps need and that the input gives."""
    found = Coordinator(ranks, ranks.patient).on_all(lambda: (feeder.waited_s, feeder.given_per_s))
    waited_s = max(waited for waited, _ in found)  # in each step, the others wait for the slowest process
    return {
        "input_wait_s": waited_s,
        "input_needed_per_s": result.samples_per_s * result.seconds / max(result.seconds - waited_s, 1e-9),
        "input_given_per_s": min(given for _, given in found),
    }


def _make_checkpointer(run: TrainingRun, order: SampleOrder) -> Checkpointer:
    config = run.config
    decisive = {
        **config.decisive,
        **code_digest(config.model),
        "order": {name: getattr(order, name) for name in _DECISIVE_ORDER},
    }
    return Checkpointer(run.training.checkpoints, config.job_directory, config.attempt, decisive, run.ranks)


def no_checkpoint_warning(settings: Checkpointing, total: int) -> str:
    """Return a warning if no checkpoint is due before the end, which only the number of steps shows."""
    if settings.every_steps is None or settings.every_steps <= total:
        return ""
    return (
        f"training.checkpoints.every_steps {settings.every_steps:,} is above the {total:,} steps of this "
        "training: nothing is saved before its end\n"
    )


class OutOfGpuMemory(InputError):
    """A micro-batch does not fit into GPU memory; ``again``: a restart retries with half of it."""

    kind = _OOM

    def __init__(self, what: str, *, hint: str, again: bool) -> None:
        super().__init__(what, where="training.micro_batch", hint=hint)
        self.again = again


@contextmanager
def out_of_memory_advice(
    training: ResolvedTraining, configured: ResolvedTraining, ranks: Ranks
) -> Iterator[None]:
    """Turn torch's out-of-memory error into OutOfGpuMemory, with advice for the settings in use."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = _micro_batch_size(training, ranks)
        again = training == configured and configured.guards.halve_micro_batch and size > 1
        raise OutOfGpuMemory(
            f"a GPU ran out of memory with {size:,} samples at once: {str(error).splitlines()[0]:.200}",
            hint=f"Set it to {math.ceil(size / 2):,}: gradients of a batch add up over micro-batches, so the "
            "training stays the same. Or recompute: true, more processes to shard over, or a larger GPU.",
            again=again,
        ) from error


def limit_micro_batch(training: ResolvedTraining, processes: int, ranks: Ranks) -> ResolvedTraining:
    """Return the settings for fewer processes than configured: each accumulates its larger share.

    An elastic job that shrinks keeps its global batch, and so its learning rate; the micro-batch stays at
    most the share of the configured number of processes, so that the memory of each suffices.
    """
    if ranks.size == processes or training.parallel.pipeline > 1:
        return training
    share = math.ceil(training.batch_size / degrees_of(training.parallel, processes).parts)
    return training.model_copy(update={"micro_batch": min(training.micro_batch or share, share)})


def _with_fitting_micro_batch(training: ResolvedTraining, folder: Path, ranks: Ranks) -> ResolvedTraining:
    """Return the settings with half the micro-batch, if that is configured and a start ran out of memory."""
    if not training.guards.halve_micro_batch:
        return training
    ran_out = ranks.leads and any(entry.kind == _OOM for entries in rounds(folder) for entry in entries)
    # The other processes may not see yet, on a network file system, what rank 0 sees.
    shared = [ran_out]
    distributed.broadcast_object_list(shared)
    half = math.ceil(_micro_batch_size(training, ranks) / 2)
    return training.model_copy(update={"micro_batch": half}) if shared[0] else training


def _micro_batch_size(training: ResolvedTraining, ranks: Ranks) -> int:
    share = math.ceil(training.batch_size / degrees_of(training.parallel, ranks.size).parts)
    return min(training.micro_batch or share, share)


def fit_metrics(result: FitResult) -> dict[str, float]:
    """Return the figures of a fit for the model's manifest: those that the same training gives again."""
    metrics = {
        "train_loss": result.losses[-1],
        "first_epoch_loss": result.losses[0],
        "steps": float(result.steps),
        "batches_left_out": float(len(result.skipped)),
    }
    if result.watched_loss is not None:
        metrics |= {"watched_loss": result.watched_loss, "best_step": float(result.best_step)}
    return metrics
