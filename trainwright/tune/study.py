"""A study: its trials in a journal of Optuna, under a lease; it survives the process that runs it.

The journal has every trial with its values, rungs and :class:`Trial` record. To propose a trial, the journal
is copied into a study in memory, whose sampler is seeded by the number of the trial: what is proposed depends
on the records alone, so that a killed study continues as if nothing had happened.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import TypeAdapter

from trainwright.documents import canonical, digest_text, read_json
from trainwright.errors import InputError, TransientError
from trainwright.storage.lease import hold_lease
from trainwright.storage.local import file_lock
from trainwright.train.config import differences
from trainwright.tune import asha
from trainwright.tune.report import Trial
from trainwright.tune.space import SearchSpace

JOURNAL, IDENTITY = "journal.log", "identity.json"
_RECORD, _SAMPLER = "trial", "sampler"
_NAME = "study"
_LEASE_S = 60.0
_FEWEST_RANDOM = 10
"""Trials that TPE draws at random before it has enough to learn from."""

_FINAL = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "infeasible": TrialState.PRUNED}
"""Optuna's state of a trial that has ended; it counts one that is pruned without any value as the worst."""

_RECORDS = TypeAdapter(Trial)

Figures = Mapping[str, Any]
"""Fields of :class:`Trial` to update: ``steps``, ``total``, ``seconds``, ``cost``, ``attempts``."""


