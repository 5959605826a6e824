"""A language model through the whole component: what it learns, what it leaves, and the losses it reports."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.train.problems import Outcome, request, submitted
from trainwright import serving, tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Training, read_network
from trainwright.score.score import write_model_predictions
from trainwright.train.submit.checks import check_network

VOCABULARY, CONTEXT = 8, 16
NETWORK = {
    "kind": "lm",
    "vocabulary": VOCABULARY,
    "context": CONTEXT,
    "separator": 0,
    "width": 32,
    "layers": 1,
    "heads": 2,
}
TRAINING = {"epochs": 12, "batch_size": 32, "learning_rate": 0.02, "seed": 1}


def chain() -> NDArray[np.float64]:
    """Return the odds of the next token: after each of 1 to 7, three others with 0.8, 0.1 and 0.1."""
    odds = np.zeros((VOCABULARY, VOCABULARY))
    for token in range(1, VOCABULARY):
        for step, share in ((1, 0.8), (2, 0.1), (4, 0.1)):
            odds[token, (token - 1 + step) % 7 + 1] = share
    return odds


def texts(rows: int, seed: int) -> pa.Table:
    """Draw rows of 2 to 40 tokens from the chain; a few are empty or hold one token."""
    random, odds = np.random.default_rng(seed), chain()
    found = []
    for row in range(rows):
        tokens = [int(random.integers(1, VOCABULARY))]
        for _ in range(int(random.integers(1, 40))):
            tokens.append(int(random.choice(VOCABULARY, p=odds[tokens[-1]])))
        found.append([] if row % 50 == 7 else tokens[:1] if row % 50 == 8 else tokens)
    return pa.table(
        {
            "id": pa.array([f"t{seed}-{row}" for row in range(rows)]),
            "tokens": pa.array(found, pa.list_(pa.int32())),
        }
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set of token lists, without a label."""
    folder = tmp_path_factory.mktemp("corpus") / "training_set"
    parts = {"train": [texts(400, 0)], "evaluate": [texts(100, 1)]}
    tables.write_snapshot(folder, parts, parents={}, roles={"key": "id"}, rows_per_file=200)
    return folder


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A language model that was trained in two processes."""
    asked = request(corpus, training=TRAINING)
    asked = type(asked)(**vars(asked) | {"network": json.dumps(NETWORK)})
    return submitted(asked, tmp_path_factory.mktemp("lm"))


def test_in_production_it_scores_the_same_rows_as_its_training_did(
    corpus: Path, made: Outcome, tmp_path: Path
) -> None:
    model, snapshot = Model.read(made.model), Snapshot.read(corpus)
    written = write_model_predictions(
        made.model, model, corpus, snapshot, ["evaluate"], tmp_path / "predictions"
    )
    again = tables.read_split(tmp_path / "predictions", written, "evaluate")
    first = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    assert again.drop_columns("loss") == first.drop_columns("loss")
    np.testing.assert_allclose(again["loss"], first["loss"], rtol=1e-6)


def test_the_loss_comes_close_to_the_entropy_of_the_chain_that_made_the_texts(made: Outcome) -> None:
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.1))
    scored = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    weight = scored["tokens_scored"].to_numpy()
    loss = float((scored["loss"].to_numpy() * weight).sum() / weight.sum())
    assert entropy - 0.05 < loss < entropy + 0.15
    assert loss < math.log(VOCABULARY) / 2


def test_rows_without_a_next_token_are_not_scored_and_all_others_are(made: Outcome, corpus: Path) -> None:
    rows = tables.read_split(corpus, Snapshot.read(corpus), "evaluate")["tokens"].to_pylist()
    scored = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    assert scored["tokens"].to_pylist() == [row for row in rows if len(row) > 1]
    assert scored["tokens_scored"].to_pylist() == [len(row) - 1 for row in rows if len(row) > 1]


def test_a_row_s_loss_is_that_of_the_model_s_own_log_probabilities(made: Outcome) -> None:
    model = serving.load_language_model(made.model)
    scored = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    rows = [row for row in scored.to_pylist() if len(row["tokens"]) <= CONTEXT][:20]
    assert len(rows) == 20
    for row in rows:
        tokens = row["tokens"]
        scores = model.predict(np.array([tokens[:-1]]))[0]
        expected = -np.mean([scores[place, token] for place, token in enumerate(tokens[1:])])
        assert row["loss"] == pytest.approx(expected, rel=1e-6)


def test_the_model_s_folder_says_what_it_was_made_of(made: Outcome, corpus: Path) -> None:
    model = Model.read(made.model)
    assert (model.kind, model.inputs) == ("lm", ("tokens",))
    assert model.training_data == Snapshot.read(corpus).digest
    rows = tables.read_split(corpus, Snapshot.read(corpus), "train")["tokens"].to_pylist()
    files = [rows[:200], rows[200:]]
    # Between the rows that have tokens lies a separator.
    tokens = [sum(map(len, file)) + sum(bool(row) for row in file) - 1 for file in files]
    assert model.metrics["tokens"] == sum(tokens)
    assert model.metrics["sequences"] == sum((count - 1) // CONTEXT for count in tokens)
    assert "decoder-only transformer over tokens" in (made.model / "README.md").read_text()
    assert "sequences/s" in (made.folder / "summary.md").read_text()


@pytest.mark.parametrize(
    "asked",
    [
        {"class_weights": "balanced"},
        {"sampling": "balanced"},
        {"focal": 2.0},
        {"threshold": "f1"},
    ],
)
def test_what_is_for_classes_is_refused_for_tokens_before_anything_starts(asked: dict[str, object]) -> None:
    training = Training.model_validate({"objective": asked})
    with pytest.raises(InputError, match=f"^{next(iter(asked))} .* is not defined for a model of kind"):
        check_network(read_network(NETWORK), training, processes=2, gpus=0)


def test_a_token_outside_the_vocabulary_that_is_only_to_be_scored_is_found_before_the_training(
    tmp_path: Path,
) -> None:
    wrong = pa.table({"id": ["a", "b"], "tokens": pa.array([[1, 2], [3, 9]], pa.list_(pa.int32()))})
    parts = {"train": [texts(60, 0)], "evaluate": [wrong]}
    tables.write_snapshot(tmp_path / "set", parts, parents={}, roles={"key": "id"})
    asked = request(tmp_path / "set", training=TRAINING | {"epochs": 1000}, resources={"processes": 1})
    asked = type(asked)(**vars(asked) | {"network": json.dumps(NETWORK)})
    with pytest.raises(InputError, match=r"tokens lie in \[1, 9\]; a vocabulary of 8 has 0 to 7"):
        submitted(asked, tmp_path)
    assert not list(tmp_path.rglob("progress.json"))
