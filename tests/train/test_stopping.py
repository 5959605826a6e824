"""What ends a training of several processes, with which code, and what is kept of it."""

import json
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.train import clean
from tests.train.problems import resolved
from tests.train.stoppable import (
    SAMPLES,
    SETTINGS,
    WATCHED,
    Line,
    Options,
    Points,
    digest,
    job,
    one_process,
    ready,
)
from trainwright.errors import Diverged, Hang, Preempted, PreemptedUnsaved
from trainwright.launch.agent.rank_errors import RankError, rounds
from trainwright.launch.failure import Failure
from trainwright.launch.job import Result
from trainwright.launch.job_directory import Completion
from trainwright.launch.local import LocalLauncher
from trainwright.train.checkpoint import Manifest, committed
from trainwright.train.checkpoint.state import TrainState
from trainwright.train.fit import OutOfGpuMemory, out_of_memory_advice
from trainwright.train.process_group import Ranks
from trainwright.train.stop_signal import StopSignal, handle_stop_signals

WATCHING = {"guards": {"early_stopping": WATCHED}}


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A training in two processes that nothing happened to."""
    return undisturbed_in(tmp_path_factory.mktemp("left_alone"))


def undisturbed_in(home: Path) -> Result:
    """Train in two processes, on from what is there, without an agent; nothing happens to them."""
    options = Options(training=WATCHING)
    folder = job(home, options).folder
    assert in_two_processes(folder, options) == [0, 0]
    return Result(folder=folder, completion=Completion.read(folder), launcher="none")


def in_two_processes(folder: Path, options: Options) -> list[int]:
    """Train without an agent, and return the exit codes."""
    started = [clean.start(one_process, folder, options, **place) for place in clean.places((0, 2), (1, 2))]
    return [clean.ended(process) for process in started]


@pytest.fixture(scope="module")
def undisturbed(left_alone: Result) -> str:
    """The digest of its last state."""
    return left_alone.completion.outputs["state"]


def test_the_loss_of_the_watched_split_is_the_mean_over_all_of_it(left_alone: Result) -> None:
    weights = load_file(left_alone.folder / "weights.safetensors")
    module = Line().build().eval()
    module.load_state_dict(weights)
    samples = Points().take(np.arange(SAMPLES))
    with torch.no_grad():
        by_hand = (module(*samples.inputs).double() - samples.target).square().mean()
    assert float(left_alone.completion.outputs["watched_loss"]) == pytest.approx(float(by_hand), rel=1e-5)


def steps_saved(home: Path) -> list[int]:
    return [name.step for name in committed(home / "checkpoints")]


def test_a_training_that_is_stopped_ends_like_one_left_alone(tmp_path: Path, undisturbed: str) -> None:
    """Stopped at some step, by a signal to one process; then left alone."""
    first = random.SystemRandom().randint(2, 55)
    options = Options(training=WATCHING, signals=[[first, 1, signal.SIGTERM]])
    with pytest.raises(Preempted, match=f"stopped after step {first + 1} of 60, which is saved") as caught:
        LocalLauncher().run(job(tmp_path, options, restarts=1))
    assert caught.value.code == 40
    assert steps_saved(tmp_path)[0] == first + 1, "no step is lost"
    failure = Failure.read(tmp_path / "attempts" / "0001")
    assert (failure.kind, failure.code, failure.retryable) == ("PREEMPTED", 40, True)
    assert undisturbed_in(tmp_path).completion.outputs["state"] == undisturbed


@pytest.mark.covers("F5")
def test_a_training_that_is_killed_while_it_stops_goes_on_from_what_was_saved_before(
    tmp_path: Path, undisturbed: str
) -> None:
    options = Options(training=WATCHING, pause_s=1)
    asked = job(tmp_path, options, grace_s=1)

    def stop() -> None:
        end = time.monotonic() + 300
        while not steps_saved(tmp_path) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in _ranks(asked.folder):
            os.kill(pid, signal.SIGSTOP)  # so slow that it cannot save in time
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(PreemptedUnsaved, match="stopped by SIGTERM") as caught:
        LocalLauncher().run(asked)
    thread.join()
    assert caught.value.code == 41
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.code) == ("PREEMPTED", 41)
    assert failure.what.startswith("stopped by SIGTERM before the step was finished")
    again = undisturbed_in(tmp_path)
    assert again.completion.outputs["state"] == undisturbed


@pytest.mark.covers("F6")
def test_a_batch_that_is_not_finite_on_one_process_stops_all_and_is_named_by_all(tmp_path: Path) -> None:
    bad = 266  # of step 11, in the share of rank 1
    options = Options(poison=bad, slow=1, training={"checkpoints": {"every_steps": 5}})
    asked = job(tmp_path, options)
    assert in_two_processes(asked.folder, options) == [30, 30]
    (errors,) = rounds(asked.folder)
    assert {entry.rank for entry in errors} == {0, 1}
    assert {(entry.kind, entry.retryable) for entry in errors} == {("NAN_LOSS", False)}
    assert errors[0].what.startswith("the loss is not finite at step 11, epoch 1")
    found = [json.loads(path.read_text()) for path in sorted((asked.folder / "batches").iterdir())]
    assert [(entry["step"], entry["rank"]) for entry in found] == [(11, 0), (11, 1)]
    assert sum(len(entry["ids"]) for entry in found) == 330 % 32
    assert [entry["not_finite"] for entry in found] == [[], [bad]]
    assert steps_saved(tmp_path)[-1] == 5
    assert steps_saved(tmp_path)[0] <= 10, "what is not finite is never saved"


@pytest.mark.covers("F8")
def test_a_process_that_is_stopped_is_a_hang_and_all_stacks_are_saved(tmp_path: Path) -> None:
    options = Options(
        training={"guards": {"stall_s": 8, "collective_s": 600}}, signals=[[9, 1, signal.SIGSTOP]]
    )
    asked = job(tmp_path, options, stall_s=8)
    with pytest.raises(Hang, match=r"no step for 8 s: .* rank 1 at step \d, stopped") as caught:
        LocalLauncher().run(asked)
    assert caught.value.code == 31
    stacks = [(asked.folder / "stacks" / f"rank-{rank}.txt").read_text() for rank in (0, 1)]
    assert "step.py" in stacks[0], "this one waits in its step"
    assert "in on_step" in stacks[1], "this one was stopped after it"


@pytest.mark.covers("F8")
def test_a_collective_that_takes_too_long_is_a_hang_too_even_while_a_thread_waits_for_a_save(
    tmp_path: Path,
) -> None:
    options = Options(training={"guards": {"stall_s": 600, "collective_s": 10}}, frozen=20)
    asked = job(tmp_path, options, stall_s=600)
    with pytest.raises(Hang, match="waited in vain for another process") as caught:
        LocalLauncher().run(asked)
    assert caught.value.code == 31
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.code, failure.retryable) == ("NCCL_TIMEOUT", 31, True)
    stacks = [(asked.folder / "stacks" / f"rank-{rank}.txt").read_text() for rank in (0, 1)]
    assert "step.py" in stacks[0]
    assert "in after_step" in stacks[1]


@pytest.mark.covers("F10")
def test_a_gpu_out_of_memory_is_tried_once_more_with_half_the_micro_batch_if_that_is_allowed(
    tmp_path: Path,
) -> None:
    settings = {"guards": {"halve_micro_batch": True}}
    asked = job(tmp_path, Options(greedy=20, training=settings), restarts=3, processes=1)
    result = LocalLauncher().run(asked)
    ends = [entries[0].kind if entries else "" for entries in rounds(result.folder)]
    assert ends == ["CUDA_OOM", ""]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_gpu_out_of_memory_says_which_micro_batch_may_fit(
    tmp_path: Path, alone: Ranks, *, allowed: bool
) -> None:
    settings = {"micro_batch": 9, "guards": {"halve_micro_batch": allowed}}
    with pytest.raises(OutOfGpuMemory, match="out of memory with 9 samples at once: CUDA out of") as caught:
        alone_with(Options(greedy=4, training=settings), tmp_path / "first", alone)
    assert (caught.value.code, caught.value.where) == (10, "training.micro_batch")
    assert caught.value.hint.startswith("Set it to 5: ")
    folder = tmp_path / "second" / "attempts" / "0001"
    folder.mkdir(parents=True)
    error = RankError.of(caught.value, 0)
    assert (error.kind, error.retryable) == ("CUDA_OOM", allowed)
    error.save(folder)
    size = 5 if allowed else 9
    with pytest.raises(OutOfGpuMemory, match=f"out of memory with {size} samples") as caught:
        alone_with(Options(greedy=4, training=settings), tmp_path / "second", alone)
    assert not RankError.of(caught.value, 0).retryable, "once"


def alone_with(options: Options, home: Path, group: Ranks) -> tuple[str, tuple[int, ...]]:
    """Train in this process."""
    folder = home / "attempts" / "0001"
    folder.mkdir(parents=True, exist_ok=True)
    loop = ready(options, folder, home, group, StopSignal(), None)
    with out_of_memory_advice(loop.training, resolved(**SETTINGS | options.training), group):
        fitted = loop.run()
    return loop.checkpoints.last, fitted.skipped  # type: ignore[attr-defined]


def test_a_batch_that_is_left_out_on_the_spot_or_after_going_back_leaves_the_same_training(
    tmp_path: Path, alone: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {}
    for action in ("skip", "roll_back"):
        settings = {"guards": {"not_finite": action, "forgiven": 8}, "checkpoints": {"every_steps": 2}}
        options = Options(poison=200, training=settings)
        ends[action] = alone_with(options, tmp_path / action, alone)
    assert ends["skip"] == ends["roll_back"]
    left_out = ends["skip"][1]
    assert len(left_out) == 6, "the sample comes once an epoch of 11 batches"
    assert capsys.readouterr().err.count("is skipped") == 12
    clean, _ = alone_with(Options(), tmp_path / "clean", alone)
    assert clean != ends["skip"][0]


class ToldLater(StopSignal):
    """Told to stop from the n-th question on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._left = first

    def requested(self) -> bool:
        self._left -= 1
        return self._left <= 0


