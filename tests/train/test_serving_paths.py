"""Training and serving read the same: every transform gives the same bits on both roads."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from tests.train.odd import ODD, with_odd_rows
from tests.train.problems import NETWORK, run, source, write
from trainwright import serving, tables
from trainwright.artifacts import Model, Snapshot
from trainwright.documents import digest_file
from trainwright.experiment import Mlp
from trainwright.serving import Predictor
from trainwright.serving.columns import to_table, to_values
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.feeding.rows import encode, fit
from trainwright.train.process_group import Ranks

PARENTS = {"entities": "e" * 64, "features": "f" * 64, "features.weather": "a" * 64}


@pytest.fixture(scope="module", params=["standard", "quantile"])
def written_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, str]:
    """A training set whose training rows end with odd ones, a model of it, and how numbers were scaled."""
    folder = tmp_path_factory.mktemp(request.param)
    splits = {"train": with_odd_rows(900, 1), "evaluate": with_odd_rows(300, 2)}
    snapshot = write(folder / "set", splits)
    dataclasses.replace(snapshot, parents=PARENTS).write(folder / "set")
    scaling = {
        "network": {"scaling": request.param},
        "training": {"epochs": 1},
        "resources": {"processes": 1},
    }
    return folder / "set", run(folder / "set", folder / "out", **scaling).model, request.param


def by_lists(table: pa.Table, predictor: Predictor) -> dict[str, list[object]]:
    """The rows as a caller of the service writes them: plain lists."""
    return {name: table[name].to_pylist() for name in predictor.transforms.inputs}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch before 2.13, as it reads
def test_what_is_learned_from_is_what_is_served_to_the_bit(
    written_model: tuple[Path, Path, str], alone: Ranks, tmp_path: Path
) -> None:
    folder, model, scaling = written_model
    network = Mlp(**NETWORK | {"scaling": scaling})
    transforms, labels = fit(source(folder), network, alone)
    learned = encode(source(folder), transforms, labels, tmp_path / "encoded", alone).take(
        np.arange(sum(part.rows for part in labels))
    )
    predictor = serving.load(model)
    assert predictor.transforms.digest == transforms.digest
    assert bool(transforms.ranked) == (scaling == "quantile")
    rows = tables.read_split(folder, Snapshot.read(folder), "train")
    rows = rows.filter(rows["late"].is_valid())
    raw = transforms.raw(to_values(to_table(by_lists(rows, predictor)), transforms.inputs))
    exported = torch.export.load(model / "program.pt2")
    tensors = [
        torch.from_numpy(np.ascontiguousarray(part)) for part in (raw.numbers, raw.times, raw.categories)
    ]
    served = [part.numpy() for part in encoded_by(exported, tensors)]
    assert learned.inputs[0].numpy().tobytes() == served[0].tobytes()
    assert np.array_equal(learned.inputs[1].numpy(), served[1])
    assert len(served[0]) - len(ODD["wind"]) > 800


def encoded_by(program: torch.export.ExportedProgram, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the network inside an exported program is given: the last values that the encoder's steps make."""
    module = program.module()
    kept: dict[str, torch.Tensor] = {}

    class Keeping(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> object:
            result = super().run_node(node)
            stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
            if any(path.endswith("encoder") for path in stack):
                kept[
                    "numeric" if isinstance(result, torch.Tensor) and result.is_floating_point() else "codes"
                ] = result
            return result

    Keeping(module).run(*tensors)
    return [kept["numeric"], kept["codes"]]


def test_the_exported_program_scores_odd_rows_as_the_trained_network_does(
    written_model: tuple[Path, Path, str],
) -> None:
    """Another process gives the same bits: tests/train/test_program.py."""
    folder, model, scaling = written_model
    predictor = serving.load(model)
    architecture = make(Mlp(**NETWORK | {"scaling": scaling}))
    network = architecture.build(Inputs(Target("binary", (0.5, 0.5)), predictor.transforms)).eval()
    network.load_state_dict(load_file(model / "weights.safetensors"))
    rows = tables.read_split(folder, Snapshot.read(folder), "evaluate")
    encoded = predictor.transforms.encode(to_values(rows, predictor.transforms.inputs))
    with torch.inference_mode():
        output = network(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.categories))
        trained = architecture.predict(output).numpy()
    assert np.isfinite(trained).all()
    assert trained.tobytes() == predictor.predict(by_lists(rows, predictor)).tobytes()


def test_a_model_names_its_transforms_and_what_its_features_came_from(
    written_model: tuple[Path, Path, str],
) -> None:
    _, model, _ = written_model
    predictor, manifest = serving.load(model), Model.read(model)
    assert manifest.parents == PARENTS | {
        "training_set": manifest.training_data,
        "transforms": predictor.transforms.digest,
    }
    saved = {entry.path: entry.sha256 for entry in manifest.files}
    assert saved["transforms.json"] == digest_file(model / "transforms.json")
    assert json.loads((model / "transforms.json").read_text())["schema_version"] == 1
