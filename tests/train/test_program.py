"""The exported program: raw columns to scores in one file, which needs nothing else."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

from tests.train.odd import METRICS, TARGETS, Made, as_learned, plain, untrained
from tests.train.problems import TRAINING, resolved
from trainwright import serving, tables
from trainwright.artifacts import Model
from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, Mlp
from trainwright.serving.columns import to_values
from trainwright.serving.program import ROWS
from trainwright.train.architectures import Architecture, Inputs, Target, make
from trainwright.train.feeding.tokens import TokenSource
from trainwright.train.model_folder import FittedLanguageModel
from trainwright.transforms import Transforms

DOCS = Path(__file__).parents[2] / "docs" / "model-folder.md"


def test_the_program_scores_odd_rows_as_the_module_does_on_rows_encoded_for_training(made: Made) -> None:
    scores = made.program.predict(made.rows)
    assert np.isfinite(scores).all()
    assert scores.tobytes() == as_learned(made)
    assert serving.load(made.folder).predict(made.rows).tobytes() == scores.tobytes()


@pytest.mark.parametrize("made", ["multiclass"], indirect=True)
def test_the_recipe_in_the_docs_gives_the_same_bits_in_a_process_without_trainwright(
    made: Made, tmp_path: Path
) -> None:
    (recipe,) = re.findall(r"<!-- recipe -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "rows.json").write_text(json.dumps(plain(made.rows, made.trained.transforms)))
    (tmp_path / "program.pt2").write_bytes((made.folder / "program.pt2").read_bytes())
    code = (
        "import json, sys; sys.modules['trainwright'] = None  # any import of it fails\n"
        "rows = json.load(open('rows.json'))\n"
        f"{recipe}\n"
        "open('scores.bin', 'wb').write(scores.detach().numpy().tobytes())\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "scores.bin").read_bytes() == made.program.predict(made.rows).tobytes()


@pytest.mark.parametrize("rows", [0, 1, 2, 3, ROWS, ROWS + 1])
def test_any_number_of_rows_is_scored(plain_made: Made, rows: int) -> None:
    program, table = plain_made.program, plain_made.rows
    taken = table.take(np.arange(rows) % table.num_rows)
    scores = program.predict(taken)
    assert scores.shape == (rows,)
    np.testing.assert_allclose(scores, np.resize(program.predict(table), rows), rtol=1e-5)


def test_columns_may_lie_in_memory_in_any_way(plain_made: Made) -> None:
    transforms, program = plain_made.trained.transforms, plain_made.program
    raw = transforms.raw(to_values(plain_made.rows, transforms.inputs))
    arrays = (raw.numbers, raw.times, raw.categories)
    by_row = [torch.from_numpy(np.ascontiguousarray(entry)) for entry in arrays]
    by_column = [torch.from_numpy(np.asfortranarray(entry)) for entry in arrays]
    spread = [torch.from_numpy(np.repeat(entry, 2, axis=0))[::2] for entry in arrays]
    with torch.inference_mode():
        found = {program._scorer(*tensors).numpy().tobytes() for tensors in (by_row, by_column, spread)}
    assert found == {program.predict(plain_made.rows).tobytes()}


def test_a_column_may_come_in_any_of_arrows_forms(plain_made: Made) -> None:
    program, rows = plain_made.program, plain_made.rows
    expected = program.predict(rows)
    carrier = rows["carrier"].combine_chunks()
    with_gaps = pa.DictionaryArray.from_arrays(
        carrier.dictionary_encode().indices, carrier.dictionary_encode().dictionary
    )
    hollow = pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1] + [1] * (len(carrier) - 3), pa.int8()), pa.array(["c1", None])
    )
    forms = [carrier.cast(pa.large_string()), carrier.dictionary_encode(), with_gaps]
    forms += [carrier.cast(pa.large_string()).dictionary_encode(), carrier.cast(pa.string_view())]
    at = rows.column_names.index("carrier")
    for form in forms:
        assert program.predict(rows.set_column(at, "carrier", form)).tobytes() == expected.tobytes(), (
            form.type
        )
    decoded = rows.set_column(at, "carrier", pa.array(["c1"] + [None] * (len(carrier) - 1)))
    assert np.array_equal(program.predict(rows.set_column(at, "carrier", hollow)), program.predict(decoded))
    texts = rows.set_column(rows.column_names.index("holiday"), "holiday", rows["holiday"].cast(pa.string()))
    assert program.predict(texts).tobytes() == expected.tobytes()


def test_texts_that_are_none_and_columns_that_do_not_fit_are_typed_errors(plain_made: Made) -> None:
    rows = plain(plain_made.rows.slice(0, 2), plain_made.trained.transforms)
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.int32([0, 1, 2])), pa.py_buffer(b"\xff\xfe")]
    )
    for column, message in [(broken, "'carrier'"), (["\ud800", "a"], "not a table"), (["a"], "not a table")]:
        with pytest.raises(InputError, match=message):
            plain_made.program.predict(rows | {"carrier": column})


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch before 2.13, as it reads
def test_weights_and_program_hold_the_same_numbers_and_go_back_into_a_new_module(made: Made) -> None:
    weights = load_file(made.folder / "weights.safetensors")
    held = torch.export.load(made.folder / "program.pt2").state_dict
    inside = {name.removeprefix("network."): value for name, value in held.items() if "network." in name}
    assert weights.keys() == inside.keys() == made.trained.module.state_dict().keys()
    assert all(torch.equal(weights[name], inside[name]) for name in weights)
    transforms = Transforms.read(made.folder)
    target = TARGETS.get(made.trained.outputs.kind, TARGETS["binary"])
    again = make(Mlp(**made.trained.config["network"])).build(Inputs(target, transforms))
    assert load_model(again, str(made.folder / "weights.safetensors")) == (set(), [])
    assert as_learned(replace(made, trained=replace(made.trained, module=again.eval()))) == as_learned(made)


def test_the_same_network_gives_the_same_bytes_wherever_it_is_written(
    plain_made: Made, odd_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = untrained(odd_set, TARGETS["binary"]).write(tmp_path / "elsewhere")
    assert again.digest == Model.read(plain_made.folder).digest


def test_transforms_and_signature_in_the_program_are_those_of_the_folder(made: Made) -> None:
    program = made.program
    assert program.transforms.digest == Transforms.read(made.folder).digest
    assert program.signature == json.loads((made.folder / "signature.json").read_text())
    names = [name for entry in program.signature["program"]["inputs"] for name in entry["columns"]]
    assert names == [entry["name"] for entry in program.signature["inputs"]]


def test_weights_of_half_precision_are_saved_as_the_float32_that_they_are(
    plain_made: Made, odd_set: Path, tmp_path: Path
) -> None:
    trained = untrained(odd_set, TARGETS["binary"])
    exact = {name: value.bfloat16().float() for name, value in trained.module.state_dict().items()}
    trained.module.bfloat16()
    trained.write(tmp_path / "model")
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    assert all(weights[name].dtype == torch.float32 for name in weights)
    assert all(torch.equal(weights[name], exact[name]) for name in exact)
    assert serving.load(tmp_path / "model").predict(plain_made.rows).tobytes() == as_learned(
        replace(plain_made, trained=trained)
    )


LANGUAGE = {"vocabulary": 11, "context": 8, "width": 8, "layers": 2, "heads": 2}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def language(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, nn.Module, Architecture]:
    folder = tmp_path_factory.mktemp("language")
    tokens = pa.array([[1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 0, 1, 2]], pa.list_(pa.int32()))
    snapshot = tables.write_snapshot(
        folder / "set", {"train": [pa.table({"tokens": tokens})]}, parents={}, roles={}
    )
    network = LanguageModel(**LANGUAGE, tied=request.param)
    architecture = make(network)
    torch.manual_seed(0)
    module = architecture.build(Inputs(Target("tokens")))
    config = {
        "network": network.model_dump(mode="json"),
        "training": resolved(**TRAINING).model_dump(mode="json"),
        "processes": 1,
    }
    read = TokenSource(folder / "set", snapshot, "train", network)
    FittedLanguageModel(module, architecture, read, config, METRICS).write(folder / "model")
    return folder / "model", module, architecture


@pytest.mark.parametrize(("rows", "places"), [(0, 8), (1, 1), (1, 8), (2, 3), (5, 7)])
def test_a_language_models_program_takes_any_number_of_rows_and_places(
    language: tuple[Path, nn.Module, Architecture], rows: int, places: int
) -> None:
    folder, module, architecture = language
    tokens = np.random.default_rng(rows).integers(0, 11, (rows, places))
    scores = serving.load_language_model(folder).predict(tokens)
    with torch.inference_mode():
        expected = architecture.predict(module(torch.from_numpy(tokens))).numpy()
    assert scores.shape == (rows, places, 11)
    assert scores.tobytes() == expected.tobytes()
    np.testing.assert_allclose(np.exp(scores).sum(-1), 1, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch before 2.13, as it reads
def test_a_language_models_weights_are_those_of_its_program_and_go_back(
    language: tuple[Path, nn.Module, Architecture],
) -> None:
    folder, module, architecture = language
    torch.manual_seed(9)
    again = architecture.build(Inputs(Target("tokens")))
    load_model(again, str(folder / "weights.safetensors"))
    held = torch.export.load(folder / "program.pt2").state_dict
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
        assert torch.equal(held[f"network.{name}"], value)


def test_tokens_that_a_language_model_cannot_read_are_refused(
    language: tuple[Path, nn.Module, Architecture],
) -> None:
    model = serving.load_language_model(language[0])
    with pytest.raises(InputError, match=r"tokens lie in \[0, 11\]; the vocabulary is 0 to 10"):
        model.predict(np.array([[0, 11]]))
    with pytest.raises(
        InputError, match=r"tokens of shape \(1, 9\); the model takes \(rows, 1 to 8 places\)"
    ):
        model.predict(np.zeros((1, 9), dtype=np.int64))
    with pytest.raises(InputError, match="scores tokens, not rows"):
        serving.load(language[0])


def test_the_example_of_a_language_model_is_one_it_reads(
    language: tuple[Path, nn.Module, Architecture],
) -> None:
    example = json.loads((language[0] / "input_example.json").read_text())
    (tokens,) = example["data"][0]
    assert math.isfinite(serving.load_language_model(language[0]).predict(np.array([tokens])).sum())
