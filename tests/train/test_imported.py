"""A model of the user's own: found by its path, looked at before it is called, trained like any other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from tests.train.problems import flights, run, write
from trainwright import tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment import Imported, read_network
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.architectures.imported import build, code_digest, require_exportable
from trainwright.transforms import Number, Transforms

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_model"
PATH = "own_model.wide_and_deep:WideAndDeep"
HERE = "tests.train.test_imported"
INPUTS = Inputs(
    Target("binary", (0.5, 0.5)),
    Transforms(numbers=(Number(name="n", mean=0, scale=1, indicator=False),), times=(), categories=()),
)


class Sound:
    """A model with nothing wrong."""

    def __init__(self, width: int = 1) -> None:
        self.width = width

    def build(self, inputs: Inputs) -> nn.Module:
        assert inputs.transforms is not None

        class Line(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.line = nn.Linear(1, 1)
                self.dropout = nn.Dropout(0.5)

            def forward(self, numeric: Tensor, categories: Tensor) -> Tensor:  # noqa: ARG002
                return self.dropout(self.line(numeric)).squeeze(1)  # type: ignore[no-any-return]

        return Line()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square()

    def predict(self, output: Tensor) -> Tensor:
        return output.double().sigmoid()


class WithoutLoss:
    def build(self, inputs: Inputs) -> nn.Module: ...
    def predict(self, output: Tensor) -> Tensor: ...


class OtherArguments(Sound):
    def loss(self, output: Tensor) -> Tensor: ...  # type: ignore[override]


class MeanLoss(Sound):
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return super().loss(output, target).mean()


class SingleScores(Sound):
    def predict(self, output: Tensor) -> Tensor:
        return output.sigmoid()


class Eigen(Sound):
    """With an operator that is not on the list of those that a program may have."""

    def predict(self, output: Tensor) -> Tensor:
        return output.double().sigmoid() + 0 * torch.linalg.eigvalsh(torch.eye(2)).sum()


class Branching(Sound):
    """With a branch that depends on values."""

    def predict(self, output: Tensor) -> Tensor:
        return output.double().sigmoid() if output.sum() > 0 else output.double()


class Failing(Sound):
    def build(self, inputs: Inputs) -> nn.Module:  # noqa: ARG002
        raise RuntimeError("no weights today")


def called(**_: Any) -> None:
    """Something that must never be called for being named in an experiment file."""
    raise AssertionError("it was called")


def imported(name: str, **options: Any) -> Imported:
    return Imported(path=f"{HERE}:{name}", options=options)


@pytest.mark.covers("B54")
def test_failed_import_names_module_and_sys_path() -> None:
    with pytest.raises(InputError) as caught:
        make(Imported(path="no_such_package.model:Net"))
    assert "'no_such_package.model' cannot be imported: ModuleNotFoundError" in caught.value.what
    assert f"sys.path begins with {sys.path[0]!r}, {sys.path[1]!r}" in caught.value.what
    assert caught.value.where == "network.path"
    assert caught.value.code == 10


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nothing", "has no 'Nothing'"),
        ("called", "is a function, not a class"),
        ("WithoutLoss", "has no method loss; a model has build, loss and predict"),
        ("OtherArguments", r"OtherArguments.loss does not take \(self, output, target\)"),
    ],
)
def test_path_that_is_no_architecture_is_rejected_uncalled(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(imported(name))


@pytest.mark.parametrize("path", ["os:system", "subprocess:Popen", "builtins:eval"])
def test_named_callable_is_never_called(path: str, tmp_path: Path) -> None:
    options = {"command": f"touch {tmp_path}/called", "args": ["touch", f"{tmp_path}/called"]}
    with pytest.raises(InputError, match=r"not a class|has no method build"):
        make(Imported(path=path, options=options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["model", "a b:Net", "package.module:Net()", "../x:Net", ":Net"])
def test_malformed_path_is_rejected_with_the_section(path: str) -> None:
    with pytest.raises(InputError, match=r"network.path|path"):
        read_network({"kind": "module", "path": path})


def test_unknown_options_are_rejected_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        make(imported("Sound", depth=3))
    assert "cannot be created with options ['depth']" in caught.value.what
    assert caught.value.hint == "It takes (width: int = 1) -> None."
    assert caught.value.where == "network.options"
    assert vars(make(imported("Sound", width=3))) == {"width": 3}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Failing", "build of the model fails: RuntimeError: no weights today"),
        ("MeanLoss", r"loss of the model returns torch.float32 \(\) for 3 rows, not torch.float32 \(3,\)"),
        ("SingleScores", r"predict of the model returns torch.float32 \(3,\) for 3 rows, not torch.float64"),
    ],
)
def test_wrong_method_is_reported_before_training(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        build(make(imported(name)), INPUTS, torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Eigen", r"after its training: operator torch\.ops\.aten\.linalg_eigvalsh\.default of node"),
        ("Branching", "torch.export cannot export the model: "),
    ],
)
def test_model_that_no_registry_takes_is_reported_before_training(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        require_exportable(make(imported(name)), INPUTS)
    assert error.value.where == "network.path"
    assert "docs/" in error.value.hint


OWN = """
import torch
from own_model.wide_and_deep import WideAndDeep

