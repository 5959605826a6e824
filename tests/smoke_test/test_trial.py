"""A model that cannot be loaded where nothing of its training is left does not get any further."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.odd import TARGETS, untrained, with_odd_rows
from tests.train.problems import write
from trainwright import serving
from trainwright.artifacts import Model, ModelFile, Record, Trial
from trainwright.documents import digest_file
from trainwright.errors import InputError, ModelRefused
from trainwright.smoke_test.__main__ import measure, measure_table
from trainwright.smoke_test.trial import try_model
from trainwright.tracking import environment


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a network of three classes."""
    folder = tmp_path_factory.mktemp("model")
    write(folder / "set", {"train": with_odd_rows(60, 1), "evaluate": with_odd_rows(40, 2)})
    untrained(folder / "set", TARGETS["multiclass"]).write(folder / "model")
    return folder / "model"


def digest(model: Path) -> str:
    return Model.read(model).digest


def test_a_model_that_answers_as_it_says_passes_and_its_scores_are_those_of_this_process(
    model: Path, tmp_path: Path
) -> None:
    made = try_model(model, digest(model), tmp_path / "trial", tmp_path / "summary.md")
    assert Trial.read(tmp_path / "trial") == made
    assert (made.problems("multiclass"), made.model, made.environment.name) == ((), digest(model), "torch")
    assert (made.measured["scores"], made.measured["error of a sum of probabilities"] < 1e-6) == (15, True)
    example = json.loads((model / "input_example.json").read_text())
    columns = {name: [row[at] for row in example["data"]] for at, name in enumerate(example["columns"])}
    scores = serving.load(model).predict(columns)
    assert scores.shape == (len(example["data"]), 3)
    assert made.scores == hashlib.sha256(np.ascontiguousarray(scores).tobytes()).hexdigest()
    record = Record.read(tmp_path / "trial")
    assert record.outputs["trial"] == made.digest
    assert record.headline.startswith("loaded in a clean process: 5 rows scored")
    assert "answered" in (tmp_path / "summary.md").read_text()