def test_a_look_at_the_watched_split_that_is_told_to_stop_is_made_by_who_goes_on(
    tmp_path: Path, alone: Ranks
) -> None:
    """It may take longer than the grace, and what it finds decides what is kept."""
    settings = {"steps": 40, "guards": {"early_stopping": WATCHED}}
    options = Options(training=settings)
    whole = alone_with(options, tmp_path / "whole", alone)
    folder = tmp_path / "cut" / "attempts" / "0001"
    folder.mkdir(parents=True)
    for asked, step in ((27, 20), (2, 20), (35, 40)):  # a look asks at each of 11 batches
        loop = ready(options, folder, tmp_path / "cut", alone, ToldLater(asked), None)
        with pytest.raises(Preempted, match=f"stopped after step {step} of 40, which is saved"):
            loop.run()
        name = committed(tmp_path / "cut" / "checkpoints")[0]
        facts = Manifest.read(tmp_path / "cut" / "checkpoints" / str(name)).facts
        assert (name.step, "unwatched" in facts) == (step, True)
        assert (facts.get("watched") or {"step": 0})["step"] == step - 20
    assert alone_with(options, tmp_path / "cut", alone) == whole


def test_going_back_without_a_checkpoint_is_refused(tmp_path: Path, alone: Ranks) -> None:
    options = Options(poison=200, training={"guards": {"not_finite": "roll_back"}})
    with pytest.raises(Diverged, match="nothing was saved before step"):
        alone_with(options, tmp_path, alone)


