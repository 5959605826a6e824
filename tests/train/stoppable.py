"""A small training that fails by its options: ``-m tests.train.stoppable FOLDER OPTIONS``, under torchrun."""

import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainwright.imports import uncollected

with uncollected():
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from safetensors.torch import save_file
    from torch import Tensor, nn

    from tests.train.problems import resolved
    from trainwright.launch.agent.heartbeat import STEPS, Heartbeat
    from trainwright.launch.agent.rank_errors import reported_rank
    from trainwright.launch.job import Job
    from trainwright.launch.job_directory import Completion
    from trainwright.train.checkpoint import Checkpointer, committed
    from trainwright.train.checkpoint.state import TrainState, tensors_of
    from trainwright.train.feeding.loader import Batch, Loader, SampleOrder
    from trainwright.train.fit import _with_fitting_micro_batch, out_of_memory_advice
    from trainwright.train.guards import SplitEvaluator
    from trainwright.train.loop import StepReport, TrainingLoop
    from trainwright.train.process_group import Ranks, process_group
    from trainwright.train.step import Gradients, Stepper
    from trainwright.train.stop_signal import StopSignal, exit_without_threads, handle_stop_signals

SAMPLES, FEATURES, BATCH = 330, 6, 32
SETTINGS: dict[str, Any] = {
    "steps": 60,
    "batch_size": BATCH,
    "learning_rate": 0.01,
    "checkpoints": {"every_steps": 20},
}
WATCHED = {"split": "watched", "every_steps": 20, "patience": 9}


@dataclass(frozen=True)
class Options:
    """What goes wrong.

    Attributes:
        training: Section ``training``, over the usual one.
        poison: Number of a sample whose input is NaN; -1 for none.
        wild_from: StepReport from which the learning rate is a thousandfold; 0 for never.
        signals: StepReport, rank and signal that the process then sends itself; once, by a file in the home.
        greedy: Samples at once that a GPU has no memory for; 0 for none.
        slow: Rank that takes long for each batch; -1 for none.
        frozen: StepReport whose save rank 1 stops in; 0 for none.
        pause_s: Seconds that each step takes longer, once something is saved.
    """

    training: dict[str, Any] = field(default_factory=dict)
    poison: int = -1
    wild_from: int = 0
    signals: list[list[int]] = field(default_factory=list)
    greedy: int = 0
    slow: int = -1
    frozen: int = 0
    pause_s: float = 0.0


class Points:
    """Samples whose target is a noisy line."""

    def __init__(self) -> None:
        draw = np.random.default_rng(7)
        self._x = draw.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
        self._y = (self._x @ np.arange(FEATURES) + draw.normal(size=SAMPLES)).astype(np.float32)

    def __len__(self) -> int:
        return SAMPLES

    def take(self, index: NDArray[np.int64]) -> Batch:
        x, y = torch.from_numpy(self._x[index]), torch.from_numpy(self._y[index])
        return Batch((x,), y, torch.ones(len(index)), torch.from_numpy(index))


class Line:
    """A network with dropout, so that random numbers count."""

    def build(self) -> nn.Module:
        torch.manual_seed(1)
        parts = nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
        return nn.Sequential(*parts, nn.Flatten(0))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square()


class Poisoned(Points):
    """Points, one of which is NaN."""

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__()
        self._sleep_s = 0.4 if rank == options.slow else 0.0
        self._bad = options.poison

    def take(self, index: NDArray[np.int64]) -> Batch:
        time.sleep(self._sleep_s)
        batch = super().take(index)
        batch.inputs[0][batch.ids == self._bad] = torch.nan
        return batch


class Greedy(Line):
    """Runs out of memory at some size of its input."""

    def __init__(self, most: int) -> None:
        self._most = most

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        if 0 < self._most <= len(output):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        return super().loss(output, target)


class Wild(Stepper):
    """Takes steps that are too large from some step on."""

    wild_from, taken = 0, 0

    def apply(self, gradients: Gradients, rate: float) -> None:
        self.taken += 1
        super().apply(gradients, rate * 1000 if 0 < self.wild_from <= self.taken else rate)


def send(number: signal.Signals) -> None:
    """Send this process a signal. It is continued for its stacks, and must not have gone on by then."""
    os.kill(os.getpid(), number)
    if number == signal.SIGSTOP:
        time.sleep(600)


def await_text(path: Path, start: str) -> None:
    """Wait until a file begins with a text."""
    while not (path.exists() and path.read_text().startswith(start)):
        time.sleep(0.02)