def damaged(model: Path, tmp_path: Path, name: str, content: bytes) -> Path:
    """Copy a model with one file replaced, and a manifest that says so: as if it was written like that."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / name).write_bytes(content)
    entry = ModelFile(path=name, size=len(content), sha256=digest_file(folder / name))
    manifest = Model.read(model)
    kept = [entry if known.path == name else known for known in manifest.files]
    replace(manifest, files=tuple(kept)).write(folder)
    return folder


def changed(program: Path, operator: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a program whose nodes of one operator are changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(program) as archive, zipfile.ZipFile(buffer, "w") as made:
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith("models/model.json"):
                description = json.loads(data)
                for node in description["graph_module"]["graph"]["nodes"]:
                    if node["target"] == operator:
                        change(node)
                data = json.dumps(description).encode()
            made.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.covers("A2")
def test_a_program_that_writes_a_file_is_refused_before_it_runs_and_the_trial_says_why(
    model: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "written"
    mark.write_bytes(bytes(64))

    def write_a_file(node: dict[str, Any]) -> None:
        values = {"filename": {"as_string": str(mark)}, "shared": {"as_bool": True}, "size": {"as_int": 8}}
        node["target"] = "torch.ops.aten.from_file.default"
        node["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in values.items()]

    content = changed(model / "program.pt2", "torch.ops.aten.relu.default", write_a_file)
    folder = damaged(model, tmp_path, "program.pt2", content)
    with pytest.raises(
        ModelRefused,
        match=r"be served as it was written: operator torch\.ops\.aten\.from_file\.default of node 'relu'",
    ) as found:
        try_model(folder, digest(folder), tmp_path / "trial", tmp_path / "summary.md")
    assert found.value.code == 12
    assert mark.read_bytes() == bytes(64)
    trial = Trial.read(tmp_path / "trial")
    assert (trial.problems("multiclass"), trial.scores, trial.measured) == ((trial.said,), "", {})
    assert "did not answer as it says" in (tmp_path / "summary.md").read_text()


@pytest.mark.covers("A2")
def test_a_program_that_takes_all_memory_is_refused_at_its_limit(model: Path, tmp_path: Path) -> None:
    def repeat(node: dict[str, Any]) -> None:
        times = {"name": "repeats", "arg": {"as_ints": [1 << 20, 1 << 20]}, "kind": 1}
        node["target"] = "torch.ops.aten.repeat.default"
        node["inputs"] = [node["inputs"][0], times]

    content = changed(model / "program.pt2", "torch.ops.aten.relu.default", repeat)
    folder = damaged(model, tmp_path, "program.pt2", content)
    with pytest.raises(ModelRefused, match=r"it needs more memory than its limit of 8\.0 GiB"):
        try_model(folder, digest(folder), tmp_path / "trial", tmp_path / "summary.md")
    assert "memory limit 8.0 GiB" in Record.read(tmp_path / "trial").config["protections"]
    assert "memory limit 8.0 GiB" in (tmp_path / "summary.md").read_text()


def test_another_shape_than_the_signature_says_is_refused(model: Path, tmp_path: Path) -> None:
    signature = json.loads((model / "signature.json").read_text())
    signature["outputs"] = signature["outputs"][:1]
    folder = damaged(model, tmp_path, "signature.json", json.dumps(signature).encode())
    with pytest.raises(ModelRefused, match="rows or outputs beside the signature: 10"):
        try_model(folder, digest(folder), tmp_path / "trial", tmp_path / "summary.md")


def test_no_answer_in_time_is_no_pass(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"no answer within 0\.05 s"):
        try_model(model, digest(model), tmp_path / "trial", tmp_path / "summary.md", timeout_s=0.05)
    assert Trial.read(tmp_path / "trial").problems("multiclass") == ("no answer within 0.05 s",)


def test_another_model_or_one_without_an_example_is_not_tried(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cached input changed: model"):
        try_model(model, "0" * 64, tmp_path / "trial", tmp_path / "summary.md")
    bare = damaged(model, tmp_path, "README.md", b"")
    (bare / "input_example.json").unlink()
    with pytest.raises(InputError, match=r"no input_example\.json"):
        try_model(bare, digest(bare), tmp_path / "trial", tmp_path / "summary.md")


@pytest.mark.parametrize(
    ("scores", "again", "kind", "said"),
    [
        ([], [], "binary", "scores: 0"),
        ([0.5, np.nan], [0.5, np.nan], "binary", "no numbers: 1"),
        ([0.5, 0.2], [0.5, 0.3], "binary", "differ at a second call: 1"),
        ([0.5, 1.5], [0.5, 1.5], "binary", "outside 0 to 1: 1"),
        ([0.5, np.inf], [0.5, np.inf], "regression", "no numbers: 1"),
        ([[0.5, 0.4], [0.5, 0.5]], [[0.5, 0.4], [0.5, 0.5]], "multiclass", "sum of probabilities: 0.1"),
        ([[0.5, 0.5]], [[0.5, 0.5]], "multiclass", "beside the signature: 2"),
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], "binary", "beside the signature: 1"),
    ],
)
def test_answer_that_is_not_what_the_signature_says_has_a_number_out_of_bounds(
    scores: list[float], again: list[float], kind: str, said: str
) -> None:
    """Two rows were asked about."""
    answer, second = np.array(scores), np.array(again)
    outputs = [{}] * (2 if kind == "multiclass" else 1)
    measured = measure(answer, second) | measure_table(
        answer, 2, {"outputs": outputs, "target": {"kind": kind}}
    )
    trial = Trial(
        model="m", input_example="x", said="2 rows", scores="s", measured=measured, environment=environment()
    )
    assert said in "; ".join(trial.problems(kind))
