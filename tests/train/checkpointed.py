"""A small training of several processes that is killed and started again, with digests of its states.

``python -m tests.train.checkpointed FOLDER OPTIONS`` is one process of it, in a job; :func:`live` starts the
processes of one life from a fork server, which takes a tenth of the time.
"""

import hashlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from trainwright.imports import uncollected

with uncollected():
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.distributed.tensor import DTensor

    from tests.train import clean
    from tests.train.problems import resolved
    from trainwright.experiment.training import Checkpointing
    from trainwright.train.architectures import Inputs
    from trainwright.train.checkpoint import Checkpointer, committed
    from trainwright.train.checkpoint.state import TrainState, tensors_of
    from trainwright.train.feeding.loader import Batch, Loader, SampleOrder
    from trainwright.train.loop import TrainingLoop
    from trainwright.train.process_group import Ranks, process_group
    from trainwright.train.step import Stepper

SAMPLES, FEATURES, BATCH = 330, 6, 32


@dataclass(frozen=True)
class Options:
    """One training.

    Attributes:
        home: Its home.
        notes: Folder for what its processes note.
        steps: Its steps.
        every: Steps between two checkpoints.
        kills: Steps after a start, and the rank that is then killed: one pair for each life that is. Rank -1
            stands for all of them, with the torchrun that started them.
        attempt: The attempt.
        settings: Further settings of the checkpoints.
        hidden: Width of its network.
        batch: Global batch.
        pause_s: Seconds that each step takes longer.
        settled: Wait with a kill until the checkpoint before it is committed: so it is known what is lost.
        told: What it was told.
        dropout: Of its network.
        parallel: How it is divided.
    """

    home: str
    notes: str
    steps: int = 60
    every: int = 10
    kills: list[list[int]] = field(default_factory=list)
    attempt: str = "0001"
    settings: dict[str, Any] = field(default_factory=dict)
    hidden: int = 8
    batch: int = BATCH
    pause_s: float = 0.0
    settled: bool = False
    told: dict[str, Any] = field(default_factory=lambda: {"data_version": "d"})
    dropout: float = 0.2
    parallel: dict[str, Any] = field(default_factory=dict)


class Points:
    """Samples whose target is a noisy line."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self._x = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
        self._y = (self._x @ np.arange(FEATURES) + random.normal(size=SAMPLES)).astype(np.float32)

    def __len__(self) -> int:
        return SAMPLES

    def take(self, index: NDArray[np.int64]) -> Batch:
        x, y = torch.from_numpy(self._x[index]), torch.from_numpy(self._y[index])
        return Batch((x,), y, torch.ones(len(index)), torch.from_numpy(index))


class Line:
    """A network with dropout, so that random numbers count."""

    def __init__(self, hidden: int, dropout: float) -> None:
        self._hidden, self._dropout = hidden, dropout

    def build(self, inputs: Inputs | None = None) -> nn.Module:  # noqa: ARG002
        torch.manual_seed(1)
        first, last = nn.Linear(FEATURES, self._hidden), nn.Linear(self._hidden, 1)
        return nn.Sequential(first, nn.ReLU(), nn.Dropout(self._dropout), last, nn.Flatten(0))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square()

    def predict(self, output: Tensor) -> Tensor:
        return output.double()


def digest(state: TrainState, order: SampleOrder) -> str:
    """Digest weights, optimizer, the samples that come next, and the next random numbers."""
    total = hashlib.sha256()
    for name, value in sorted(tensors_of(state).items()):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        total.update(name.encode() + whole.detach().numpy().tobytes())
    total.update(order.share(state.step, 0, 1).tobytes())
    total.update(json.dumps([state.step, state.facts], sort_keys=True).encode())
    return total.hexdigest()


class Witness:
    """Keeps checkpoints as product code does, notes what every state is, and kills the process when due."""

    def __init__(self, options: Options, order: SampleOrder, group: Ranks) -> None:
        settings = Checkpointing(every_steps=options.every, **options.settings)
        self.kept = Checkpointer(settings, Path(options.home), options.attempt, options.told, group)
        self._options, self._order, self._rank = options, order, group.rank
        self._notes, self._due, self._whole = Path(options.notes), -1, False
        self._resumed = -1

    def resume(self, state: TrainState) -> None:
        self.kept.resume(state)
        self._note("resumed", state)
        self._resumed = state.step
        lives = len(list(self._notes.glob("killed-*")))
        if lives < len(self._options.kills):
            after, rank = self._options.kills[lives]
            self._due, self._whole = state.step + after, rank < 0
            if max(rank, 0) != self._rank:
                self._due = -1

    def after_step(self, state: TrainState, loss: float, *, last: bool) -> None:
        if state.step == self._resumed + 1:
            self._note("stepped", state)
        self.kept.after_step(state, loss, last=last)
        if state.step % self._options.every == 0 or last:
            self._note("reached", state, loss)
        if state.step == self._due:
            self._settle(state.step // self._options.every * self._options.every)
            lives = len(list(self._notes.glob("killed-*")))
            (self._notes / f"killed-{lives:03}").write_text(f"{state.step} {self._rank} {time.time()}")
            if self._whole:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self._options.pause_s)

    def roll_back(self, state: TrainState) -> None:
        self.kept.roll_back(state)

    def load_best(self, state: TrainState) -> bool:
        return self.kept.load_best(state)

    def _settle(self, step: int) -> None:
        """Wait for the commit of a step's checkpoint, which threads of all processes are at."""
        folder = Path(self._options.home) / "checkpoints"
        while self._options.settled and step not in [name.step for name in committed(folder)]:
            time.sleep(0.01)

    def _note(self, what: str, state: TrainState, loss: float = 0) -> None:
        """Add a line that no kill can tear."""
        line = f"{what} {state.step} {digest(state, self._order)} {time.time()} {loss!r}\n"
        with (self._notes / f"rank-{self._rank}").open("a") as stream:
            stream.write(line)