class Study:
    """The trials of a search."""

    def __init__(self, storage: JournalStorage, space: SearchSpace, require: Callable[[], None]) -> None:
        self._storage, self._space, self._require = storage, space, require
        self._tuning = space.tuning
        self._grid = space.grid() if space.tuning.sampler == "grid" else []
        known = [one.study_name for one in storage.get_all_studies()]
        self._id = (
            storage.get_study_id_from_name(_NAME)
            if _NAME in known
            else storage.create_new_study([self._direction], _NAME)
        )
        for frozen in self._frozen():  # a process was killed between the record and Optuna's state
            if frozen.state == TrialState.RUNNING:
                self._tell(_record_of(frozen))

    @property
    def _direction(self) -> StudyDirection:
        return StudyDirection[self._tuning.direction.upper()]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials by number."""
        return tuple(_record_of(one) for one in self._frozen())

    @property
    def budget(self) -> int:
        """Most trials: those of the section, or the whole grid if that has fewer."""
        return min(self._tuning.trials, len(self._grid) or self._tuning.trials)

    def running(self) -> list[Trial]:
        """Return the trials that run, or ran when the last process of the study ended."""
        return [trial for trial in self.trials if trial.state == "running"]

    def next(self) -> Trial | None:
        """Start a trial: a paused one that is promoted, or a new one; None if there is none to start now."""
        trials = self.trials
        trial = asha.next_promotion(self._tuning.pruner, trials)
        if trial is None and len(trials) < self.budget:
            return self._propose(trials)
        idle = not any(one.state == "running" for one in trials)
        if trial is None and idle and not any(one.state == "complete" for one in trials):
            trial = asha.best_paused(trials)
        return self._update(trial.number, state="running", reason="") if trial else None

    def report(
        self, number: int, total: int, evaluations: Sequence[tuple[int, float]], *, ended: bool = False
    ) -> bool:
        """Record the evaluations of a running trial; return False if it has to pause now.

        Args:
            number: Number of the trial.
            total: Steps of its whole training.
            evaluations: Step and held-out loss of all its evaluations so far, by step.
            ended: Whether early stopping has ended its training: its best value counts at all later rungs.
        """
        pruner, trials = self._tuning.pruner, self.trials
        rungs = asha.rung_values(pruner, number, total, evaluations, ended=ended)
        trial = trials[number]
        if len(rungs) > len(trial.rungs):
            self._require()
            for one in rungs[len(trial.rungs) :]:
                self._storage.set_trial_intermediate_value(self._key(number), one.rung, one.value)
            trial = self._update(number, rungs=rungs, total=total)
            trials = (*trials[:number], trial, *trials[number + 1 :])
        return asha.goes_on(pruner, trials, trial) or self._is_last(trials, trial)

    def _is_last(self, trials: Sequence[Trial], trial: Trial) -> bool:
        """Tell whether a trial is to be the first complete one: if none is promoted, the best goes on."""
        after = [dataclasses.replace(one, state="paused") if one == trial else one for one in trials]
        best = asha.best_paused(after)
        return (
            len(trials) == self.budget
            and not any(one.state in {"complete", "running"} for one in after)
            and asha.next_promotion(self._tuning.pruner, after) is None
            and best is not None
            and best.number == trial.number
        )

    def note(self, number: int, figures: Figures) -> None:
        """Update the figures of a running trial."""
        self._update(number, **figures)

    def pause(self, number: int, figures: Figures) -> None:
        """Record that a trial has stopped at a rung, with its checkpoint."""
        trial = self.trials[number]
        at = trial.rungs[-1]
        best = f"the best 1/{self._tuning.pruner.reduction} so far"
        reason = f"{at.value:.5g} at step {at.step:,} of {trial.total:,} is not in {best}"
        self._update(number, state="paused", reason=reason, **figures)

    def complete(self, number: int, value: float, figures: Figures) -> None:
        """Record the value of a trial that has trained to its end."""
        reason = "trained to its end"
        self._tell(self._update(number, state="complete", value=value, reason=reason, **figures))

    def infeasible(self, number: int, reason: str, figures: Figures) -> None:
        """Record that a trial's values cannot be trained; Optuna counts it as the worst."""
        self._tell(self._update(number, state="infeasible", reason=reason, **figures))

    def finish(self) -> None:
        """End the search: paused trials are pruned."""
        for trial in self.trials:
            if trial.state == "paused":
                self._tell(self._update(trial.number, state="pruned"))

    def importances(self) -> dict[str, float]:
        """Return the share of each key in the differences between complete trials; empty of too few.

        PED-ANOVA: Watanabe, Bansal and Hutter, IJCAI 2023.
        """
        complete = [one for one in self._frozen() if one.state == TrialState.COMPLETE]
        if len({one.value for one in complete}) < 4:  # noqa: PLR2004 - fewer have no best quarter
            return {}
        with _quiet():
            found = get_param_importances(self._copy(complete), evaluator=PedAnovaImportanceEvaluator())
        total = sum(found.values())
        return {key: value / total for key, value in found.items()} if total else {}

    def _propose(self, trials: Sequence[Trial]) -> Trial:
        """Add a trial with the values that the sampler proposes after the trials so far."""
        number = len(trials)
        if self._grid:
            params, state = self._grid[number], {}
        else:
            with _quiet():
                memory = self._copy(map(self._for_sampler, self._frozen()))
                memory.sampler = self._sampler(number)
                asked = memory.ask()
                params = self._space.suggest(asked)
                state = memory.trials[number].system_attrs
        values, distributions = self._space.encoded(params)
        trial = Trial(
            number=number,
            params=params,
            state="running",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._require()
        frozen = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions=distributions,
            user_attrs={_RECORD: dataclasses.asdict(trial)},
            system_attrs=state,
        )
        self._storage.create_new_trial(self._id, frozen)
        return trial

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler of a trial, seeded by its number: no history of a process decides."""
        tuning = self._tuning
        seed = int(digest_text(canonical([tuning.seed, number]))[:8], 16)
        start = max(_FEWEST_RANDOM, 2 * tuning.parallel)
        if tuning.sampler == "random":
            return RandomSampler(seed=seed)
        if tuning.sampler == "cmaes":
            return CmaEsSampler(
                seed=seed, n_startup_trials=start, independent_sampler=RandomSampler(seed=seed)
            )
        # A running trial counts as a bad one, so that parallel trials differ.
        return TPESampler(
            seed=seed, n_startup_trials=start, multivariate=True, group=True, constant_liar=True
        )

    def _frozen(self) -> list[FrozenTrial]:
        return self._storage.get_all_trials(self._id, deepcopy=False)

    def _key(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _update(self, number: int, **changes: Any) -> Trial:
        trial = dataclasses.replace(_record_of(self._frozen()[number]), **changes)
        self._require()
        self._storage.set_trial_user_attr(self._key(number), _RECORD, dataclasses.asdict(trial))
        return trial

    def _tell(self, trial: Trial) -> None:
        """Give Optuna the final state of a trial that has one."""
        state = _FINAL.get(trial.state)
        if state is not None:
            self._require()
            values = None if trial.value is None else [trial.value]
            self._storage.set_trial_state_values(self._key(trial.number), state, values)

    def _for_sampler(self, frozen: FrozenTrial) -> FrozenTrial:
        """Return a trial as samplers see it: a paused one has a result, an infeasible one has none.

        Values at rungs are losses, and Optuna compares them in the direction of the metric.
        """
        state = _record_of(frozen).state
        if state in {"running", "complete"}:
            return frozen
        sign = -1.0 if self._direction == StudyDirection.MAXIMIZE else 1.0
        values = {rung: sign * value for rung, value in frozen.intermediate_values.items()}
        return create_trial(
            state=TrialState.PRUNED,
            params=frozen.params,
            distributions=frozen.distributions,
            intermediate_values={} if state == "infeasible" else values,
            user_attrs=frozen.user_attrs,
            system_attrs=frozen.system_attrs,
        )

    def _copy(self, trials: Iterable[FrozenTrial]) -> optuna.Study:
        memory = optuna.create_study(direction=self._tuning.direction)
        memory.add_trials(trials)
        return memory


def _record_of(frozen: FrozenTrial) -> Trial:
    return _RECORDS.validate_python(frozen.user_attrs[_RECORD])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log and its warnings about experimental options."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def open_study(
    folder: Path,
    identity: Mapping[str, Any],
    space: SearchSpace,
    *,
    shared: bool = True,
    wait_s: float = 2 * _LEASE_S,
) -> Iterator[Study]:
    """Create a study, or continue it, and keep other processes out.

    Args:
        folder: Folder of the study.
        identity: What all its trials share, as plain data; another one under the same name is rejected.
        space: The search space.
        shared: Whether a pod on another node may run the study: a lease then keeps it out, else a lock that
            the kernel releases as soon as its holder dies.
        wait_s: Longest wait for another pod that runs the study.

    Raises:
        InputError: The folder has a study of other data, another space or other settings.
        TransientError: Another process runs the study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _hold(folder, shared=shared, wait_s=wait_s) as require:
        _require_same(folder / IDENTITY, identity)
        path = folder / JOURNAL
        # Left by a killed process; no other runs now.
        path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
        _cut_partial_line(path)
        with _quiet():
            storage = JournalStorage(JournalFileBackend(str(path)))
            study = Study(storage, space, require)
        yield study


@contextmanager
def _hold(folder: Path, *, shared: bool, wait_s: float) -> Iterator[Callable[[], None]]:
    """Keep others out of a study; yield the check to make before each write."""
    if shared:
        with hold_lease(str(folder / "lease"), lease_s=_LEASE_S, wait_s=wait_s) as lease:
            yield lease.require
        return
    with file_lock(folder / "lock") as acquired:
        if not acquired:
            raise TransientError(
                "another run continues this study",
                where=str(folder),
                hint="Run it again when that has ended.",
            )
        yield lambda: None


def _require_same(path: Path, identity: Mapping[str, Any]) -> None:
    text = canonical(identity)
    if not path.exists():
        attempt = path.with_suffix(".part")
        attempt.write_text(text)
        attempt.replace(path)
        return
    if changed := differences(read_json(path), read_json(text)):
        raise InputError(
            "this study has other trials: " + "; ".join(changed),
            where=str(path.parent),
            hint="Give the new study another name: tuning.study.",
        )


def _cut_partial_line(path: Path) -> None:
    """Remove a last line that a killed process did not finish: what follows would be unreadable."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