@pytest.mark.covers("F7")
def test_a_learning_rate_a_thousand_times_too_high_is_divergence_with_its_numbers(
    tmp_path: Path, alone: Ranks
) -> None:
    settings = {"steps": 600, "schedule": "constant", "guards": {"window": 40}}
    with pytest.raises(Diverged, match=r"diverged by step \d+, .* robust deviations above") as caught:
        alone_with(Options(wild_from=200, training=settings), tmp_path, alone)
    step = int(re.search(r"by step (\d+)", caught.value.what)[1])  # type: ignore[index]
    assert 200 < step <= 240
    assert not hasattr(caught.value, "kind")


@pytest.mark.parametrize("stop_at", [33, 58])
def test_a_training_that_is_interrupted_in_a_window_of_its_guards_is_no_other(
    tmp_path: Path, alone: Ranks, stop_at: int
) -> None:
    settings = {"steps": 120, "guards": {"window": 100, "not_finite": "skip", "forgiven": 99}}
    options = Options(poison=200, training=settings)
    whole, left_out = alone_with(options, tmp_path / "whole", alone)
    assert left_out

    class Told(StopSignal):
        def requested(self) -> bool:
            return loop.stepper.taken + 1 >= stop_at  # type: ignore[attr-defined]

    folder = tmp_path / "cut" / "attempts" / "0001"
    folder.mkdir(parents=True)
    loop = ready(options, folder, tmp_path / "cut", alone, Told(), None)
    with pytest.raises(Preempted, match=f"stopped after step {stop_at} of 120"):
        loop.run()
    assert alone_with(options, tmp_path / "cut", alone) == (whole, left_out)