class Eigen(WideAndDeep):
    def predict(self, output):
        return super().predict(output) + 0 * torch.linalg.eigvalsh(torch.eye(2)).sum()
"""


def test_training_does_not_begin_with_a_model_that_no_registry_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_eigen.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLE}:{tmp_path}")
    write(tmp_path / "set", {"train": flights(300, 0), "evaluate": flights(100, 1)})
    network = {"kind": "module", "path": "own_eigen:Eigen"}
    with pytest.raises(TrainwrightError, match="eigvalsh") as error:
        run_own(tmp_path / "set", tmp_path / "one", network, {"epochs": 1}, resources={"processes": 1})
    assert error.value.code == 10
    assert not list((tmp_path / "one").rglob("program.pt2"))


def test_check_draws_no_random_number_and_leaves_training_mode() -> None:
    found = []
    for check in (False, True):
        torch.manual_seed(0)
        architecture = make(imported("Sound"))
        module = build(architecture, INPUTS, torch.device("cpu")) if check else architecture.build(INPUTS)
        if check:
            require_exportable(architecture, INPUTS)
        assert module.training
        found.append([*(value.clone() for value in module.state_dict().values()), torch.rand(3)])
    for left, right in zip(*found, strict=True):
        assert torch.equal(left, right)


def test_the_digest_of_the_code_is_that_of_its_package(tmp_path: Path, monkeypatch: Any) -> None:
    digests = set()
    for name, text in (("one", "x = 1\n"), ("two", "x = 1\n"), ("three", "x = 2\n")):
        package = tmp_path / name / f"package_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "model.py").write_text(text)
        monkeypatch.syspath_prepend(str(package.parent))
        digests.add(code_digest(Imported(path=f"package_{name}.model:Net"))["code"])
    assert len(digests) == 2


def test_the_example_learns_the_known_odds_and_its_folder_needs_its_package_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    write(tmp_path / "set", {"train": flights(3000, 0), "evaluate": flights(500, 1)})
    training = {"epochs": 4, "objective": {"threshold": "f1"}}
    whole = {"kind": "module", "path": PATH, "options": {"hidden": 16, "width": 4}}
    made = run_own(tmp_path / "set", tmp_path / "one", whole, training)
    model = Model.read(made.model)
    assert model.kind == "module"
    assert len(model.parents["code"]) == 64
    judged = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    label, score = judged["late"].to_numpy(), judged["score"].to_numpy()
    assert -np.mean(np.log(np.where(label == 1, score, 1 - score))) < 0.54
    assert loaded_elsewhere(made.model, judged, tmp_path) == score.tobytes()
    assert f"The module `{PATH}` over 4 columns" in (made.model / "README.md").read_text()


def run_own(
    folder: Path, place: Path, network: dict[str, Any], training: dict[str, Any], **sections: Any
) -> Any:
    """Train; what the usual network has and this one has not is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.train.problems.NETWORK", {})
        return run(folder, place, network=network, training=training, **sections)


def loaded_elsewhere(model: Path, judged: pa.Table, place: Path) -> bytes:
    """Score the rows in a process that does not find the user's package."""
    columns = {name: judged[name].to_pylist() for name in ("wind", "noise", "carrier", "holiday")}
    (place / "rows.json").write_text(json.dumps(columns))
    code = (
        "import importlib.util, json, sys, pathlib; from trainwright import serving;"
        "assert importlib.util.find_spec('own_model') is None;"
        "scores = serving.load(pathlib.Path(sys.argv[1])).predict(json.loads(open(sys.argv[2]).read()));"
        "sys.stdout.buffer.write(scores.tobytes())"
    )
    plain = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(model), str(place / "rows.json")]
    return subprocess.run(command, env=plain, cwd=place, capture_output=True, check=True).stdout