class Trouble:
    """Sends this process the signals that are due, once each, and digests the last state."""

    def __init__(self, options: Options, folder: Path, home: Path, rank: int) -> None:
        self._options, self._home, self._rank = options, home, rank
        self._pulse = folder / "pulse" / f"rank-{rank}"

    def on_step(self, step: StepReport) -> None:
        if self._options.pause_s and committed(self._home / "checkpoints"):
            time.sleep(self._options.pause_s)
        for index, (number, rank, name) in enumerate(self._options.signals):
            mark = self._home / f"sent-{index}"
            if number <= step.number and rank == self._rank and not mark.exists():
                mark.write_text(str(step.number))
                if name == signal.SIGSTOP:  # silence counts for nothing before its pulse tells of steps
                    await_text(self._pulse, STEPS)
                send(signal.Signals(name))


class Digesting(Checkpointer):
    """Checkpoints that tell what the state is that they save last."""

    last, frozen = "", 0

    def _begin(self, state: TrainState, loss: float) -> None:
        if state.step == self.frozen:
            send(signal.SIGSTOP)
        super()._begin(state, loss)

    def after_step(self, state: TrainState, loss: float, *, last: bool) -> None:
        super().after_step(state, loss, last=last)
        if last:
            self.last = digest(state)


def digest(state: TrainState) -> str:
    """Digest weights, optimizer and facts."""
    total = hashlib.sha256()
    for name, value in sorted(tensors_of(state).items()):
        total.update(name.encode() + value.detach().numpy().tobytes())
    total.update(json.dumps([state.step, state.facts], sort_keys=True).encode())
    return total.hexdigest()


def ready(
    options: Options, folder: Path, home: Path, group: Ranks, stop: StopSignal, pulse: Heartbeat | None
) -> TrainingLoop:
    """Prepare the training as product code does."""
    asked = resolved(**SETTINGS | options.training)
    training = _with_fitting_micro_batch(asked, folder, group)
    stepper = Wild(Line().build(), Greedy(options.greedy), training, group)
    stepper.wild_from = options.wild_from
    order = SampleOrder(SAMPLES, BATCH, 8, seed=3)
    feeder = Loader(Poisoned(options, group.rank), order, group.rank, group.size, prefetch=1)
    keeper = Digesting(training.checkpoints, home, folder.name, {"data_version": "d"}, group)
    keeper.frozen = options.frozen if group.rank == 1 else 0
    evaluate = None
    if training.guards.early_stopping:
        evaluate = SplitEvaluator(stepper, Line(), Points(), training, group, stop.requested)
    watchers = [Trouble(options, folder, home, group.rank)]
    return TrainingLoop(
        stepper, feeder, training, group, keeper, watchers, stop.requested, evaluate, folder, pulse
    )


def job(home: Path, options: Options, **changes: Any) -> Job:
    """Describe the next attempt at a training."""
    attempts = home / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    folder = attempts / f"{len(list(attempts.iterdir())) + 1:04}"
    folder.mkdir()
    settings: dict[str, Any] = {"processes": 2, "cpu": 2, "timeout_s": 600, "grace_s": 60}
    program = ("-m", "tests.train.stoppable", "{folder}", json.dumps(asdict(options)))
    return Job(run="r", task="train", image="i", program=program, folder=folder, **settings | changes)


def main(folder: Path, options: Options, stop: StopSignal) -> None:
    """Train, and leave the digest of the last state."""
    torch.set_num_threads(1)
    guards = resolved(**SETTINGS | options.training).guards
    with (
        process_group(0, guards.collective_s) as group,
        Heartbeat(folder, group.rank, guards.stall_s) as pulse,
    ):
        loop = ready(options, folder, folder.parent.parent, group, stop, pulse)
        with out_of_memory_advice(loop.training, resolved(**SETTINGS | options.training), group):
            fitted = loop.run()
    if group.leads:
        outputs = {"state": loop.checkpoints.last, "watched_loss": repr(fitted.watched_loss)}
        save_file(loop.stepper.module.state_dict(), folder / "weights.safetensors")
        Completion(attempt=folder.name, outputs=outputs).write(folder)


def one_process(folder: Path, options: Options) -> None:
    """Train as one of several processes that no agent looks after."""
    with reported_rank(folder, int(os.environ["RANK"])), handle_stop_signals() as stop:
        main(folder, options, stop)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with exit_without_threads(), reported_rank(place, int(os.environ["RANK"])), handle_stop_signals() as stop:
        main(place, Options(**json.loads(sys.argv[2])), stop)
