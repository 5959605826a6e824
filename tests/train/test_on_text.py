"""A language model on the bytes of a column of text, through the whole component."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.train.problems import Outcome, request, submitted
from trainwright import serving, tables
from trainwright.artifacts import Model, Snapshot, SnapshotTarget
from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, read_network
from trainwright.score.score import write_model_predictions
from trainwright.serving.columns import to_tokens
from trainwright.serving.prediction_file import predict_file
from trainwright.smoke_test.__main__ import main
from trainwright.train.submit.checks import check_snapshot

NETWORK = {"kind": "lm", "text": "body", "context": 32, "width": 32, "layers": 1, "heads": 2}
TRAINING = {"epochs": 8, "batch_size": 16, "learning_rate": 0.01, "seed": 1}
WORDS = ("über", "the", "cat", "sat", "on", "a", "mat", "straße")


def texts(rows: int, seed: int) -> pa.Table:
    """Draw sentences of a few words, some empty or missing."""
    draw = np.random.default_rng(seed)
    body: list[str | None] = [" ".join(draw.choice(WORDS, draw.integers(2, 9))) for _ in range(rows)]
    body[3], body[4], body[5] = None, "", "x"
    return pa.table({"row": pa.array(range(rows)), "body": pa.array(body)})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "set"
    splits = {"train": [texts(400, 0)], "evaluate": [texts(60, 1)]}
    tables.write_snapshot(
        folder, splits, parents={}, roles={"key": "row"}, target=SnapshotTarget(kind="text")
    )
    return folder


def request_of(corpus: Path, **network: Any) -> Any:
    asked = request(corpus, training=TRAINING, resources={"processes": 1})
    return type(asked)(**vars(asked) | {"network": json.dumps(NETWORK | network)})


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return submitted(request_of(corpus), tmp_path_factory.mktemp("made"))


def test_model_learns_bytes_better_than_their_frequencies(made: Outcome, corpus: Path) -> None:
    judged = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    scored = judged["tokens_scored"].to_numpy()
    # 60 rows, of which one is missing, one empty, and one has a single byte, which follows nothing.
    assert judged.num_rows == 57
    assert scored.tolist() == [len(text.encode()) - 1 for text in judged["body"].to_pylist()]
    loss = np.average(judged["loss"].to_numpy(), weights=scored)
    data = np.frombuffer("".join(judged["body"].to_pylist()).encode(), np.uint8)
    rates = np.bincount(data) / len(data)
    unigram = -(rates[rates > 0] * np.log(rates[rates > 0])).sum()
    assert loss < 0.6 * unigram
    assert Snapshot.read(made.predictions).target == SnapshotTarget(kind="text")


def test_model_takes_the_bytes_of_text_and_says_so(made: Outcome, corpus: Path) -> None:
    model = Model.read(made.model)
    body = tables.read_split(corpus, Snapshot.read(corpus), "train")["body"].to_pylist()
    texts_there = [text for text in body if text]
    assert model.metrics["tokens"] == sum(len(text.encode()) for text in texts_there) + len(texts_there) - 1
    assert model.metrics["rows_without_label"] == 0
    signature = json.loads((made.model / "signature.json").read_text())
    assert signature["program"]["vocabulary"] == 257
    assert signature["program"]["tokens"] == "bytes of the text in UTF-8; 256 separates rows"
    predictor = serving.load_language_model(made.model)
    text = "the cat sat on a ma"
    scores = predictor.predict(np.frombuffer(text.encode(), np.uint8)[None].astype(np.int64))
    assert scores.shape == (1, len(text), 257)
    assert chr(int(scores[0, -1].argmax())) == "t"
    assert main(made.model, model.digest)["said"].startswith("log-probabilities of 257 tokens")


def test_prediction_file_of_texts_has_the_loss_that_evaluation_uses(made: Outcome, tmp_path: Path) -> None:
    scored = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    rows = pa.table({"id": [1, 2, 3], "body": [*scored["body"].to_pylist()[:2], "x"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    predict_file(made.model, tmp_path / "rows.parquet", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert found["id"] == [1, 2, 3]
    assert found["loss"] == [*map(pytest.approx, scored["loss"].to_pylist()[:2]), None]
    assert found["tokens_scored"] == [*scored["tokens_scored"].to_pylist()[:2], 0]


def test_scoring_again_gives_the_same_predictions(made: Outcome, corpus: Path, tmp_path: Path) -> None:
    snapshot = Snapshot.read(corpus)
    again = write_model_predictions(
        made.model, Model.read(made.model), corpus, snapshot, ["evaluate"], tmp_path
    )
    assert again.digest == Snapshot.read(made.predictions).digest


def test_tokens_of_text_are_its_bytes() -> None:
    column = pa.array(["skipped", "aß", None, "", "b"])
    assert to_tokens(column.slice(1)).to_pylist() == [[97, 0xC3, 0x9F], [], [], [98]]
    ids = pa.array([[1, 2]])
    assert to_tokens(ids) is ids


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"kind": "lm"}, "neither text nor vocabulary is set"),
        ({"kind": "lm", "text": "body", "vocabulary": 9}, "vocabulary: for token ids"),
        ({"kind": "lm", "text": "body", "separator": 0}, "separator: for token ids"),
    ],
)
def test_contradictory_tokens_are_rejected(network: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_network(network)


def test_column_of_another_type_is_rejected_with_what_to_name(corpus: Path) -> None:
    snapshot = Snapshot.read(corpus)
    with pytest.raises(InputError, match="column 'row' is of type int64; text is a string per row"):
        check_snapshot(snapshot, ["train", "evaluate"], LanguageModel(text="row"))
    with pytest.raises(InputError, match=r"Name a column of strings in network\.text"):
        check_snapshot(snapshot, ["train", "evaluate"], LanguageModel(tokens="body", vocabulary=9))
    with pytest.raises(InputError, match="no column 'bodi' of text; there are body"):
        check_snapshot(snapshot, ["train", "evaluate"], LanguageModel(text="bodi"))
