"""Every way to divide a training over processes gives what a single process gives."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train import clean
from tests.train.parallel_trainings import MOVED, MOVES, WAYS, Result, main, train
from tests.train.problems import Outcome, run
from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, Mlp, Network, Training
from trainwright.train.process_group import Ranks
from trainwright.train.submit.checks import check_parallelism

COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Start two processes and then four, once each, and return what each way gave."""
    folder = tmp_path_factory.mktemp("divided")

    @functools.cache
    def said(processes: int) -> str:
        started = [
            clean.start(main, folder, said=folder / f"said-{rank}", **place)
            for rank, place in enumerate(clean.places(*((rank, processes) for rank in range(processes))))
        ]
        clean.all_ended(started, within_s=900)
        return "".join((folder / f"said-{rank}").read_text()[-4000:] for rank in range(processes))

    def of(name: str) -> Result:
        errors = said(WAYS[name].processes if name in WAYS else MOVED)
        path = folder / f"{name}.pt"
        assert path.exists(), errors
        return Result(**torch.load(path))

    return of


@pytest.fixture(scope="module")
def single(alone: Ranks) -> Callable[[str], Result]:
    """Return what a single process gives in the same arithmetic."""
    found: dict[str, Result] = {}

    def of(name: str) -> Result:
        way = WAYS[name]
        key = repr((way.training, way.network))
        if key not in found:
            found[key] = train(alone, way.network, **way.training)
        return found[key]

    return of


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if "precision" not in way.training])
def test_parallel_training_equals_a_single_process(
    name: str, divided: Callable[[str], Result], single: Callable[[str], Result]
) -> None:
    if WAYS[name].apart.get("compile") and not COMPILER:
        pytest.skip("torch.compile needs a C++ compiler")
    ours, expected = divided(name), single(name)
    assert_same(ours, expected)


def assert_same(ours: Result, expected: Result) -> None:
    """Compare two trainings; another instruction set alone moves what they give by a tenth of the limits."""
    assert ours.losses == pytest.approx(expected.losses, rel=1e-6)
    assert ours.norms == pytest.approx(expected.norms, rel=3e-6)
    assert ours.weights.keys() == expected.weights.keys()
    for key, weight in expected.weights.items():
        torch.testing.assert_close(ours.weights[key], weight, rtol=0, atol=1e-6, msg=key)


def test_training_resumes_with_other_degrees_of_parallelism(
    divided: Callable[[str], Result], alone: Ranks
) -> None:
    ours, expected = divided("moved"), train(alone, {}, range(len(MOVES)))
    assert_same(ours, expected)


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if "precision" in way.training])
def test_low_precision_losses_are_close_with_and_without_parallelism(
    name: str, divided: Callable[[str], Result], single: Callable[[str], Result]
) -> None:
    ours, expected, exact = divided(name), single(name), single("ddp2")
    assert ours.losses != pytest.approx(exact.losses, rel=2e-6)
    assert ours.losses == pytest.approx(expected.losses, rel=4e-3)
    assert ours.skipped == expected.skipped
    assert all(weight.dtype == torch.float32 for weight in ours.weights.values())


def test_sharded_job_writes_the_model_of_a_replicated_one(
    trained: Outcome, training_set: Path, tmp_path: Path
) -> None:
    made = run(training_set, tmp_path, training={"parallel": {"shard": 2}})
    ours, expected = (load_file(path.model / "weights.safetensors") for path in (made, trained))
    assert ours.keys() == expected.keys()
    for key, weight in expected.items():
        torch.testing.assert_close(ours[key], weight, rtol=1e-3, atol=1e-4, msg=key)


NETWORK = LanguageModel(vocabulary=100, width=48, heads=6, groups=3, layers=3, hidden=96, tied=False)


@pytest.mark.parametrize(
    ("network", "processes", "training", "said"),
    [
        (NETWORK, 6, {"parallel": {"tensor": 4}}, "tensor 4 = 4 does not divide 6 processes"),
        (
            NETWORK,
            8,
            {"parallel": {"replicate": 2, "shard": 2}},
            "replicate 2 x pipeline 1 x shard 2 x tensor 1 = 4, and there are 8 processes",
        ),
        (NETWORK, 4, {"parallel": {"tensor": 4}}, "heads 6 cannot be divided evenly by tensor 4"),
        (NETWORK, 2, {"parallel": {"tensor": 2}}, "groups 3 cannot be divided evenly by tensor 2"),
        (NETWORK, 4, {"parallel": {"pipeline": 4}}, "3 layers are too few for pipeline 4"),
        (
            NETWORK.model_copy(update={"tied": True}),
            2,
            {"parallel": {"pipeline": 2}},
            "a tied embedding is at both ends of pipeline 2",
        ),
        (NETWORK, 3, {"batch_size": 2}, "batch_size 2 has no sample for each of 3 processes. Use 3 or more."),
        (
            NETWORK,
            6,
            {"batch_size": 8, "parallel": {"pipeline": 2}},
            "batch_size 8 cannot be shared evenly by 3 processes. Use 6 or 9.",
        ),
        (
            NETWORK,
            2,
            {"batch_size": 8, "parallel": {"pipeline": 2, "micro_batches": 9}},
            "a share of 8 samples (batch_size 8 over 1) has fewer than 9 micro-batches",
        ),
        (
            NETWORK,
            3,
            {"parallel": {"pipeline": 3, "micro_batches": 2}},
            "2 micro-batches do not fill the 3 stages",
        ),
        (NETWORK, 2, {"micro_batch": 4, "parallel": {"pipeline": 2}}, "micro_batch 4 and pipeline 2"),
        (NETWORK, 3, {"compile": True, "parallel": {"tensor": 3}}, "compile and tensor 3"),
        (Mlp(), 2, {"parallel": {"tensor": 2}}, "'mlp' does not support tensor 2"),
        (Mlp(), 2, {"parallel": {"pipeline": 2}}, "'mlp' does not support pipeline 2"),
    ],
)
def test_indivisible_sizes_are_rejected_with_both_numbers(
    network: Network, processes: int, training: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_parallelism(network, Training.model_validate({"batch_size": 24, **training}), processes)
    assert said in caught.value.what


def test_all_indivisible_sizes_are_reported_together() -> None:
    training = Training.model_validate({"batch_size": 1, "parallel": {"tensor": 2, "shard": 2}})
    with pytest.raises(InputError) as caught:
        check_parallelism(NETWORK, training, 4)
    assert "batch_size 1 has no sample for each of 2" in caught.value.what
    assert "groups 3 cannot be divided" in caught.value.what