def test_the_best_state_on_the_watched_split_is_what_is_kept(tmp_path: Path, alone: Ranks) -> None:
    early = {"split": "watch", "every_steps": 10, "patience": 2}
    settings = {"steps": 100, "guards": {"early_stopping": early}}
    losses = iter([0.9, 0.5, 0.4, 0.6, 0.41, 0.1])
    folder = tmp_path / "attempts" / "0001"
    folder.mkdir(parents=True)
    loop = ready(Options(training=settings), folder, tmp_path, alone, StopSignal(), None)
    loop.evaluate = lambda: next(losses)
    loop.__post_init__()
    fitted = loop.run()
    assert (fitted.steps, fitted.best_step, fitted.watched_loss) == (50, 30, 0.4)
    kept = digest_of_weights(loop.stepper.module)
    ended = ready(Options(training={"steps": 100}), folder, tmp_path / "other", alone, StopSignal(), None)
    at: dict[int, str] = {}

    class Noting:
        def on_step(self, step: object) -> None:
            at[step.number] = digest_of_weights(ended.stepper.module)  # type: ignore[attr-defined]

    ended.observers = [Noting()]
    ended.run()
    assert kept == at[30] != at[50]
    names = committed(tmp_path / "checkpoints")
    watched = {name.step: Manifest.read(tmp_path / "checkpoints" / str(name)).watched for name in names}
    assert watched[30] == 0.4


def digest_of_weights(module: torch.nn.Module) -> str:
    return digest(TrainState(module, torch.optim.SGD(module.parameters(), lr=0.1)))


def test_a_signal_before_the_first_step_ends_at_once_during_steps_it_waits_and_after_them_not() -> None:
    with (
        handle_stop_signals() as stop,
        pytest.raises(PreemptedUnsaved, match="SIGTERM before the first step"),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    with handle_stop_signals() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested()
        with pytest.raises(Preempted, match="after the last step, which is saved"):
            stop.finish()
    with handle_stop_signals() as stop:
        assert not stop.requested()
        stop.finish()
        with pytest.raises(Preempted, match="after the last step"):
            os.kill(os.getpid(), signal.SIGINT)


def _ranks(folder: Path) -> list[int]:
    return [
        int(path.name.rsplit(".", 1)[1])
        for path in (folder / "stacks").glob(".rank-*.*")
        if "new" not in path.name
    ]
