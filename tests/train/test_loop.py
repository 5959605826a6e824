"""The training loop: order, rates, sums over processes, and what stops it."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.train.problems import ROWS, Outcome, Silent, flights, ready_alone, source, train_alone, write
from trainwright.artifacts import Model
from trainwright.errors import DataRefused, Diverged, InputError
from trainwright.experiment import Mlp, Training
from trainwright.train.group import Group
from trainwright.train.loop import learning_rate
from trainwright.train.order import Order
from trainwright.train.rows import Source, encode, fit


def sha256(network: nn.Module) -> str:
    total = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()


def test_one_process_and_two_learn_the_same(
    trained: Outcome, manifest: Model, training_set: Path, tmp_path: Path, alone: Group
) -> None:
    network, fitted = train_alone(training_set, tmp_path, alone, Silent())
    two = load_file(trained.model / "weights.safetensors")
    assert fitted.losses[-1] == pytest.approx(manifest.metrics["train_loss"], rel=1e-5)
    assert fitted.losses[0] == pytest.approx(manifest.metrics["first_epoch_loss"], rel=1e-5)
    assert two.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=1e-4)


def test_the_same_seed_gives_the_same_weights_with_dropout_too(
    training_set: Path, tmp_path: Path, alone: Group
) -> None:
    options = {"network": {"dropout": 0.3}, "training": {"epochs": 1}}
    first, _ = train_alone(training_set, tmp_path, alone, Silent(), **options)
    torch.rand(7)  # what else was random does not matter
    second, _ = train_alone(training_set, tmp_path, alone, Silent(), **options)
    options["training"] = {"epochs": 1, "seed": 4}
    other, _ = train_alone(training_set, tmp_path, alone, Silent(), **options)
    assert sha256(first) == sha256(second) != sha256(other)


def test_the_loss_of_the_first_step_is_that_of_the_base_rate(
    training_set: Path, tmp_path: Path, alone: Group, manifest: Model
) -> None:
    seen = Silent()
    train_alone(training_set, tmp_path, alone, seen, training={"epochs": 1})
    assert seen.losses[0] == pytest.approx(manifest.metrics["base_rate_loss"], abs=0.02)
    assert seen.losses[-1] < seen.losses[0] - 0.1


def test_a_step_that_is_not_finite_changes_no_weight(
    training_set: Path, tmp_path: Path, alone: Group
) -> None:
    loop = ready_alone(training_set, tmp_path, alone, Silent(), training={"learning_rate": 1e30})
    with pytest.raises(Diverged, match="not finite at step 2, epoch 1"):
        loop.run()
    weights = loop.stepper.module.state_dict().values()
    assert all(bool(torch.isfinite(value).all()) for value in weights)


@pytest.mark.parametrize(("rows", "size"), [(10, 3), (10, 10), (10, 100), (1, 1), (6001, 500)])
def test_an_epoch_has_every_row_once_in_an_order_of_its_own(rows: int, size: int) -> None:
    order = Order(rows, size, 8, seed=1)
    batches = [order.share(step, 0, 1) for step in range(2 * order.batches)]
    epochs = [np.concatenate(part).tolist() for part in (batches[: order.batches], batches[order.batches :])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(rows))
    assert rows < 10 or epochs[0] != epochs[1]
    assert [len(batch) for batch in batches][: order.batches - 1] == [size] * (math.ceil(rows / size) - 1)


@pytest.mark.parametrize("total", [1, 2, 20, 1000])
def test_the_learning_rate_rises_then_falls_and_is_never_0(total: int) -> None:
    rates = [learning_rate(step, total, Training(learning_rate=0.1)) for step in range(total)]
    top = int(np.argmax(rates))
    assert max(rates) <= 0.1
    assert rates[top] > 0.09 or total == 2
    assert min(rates) > 0
    assert np.all(np.diff(rates[: top + 1]) > 0)
    assert np.all(np.diff(rates[top:]) < 0)
    assert top <= max(1, total // 10)


def test_encoded_rows_are_those_of_the_split_in_their_order(
    training_set: Path, tmp_path: Path, alone: Group
) -> None:
    transforms, labels = fit(source(training_set), Mlp(), alone)
    rows = encode(source(training_set), transforms, labels, tmp_path / "encoded", alone)
    table = flights(ROWS["train"], 0)
    table = table.filter(table["late"].is_valid())
    assert rows.label.tolist() == table["late"].to_pylist()
    noise = table["noise"].to_numpy().astype(float)
    np.testing.assert_allclose(
        rows.numeric[:, 2].numpy(), (noise - noise.mean()) / noise.std(), rtol=1e-4, atol=1e-5
    )
    assert not (tmp_path / "encoded").exists()


def test_room_for_the_encoded_rows_is_taken_before_any_is_written(
    training_set: Path, tmp_path: Path, alone: Group
) -> None:
    """A process that writes to a mapped file for which the disk has no room is killed (SIGBUS)."""
    taken: list[bool] = []

    class Looking(Source):
        def read(self, file: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
            files = [path.stat() for path in tmp_path.glob("encoded/*.bin")]
            taken.extend(state.st_blocks * 512 >= state.st_size for state in files)
            return super().read(file)

    plain = source(training_set)
    looking = Looking(plain.folder, plain.snapshot, plain.split, plain.kinds)
    transforms, labels = fit(plain, Mlp(), alone)
    encode(looking, transforms, labels, tmp_path / "encoded", alone)
    assert taken
    assert all(taken[:3])


def test_a_label_with_one_class_is_refused_with_its_counts(tmp_path: Path, alone: Group) -> None:
    zeros = pa.array(np.zeros(100), pa.int64(), mask=np.arange(100) < 7)
    write(tmp_path / "set", {"train": flights(100, 0).set_column(2, "late", zeros)})
    with pytest.raises(DataRefused, match="'late' has 0 ones and 93 zeros; 7 rows have none"):
        fit(source(tmp_path / "set"), Mlp(), alone)


def test_a_label_that_is_neither_0_nor_1_is_refused(tmp_path: Path, alone: Group) -> None:
    write(tmp_path / "set", {"train": flights(100, 0).set_column(2, "late", pa.array(range(100)))})
    with pytest.raises(InputError, match=r"'late' lies in \[0, 99\]"):
        fit(source(tmp_path / "set"), Mlp(), alone)


def test_inputs_that_tell_nothing_at_all_are_refused(tmp_path: Path, alone: Group) -> None:
    write(tmp_path / "set", {"train": flights(100, 0).select(["id", "at", "late", "year", "gate"])})
    with pytest.raises(InputError, match="no input column tells anything"):
        fit(source(tmp_path / "set"), Mlp(), alone)


def test_a_boolean_label_is_learned_like_0_and_1(tmp_path: Path, alone: Group) -> None:
    table = flights(500, 0)
    late = table["late"].cast(pa.bool_())
    write(tmp_path / "set", {"train": table.set_column(2, "late", late)})
    _, labels = fit(source(tmp_path / "set"), Mlp(), alone)
    assert labels[0].positives == sum(filter(None, table["late"].to_pylist()))
