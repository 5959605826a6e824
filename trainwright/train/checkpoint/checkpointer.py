"""Saves a training while it runs, and resumes it: what the training loop calls."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

from trainwright.errors import DependencyError, Diverged, InputError, PreemptedUnsaved, TrainwrightError
from trainwright.experiment.training import Checkpointing
from trainwright.train.checkpoint.manifest import CheckpointName, Manifest
from trainwright.train.checkpoint.state import (
    TrainState,
    plain_facts,
    require_same_architecture,
    tensors_of,
    tensors_to_load,
)
from trainwright.train.checkpoint.store import CheckpointStore, superseded
from trainwright.train.checkpoint.tensor_files import TensorReader, damage, read_tensors, write_tensors
from trainwright.train.process_group import SAVE_TIMEOUT, Coordinator, Ranks, new_gloo_group

_T = TypeVar("_T")

_MAX_FAILURES = 2
"""Saves in a row that may fail before the training ends."""

_TENSORS_PER_PARAMETER = 3
"""AdamW has the parameter itself and two moments."""

_log = logging.getLogger("trainwright.train")


class SaveSchedule:
    """Decides when to save, at the same steps on every process, without communication at every step.

    With ``every_steps`` each check is a save. With ``every_s`` rank 0's clock decides, and each check comes
    half-way to the due time by the current speed: checks are rare, and a change of speed is noticed.
    """

    def __init__(self, settings: Checkpointing, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_steps, self._every_s, self._clock = settings.every_steps, settings.every_s, clock
        self.restart(0)

    def restart(self, step: int) -> None:
        """Start from a step that needs no saving."""
        self._saved_at = self._checked_at = self._clock()
        self._checked, self._next = step, step + 1

    def checks(self, step: int) -> bool:
        """Return whether the processes check after a step; the answer is the same on all."""
        return step % self._every_steps == 0 if self._every_steps else step >= self._next

    def propose(self, step: int) -> tuple[int, int]:
        """Return whether a save is due by this clock, as 0 or 1, and the steps until the next check."""
        if self._every_steps:
            return 1, self._every_steps
        now = self._clock()
        pace = (now - self._checked_at) / max(1, step - self._checked)
        left = self._every_s - (now - self._saved_at)
        due, half = left <= 0, (self._every_s if left <= 0 else left) / 2
        return int(due), max(1, int(half / max(pace, 1e-9)))

    def accept(self, step: int, gap: int, *, saved: bool) -> None:
        """Record the decision of all processes."""
        self._checked, self._checked_at, self._next = step, self._clock(), step + gap
        if saved:
            self._saved_at = self._checked_at


class Checkpointer:
    """Saves and restores the state of a training. All processes call each method together.

    Args:
        settings: Intervals, retention and remote store.
        job_directory: Folder that all attempts at the training share.
        attempt: The attempt that these processes belong to.
        decisive: Settings that decide the training's result; a checkpoint with others is rejected.
        ranks: The processes.

    Attributes:
        stall_s: Seconds for which training stood still because of saves.
        resume_s: Seconds that finding and reading a checkpoint took.
        committed: Step of the newest checkpoint; 0 if there is none.
    """

    def __init__(
        self,
        settings: Checkpointing,
        job_directory: Path,
        attempt: str,
        decisive: Mapping[str, Any],
        ranks: Ranks,
    ) -> None:
        self.stall_s, self.resume_s, self.committed = 0.0, 0.0, 0
        self._attempt, self._decisive, self._ranks = attempt, dict(decisive), ranks
        self._coordinator = Coordinator(ranks)
        # A group of its own: a save continues in the background while the coordinator is used.
        self._background = Coordinator(ranks, new_gloo_group(SAVE_TIMEOUT))
        # Copies tensors to host memory, into the buffers of the save before.
        self._stager = StateDictStager(pin_memory=ranks.device.type == "cuda", share_memory=False)
        self._schedule = SaveSchedule(settings)
        self._folder = job_directory / "checkpoints"
        self._store = CheckpointStore(job_directory, attempt, settings) if ranks.leads else None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._token, self._saved, self._failures = 0, -1, 0

    def resume(self, state: TrainState) -> None:
        """Load the newest verified checkpoint into ``state``; leave it unchanged if there is none.

        Raises:
            InputError: The checkpoint is of another model or another training.
            PreemptedUnsaved: A newer start continues this training.
            DependencyError: No checkpoint fits on the disk, or the store does not answer and may have one.
        """
        started = time.monotonic()
        self._token = self._on_store(CheckpointStore.open)
        size = sum(value.numel() * value.element_size() for value in tensors_of(state).values())
        self._on_store(lambda store: store.require_space(_TENSORS_PER_PARAMETER * size))
        found = self._restore(state)
        self._schedule.restart(state.step)
        self.resume_s, self.committed = time.monotonic() - started, state.step
        if found and self._store:
            sys.stderr.write(f"resumed from {found.name} in {self.resume_s:.1f} s\n")

    def after_step(self, state: TrainState, loss: float, *, last: bool) -> None:
        """Save the state if a save is due; with ``last``, save it and wait for the commit.

        Raises:
            Diverged: A tensor is not finite.
            DependencyError: Two saves in a row failed.
            PreemptedUnsaved: A newer start continues this training.
        """
        started = time.monotonic()
        watched = state.facts.get("watched") or {}
        best = bool(watched.get("step") == state.step and watched.get("best"))
        if last:
            self._save_last(state, loss)
        elif self._schedule.checks(state.step) or best:
            self._check(state, loss, best=best)
        self.stall_s += time.monotonic() - started

    def roll_back(self, state: TrainState) -> None:
        """Load the newest verified checkpoint; later saves count as newer than all before."""
        step = state.step
        self._settle()
        self._token = self._on_store(CheckpointStore.open)
        if not self._restore(state):
            raise Diverged(f"nothing was saved before step {step:,}", where="training.checkpoints")
        self._saved, self.committed = -1, state.step
        self._schedule.restart(state.step)

    def load_best(self, state: TrainState) -> bool:
        """Load the checkpoint with the least loss on the watched split; return False if there is none."""
        self._settle()
        return self._restore(state, int(state.facts["watched"]["best_step"])) is not None

    def _on_store(self, call: Callable[[CheckpointStore], _T]) -> _T:
        return self._coordinator.on_leader(lambda: call(cast(CheckpointStore, self._store)))

    def _check(self, state: TrainState, loss: float, *, best: bool) -> None:
        """Decide together whether to save.

        A save that is still being written is waited for: otherwise a slow disk would let training run ahead
        of the last checkpoint, and a kill would lose more than one interval.
        """
        due, gap = self._schedule.propose(state.step)
        proposal = [self._store.superseded(), due or best, gap] if self._store else [0, 0, 0]
        replaced, due, gap = self._coordinator.maximum(proposal)
        if replaced:
            raise superseded(self._token, str(self._folder))
        self._schedule.accept(state.step, gap, saved=bool(due))
        if due:
            self._settle()
            self._begin(state, loss)

    def _save_last(self, state: TrainState, loss: float) -> None:
        for _ in range(_MAX_FAILURES + 1):
            self._settle()
            if self._saved == state.step:
                break
            self._begin(state, loss)
        if self._store:
            self._store.finish()

    def _begin(self, state: TrainState, loss: float) -> None:
        """Copy the tensors, and start writing the copies in the background."""
        manifest = Manifest(
            step=state.step,
            start=self._token,
            attempt=self._attempt,
            files=(),
            processes=self._ranks.size,
            torch=torch.__version__,
            told=self._decisive,
            facts=plain_facts(state.facts),
            loss=loss,
            time="",
        )
        on_gpu = self._ranks.device.type == "cuda"
        copies: dict[str, Tensor] = self._stager.stage(tensors_of(state), non_blocking=on_gpu)
        if on_gpu:
            torch.accelerator.synchronize()  # training changes the tensors next
        self._pending = self._thread.submit(self._write, manifest, copies)
        self._saved = state.step

    def _write(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
        """Write, digest, commit and clean up, in the background; raises the same error on all processes."""
        folder, together = self._folder / str(manifest.name), self._background

        def commit() -> None:
            if bad := sorted({name for _, not_finite in written for name in not_finite}):
                raise Diverged(
                    f"a checkpoint was rejected: {len(bad)} tensors are not finite, such as {bad[0]}",
                    where="training.checkpoints",
                    hint="Lower the learning rate; the checkpoint before it is intact.",
                )
            files = tuple(file for part, _ in written for file in part)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            cast(CheckpointStore, self._store).commit(replace(manifest, files=files, time=now))

        try:
            written = together.on_all(lambda: write_tensors(tensors, folder, together.group))
            together.on_leader(commit)
        except TrainwrightError:
            if self._store:
                self._store.discard(manifest.name)
            raise
        self.committed = manifest.step
        if self._store:
            self._store.after_commit(manifest.name)

    def _settle(self) -> None:
        """Wait for the pending save; of an error that may pass, raise only the second in a row."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
            self._failures = 0
        except (Diverged, PreemptedUnsaved):
            raise
        except TrainwrightError as error:
            self._failures, self._saved = self._failures + 1, -1
            if self._failures >= _MAX_FAILURES:
                raise DependencyError(
                    f"the state could not be saved {self._failures} times in a row: {error.what}",
                    where=str(self._folder),
                    hint="Free space on that disk, or raise its quota; earlier checkpoints are intact.",
                ) from None
            if self._store:
                _log.warning("the state could not be saved; the next save retries: %s", error.what)

    def _restore(self, state: TrainState, step: int | None = None) -> Manifest | None:
        """Load the newest checkpoint that verifies, of all or of one step."""
        unreachable = ""
        candidates = self._on_store(CheckpointStore.candidates)
        candidates = [entry for entry in candidates if step is None or entry[0].step == step]
        for name, remote in candidates:
            manifest, wrong, transient = self._verified(name, remote=remote)
            unreachable = unreachable or (wrong if transient else "")
            if manifest and not wrong:
                manifest.require_same_training(self._decisive)
                self._load(state, manifest)
                return manifest
            if self._store:
                place = "the store's copy of " if remote else ""
                _log.warning("%scheckpoint %s is skipped: %s", place, name, wrong)
        if unreachable and step is None:
            raise DependencyError(
                f"no checkpoint could be read: {unreachable}",
                where="training.checkpoints.store",
                hint="Run the step again when the store or disk works: it resumes from there.",
            )
        if candidates and self._store and step is None:
            _log.warning("none of %d checkpoints verifies: training starts from step 0", len(candidates))
        return None

    def _verified(self, name: CheckpointName, *, remote: bool) -> tuple[Manifest | None, str, bool]:
        """Check the digests of a checkpoint; each process reads its share of the files.

        Returns:
            The manifest, if it can be read; the damage; whether it may be temporary.
        """
        try:
            manifest = self._on_store(lambda store: store.fetch(name, remote=remote))
            share = manifest.files[self._ranks.rank :: self._ranks.size]
            found = self._coordinator.on_all(lambda: damage(self._folder / str(name), share))
        except (InputError, DependencyError) as error:
            return None, error.what, isinstance(error, DependencyError)
        if self._store and not any(found):
            self._store.mark_verified(name)
        return manifest, next((wrong for wrong in found if wrong), ""), False

    def _load(self, state: TrainState, manifest: Manifest) -> None:
        reader = TensorReader(self._folder / str(manifest.name), manifest)
        metadata = self._coordinator.on_all(reader.read_metadata)[self._ranks.rank]
        require_same_architecture(state, metadata, self._coordinator, str(reader.folder))
        read_tensors(tensors_to_load(state, metadata), reader, self._coordinator.group)
        state.step = manifest.step
        state.facts.clear()
        state.facts.update(manifest.facts)
