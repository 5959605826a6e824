"""Saves a training while it goes on, and finds it again: the whole of it, for the training loop."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from trainwright.errors import DependencyError, Diverged, PreemptedUnsaved
from trainwright.experiment.checkpoints import Checkpointing
from trainwright.train.checkpoint.agreement import Circle
from trainwright.train.checkpoint.fence import superseded
from trainwright.train.checkpoint.manifest import Manifest, Name
from trainwright.train.checkpoint.restoring import Restorer
from trainwright.train.checkpoint.schedule import Schedule
from trainwright.train.checkpoint.shelf import Shelf
from trainwright.train.checkpoint.tensors import plain_facts, tensors_of
from trainwright.train.checkpoint.writing import Outcome, Writer, judge, now
from trainwright.train.group import SAVING, Group, patient_group
from trainwright.train.state import State

_T = TypeVar("_T")

_TRIES = 2
"""Saves in a row that may fail before the training ends."""

_MOMENTS = 3
"""Tensors that AdamW has for each parameter: itself and two moments."""

_log = logging.getLogger("trainwright.train")


@dataclass
class Figures:
    """What saving has cost so far.

    Attributes:
        saves: Saves begun.
        stall_s: Seconds for which training stood still because of them.
        resume_s: Seconds that finding and reading a state took.
        resumed: Step that the training went on from; 0 if it began.
        committed: Step of the checkpoint that the training would resume from now; 0 if there is none.
    """

    saves: int = 0
    stall_s: float = 0.0
    resume_s: float = 0.0
    resumed: int = 0
    committed: int = 0


class Checkpoints:
    """A :class:`~trainwright.train.state.Keeper` that keeps checkpoints below the training's home.

    Args:
        settings: How often, how many, and where to.
        home: Folder that all attempts at the training share.
        attempt: The attempt that these processes belong to.
        told: What the training was told that decides its result; a checkpoint that was told another thing is
            refused.
        group: The processes.
    """

    def __init__(
        self, settings: Checkpointing, home: Path, attempt: str, told: Mapping[str, Any], group: Group
    ) -> None:
        self.figures = Figures()
        self._attempt, self._told, self._size = attempt, dict(told), group.size
        self._circle = Circle(group)
        # Not the one of the circle: a save goes on beside what the processes agree on.
        self._writer = Writer(patient_group(SAVING), group.rank, group.device)
        self._schedule = Schedule(settings)
        self._folder = home / "checkpoints"
        self._shelf = Shelf(home, attempt, settings) if group.leads else None
        self._restorer = Restorer(self._circle, self._shelf, self._folder, self._told)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Outcome] | None = None
        self._number, self._saved, self._failures = 0, -1, 0

    def resume(self, state: State) -> None:
        """Bring the newest verified state into ``state``; leave it as it is where there is none.

        Raises:
            InputError: What is there belongs to another model or another training.
            PreemptedUnsaved: A newer start goes on with this training.
            DependencyError: There is no room for a checkpoint, or the store does not answer and may have one.
        """
        begun = time.monotonic()
        self._number = self._ask(Shelf.open)
        self._require_room(state)
        found = self._restorer.restore(state)
        self._schedule.begin(state.step)
        self.figures.resume_s, self.figures.resumed = time.monotonic() - begun, state.step
        self.figures.committed = state.step
        if found and self._shelf:
            sys.stderr.write(f"resumed from {found.name} in {self.figures.resume_s:.1f} s\n")

    def saw(self, state: State, loss: float, *, last: bool) -> None:
        """Save the state if it is time to; wait until it is committed if this is the ``last`` call.

        Raises:
            Diverged: What was to be saved is not finite.
            DependencyError: It could not be saved, twice in a row.
            PreemptedUnsaved: A newer start goes on with this training.
        """
        begun = time.monotonic()
        if last:
            self._end(state, loss)
        elif self._schedule.looks(state.step) or self._watched(state):
            self._look(state, loss)
        self.figures.stall_s += time.monotonic() - begun

    def roll_back(self, state: State) -> None:
        """Bring the newest verified state back. What is saved from here on counts as newer than what was.

        Raises:
            Diverged: There is none.
        """
        step = state.step
        self._settle()
        self._number = self._ask(Shelf.open)
        if not self._restorer.restore(state):
            raise Diverged(f"nothing was saved before step {step:,}", where="training.checkpoints")
        self._saved, self.figures.committed = -1, state.step
        self._schedule.begin(state.step)

    def best(self, state: State) -> bool:
        """Bring back the state that was best on the watched split; tell whether there is one."""
        self._settle()
        step = int(state.facts["watched"]["best_step"])
        return self._restorer.restore(state, step) is not None

    def _ask(self, call: Callable[[Shelf], _T]) -> _T:
        """Let the first process, which alone has a shelf, do something with it; all get what came of it."""
        return self._circle.first(lambda: call(cast(Shelf, self._shelf)))

    @staticmethod
    def _watched(state: State) -> bool:
        """Tell whether the split that is watched was looked at after this very step: it may be the best."""
        entry = state.facts.get("watched") or {}
        return bool(entry.get("step") == state.step and entry.get("best"))

    def _look(self, state: State, loss: float) -> None:
        """Decide together whether to save: at the step of a look, every process is here.

        A save that is still under way is waited for. Otherwise a slow disk would let the training run ahead
        of what a kill may take from it.
        """
        due, gap = self._schedule.ask(state.step)
        mine = [self._shelf.superseded(), due or self._watched(state), gap] if self._shelf else [0, 0, 0]
        gone, due, gap = self._circle.greatest(mine)
        if gone:
            raise superseded(self._number, str(self._folder))
        self._schedule.agreed(state.step, gap, saved=bool(due))
        if due:
            self._settle()
            self._begin(state, loss)

    def _end(self, state: State, loss: float) -> None:
        for _ in range(_TRIES + 1):
            self._settle()
            if self._saved == state.step:
                break
            self._begin(state, loss)
        if self._shelf:
            self._shelf.finish()

    def _begin(self, state: State, loss: float) -> None:
        """Copy the state, and let it be written while training goes on."""
        name = Name(start=self._number, step=state.step)
        manifest = Manifest(
            step=state.step,
            start=self._number,
            attempt=self._attempt,
            files=(),
            processes=self._size,
            torch=torch.__version__,
            told=self._told,
            facts=plain_facts(state.facts),
            loss=loss,
            time="",
        )
        written = self._writer.begin(tensors_of(state), self._folder / str(name))
        self._pending = self._thread.submit(self._finish, manifest, written)
        self._saved = state.step
        self.figures.saves += 1

    def _finish(self, manifest: Manifest, written: "Future[Any]") -> Outcome:
        """See a save through, beside the training: digests, the commit, and what is to be tidied after it."""
        part = self._writer.finish(written, self._folder / str(manifest.name))
        parts = self._writer.gather(part)
        outcome = Outcome("committed")
        if self._shelf:
            files = tuple(file for part in parts for file in part.files)
            outcome = judge(parts) or _commit(self._shelf, replace(manifest, files=files, time=now()))
            if outcome.kind != "committed":
                self._shelf.discard(manifest.name)
        outcome = self._writer.share(outcome)
        if outcome.kind == "committed":
            self.figures.committed = manifest.step
        if self._shelf and outcome.kind == "committed":
            self._shelf.settle(manifest.name)
        return outcome

    def _settle(self) -> None:
        """Wait for the save that is under way, and act on how it ended; every process does the same."""
        if self._pending is None:
            return
        outcome, self._pending = self._pending.result(), None
        match outcome.kind:
            case "committed":
                self._failures = 0
            case "superseded":
                raise PreemptedUnsaved(outcome.why, where=str(self._folder))
            case "not_finite":
                raise Diverged(
                    f"a checkpoint was refused: {outcome.why}",
                    where="training.checkpoints",
                    hint="Lower the learning rate; the checkpoint before it is as it was.",
                )
            case "failed":
                self._failed(outcome.why)

    def _failed(self, why: str) -> None:
        self._failures += 1
        self._saved = -1
        if self._failures >= _TRIES:
            raise DependencyError(
                f"the state could not be saved {self._failures} times in a row: {why}",
                where=str(self._folder),
                hint="Make room on that disk, or raise its quota; what was saved before is as it was.",
            )
        if self._shelf:
            _log.warning("the state could not be saved, and is tried again: %s", why)

    def _require_room(self, state: State) -> None:
        """Compare the size of a checkpoint, over all processes, with the room there is."""
        tensors = tensors_of(state)
        sizes = {name: value.numel() * value.element_size() for name, value in tensors.items()}
        merged: dict[str, int] = {}
        for entry in self._circle.all(lambda: sizes):
            merged |= entry
        needed = _MOMENTS * sum(merged.values())
        self._ask(lambda shelf: shelf.require_room(needed))


def _commit(shelf: Shelf, manifest: Manifest) -> Outcome:
    try:
        shelf.commit(manifest)
    except PreemptedUnsaved as error:
        return Outcome("superseded", error.what)
    except Exception as error:  # the others wait for this process
        return Outcome("failed", str(error))
    return Outcome("committed")