@dataclass(frozen=True)
class Note:
    """One state, as one process saw it."""

    what: str
    step: int
    digest: str
    time: float
    loss: float


def notes(folder: Path, rank: int = 0) -> list[Note]:
    """Read what a process noted over all its lives."""
    lines = [line.split() for line in (folder / f"rank-{rank}").read_text().splitlines()]
    return [Note(what, int(at), found, float(when), float(loss)) for what, at, found, when, loss in lines]


def one_process(options: Options) -> None:
    """Train in this process, which finds the others by its environment."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    with process_group(0) as group:
        training = resolved(
            steps=options.steps, batch_size=options.batch, learning_rate=0.01, parallel=options.parallel
        )
        architecture, points = Line(options.hidden, options.dropout), Points()
        order = SampleOrder(len(points), options.batch, 8, seed=3)
        stepper = Stepper(architecture.build(), architecture, training, group)
        loader = Loader(points, order, group.rank, group.size)
        TrainingLoop(stepper, loader, training, group, checkpoints=Witness(options, order, group)).run()


def live(
    options: Options,
    processes: int = 2,
    prepare: Callable[[int], None] | None = None,
    *,
    grace_s: float = 2,
    within_s: float = 300,
) -> list[int]:
    """Start the processes of one life, wait for their end, and return their exit codes.

    When one ends badly the others are killed, as torchrun does.

    Args:
        options: The training.
        processes: How many.
        prepare: Called in each process first, with its rank; a function at the top of a module, or a partial
            of one.
        grace_s: Seconds that the others are given to say why they end too.
        within_s: Seconds after which all are killed.
    """
    return clean.all_ended(begin(options, processes, prepare), grace_s=grace_s, within_s=within_s)


def begin(
    options: Options, processes: int = 2, prepare: Callable[[int], None] | None = None
) -> list[ForkServerProcess]:
    """Start the processes of one life."""
    Path(options.notes).mkdir(parents=True, exist_ok=True)
    places = clean.places(*((rank, processes) for rank in range(processes)))
    return [clean.start(_life, options, rank, prepare, **place) for rank, place in enumerate(places)]


def _life(options: Options, rank: int, prepare: Callable[[int], None] | None) -> None:
    """Be one process of a life; what it still has threads for is left, as at the end of a forked one."""
    code = 70
    try:
        code = _code(options, rank, prepare)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code(options: Options, rank: int, prepare: Callable[[int], None] | None) -> int:
    """Run one process, note its error, and return its exit code."""
    from trainwright import errors

    logging.basicConfig(force=True, format="%(message)s")
    try:
        if prepare:
            prepare(rank)
        one_process(options)
    except Exception as error:
        traceback.print_exc()
        record = errors.as_record(error, "")
        (Path(options.notes) / f"error-{rank}").write_text(json.dumps(record))
        return int(str(record["code"]))
    return 0


def error(folder: Path, rank: int = 0) -> dict[str, Any]:
    """Read the error that a process ended with."""
    return dict(json.loads((folder / f"error-{rank}").read_text()))


def job(options: Options, attempt: str, *, restarts: int, processes: int = 2) -> list[str]:
    """Return the command that runs a training as a job: that of its agent, with torchrun in it.

    Args:
        options: The training.
        attempt: Name of a fresh folder below that of its notes.
        restarts: Times that the processes are started again.
        processes: How many.
    """
    folder = Path(options.notes) / attempt
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "trainwright.launch.agent", str(folder), "--"]
    command += ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    return [*command, "-m", "tests.train.checkpointed", str(folder), json.dumps(asdict(options))]


if __name__ == "__main__":
    from trainwright.launch.agent.rank_errors import reported_rank
    from trainwright.launch.job_directory import Completion

    place = Path(sys.argv[1])
    with reported_rank(place, int(os.environ["RANK"])):
        one_process(Options(**json.loads(sys.argv[2])))
        if os.environ["RANK"] == "0":
            Completion(attempt=place.name, outputs={}).write(place)
