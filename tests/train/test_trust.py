"""A model's folder that someone changed: nothing of it is run, and it is rejected with exit code 12."""

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.odd import TARGETS, Made, copied, forged, untrained
from trainwright import serving
from trainwright.artifacts import Model
from trainwright.errors import InputError, ModelRefused
from trainwright.serving.program import read_program


def rewritten(path: Path, change: Callable[[dict[str, bytes], str], None]) -> None:
    """Write an archive anew after a change of its members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members, next(iter(members)).partition("/")[0])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


class Run:
    """Pickles to a call that leaves a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


def torch_pickled(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Run(mark), buffer)
    return buffer.getvalue()


Attack = Callable[[dict[str, bytes], str], None]


def attacks(mark: Path) -> dict[str, tuple[Attack, str]]:  # noqa: C901, PLR0915 - a function for each
    """Ways to make torch run something when it reads or runs a program, and the message of each."""

    def pickled_weight(members: dict[str, bytes], root: str) -> None:
        name = f"{root}/data/weights/model_weights_config.json"
        config = json.loads(members[name])
        entry = next(iter(config["config"].values()))
        entry["use_pickle"] = True
        members[name] = json.dumps(config).encode()
        members[f"{root}/data/weights/{entry['path_name']}"] = torch_pickled(mark)

    def legacy_weights(members: dict[str, bytes], root: str) -> None:
        members[f"{root}/data/weights/model.pt"] = torch_pickled(mark)

    def opaque_constant(members: dict[str, bytes], root: str) -> None:
        name = f"{root}/data/constants/model_constants_config.json"
        config = {"config": {"x": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}}}
        members[name] = json.dumps(config).encode()
        members[f"{root}/data/constants/opaque_obj_0"] = pickle.dumps(Run(mark))

    def sample_inputs(members: dict[str, bytes], root: str) -> None:
        members[f"{root}/data/sample_inputs/model.pt"] = torch_pickled(mark)

    def library(members: dict[str, bytes], root: str) -> None:
        members[f"{root}/data/aotinductor/model/model.so"] = b"\x7fELF"

    def guard(members: dict[str, bytes], root: str) -> None:
        model = json.loads(members[f"{root}/models/model.json"])
        model["guards_code"] = [f"__import__('pathlib').Path({str(mark)!r}).touch() or True"]
        members[f"{root}/models/model.json"] = json.dumps(model).encode()

    def expression(members: dict[str, bytes], root: str, form: str = "{}") -> None:
        text = members[f"{root}/models/model.json"].decode()
        code = json.dumps(form.format(f"__import__('pathlib').Path({str(mark)!r}).touch()"))
        members[f"{root}/models/model.json"] = re.sub(
            r'("expr_str": )"(?:[^"\\]|\\.)*"', lambda found: found[1] + code, text
        ).encode()

    def escaped_expression(members: dict[str, bytes], root: str) -> None:
        hidden = "".join(
            f"\\{ord(letter):03o}" for letter in f"__import__('pathlib').Path({str(mark)!r}).touch()"
        )
        expression(members, root, f"Max('{hidden}', 1)".replace("{", "{{"))

    def edited(members: dict[str, bytes], root: str, change: Callable[[Any], None]) -> None:
        model = json.loads(members[f"{root}/models/model.json"])
        change(model)
        members[f"{root}/models/model.json"] = json.dumps(model).encode()

    def code_in_a_name(members: dict[str, bytes], root: str) -> None:
        name = json.dumps(f"__import__('pathlib').Path({str(mark)!r}).touch(); numbers")
        text = members[f"{root}/models/model.json"].decode()
        members[f"{root}/models/model.json"] = (
            text.replace('"name": "numbers"', f'"name": {name}')
            .replace('"numbers": {', f"{name}: {{")
            .encode()
        )

    def imported_module(members: dict[str, bytes], root: str) -> None:
        factory = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []}
        child = {"type": "collections.defaultdict", "context": json.dumps(factory), "children_spec": []}
        edited(members, root, lambda model: outputs(model).update(out_spec=json.dumps([1, child])))

    def imported_enum(members: dict[str, bytes], root: str) -> None:
        context = json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "x"}])
        child = {"type": "builtins.dict", "context": context, "children_spec": []}
        edited(members, root, lambda model: outputs(model).update(out_spec=json.dumps([1, child])))

    def outputs(model: Any) -> dict[str, str]:
        found: dict[str, str] = model["graph_module"]["module_call_graph"][0]["signature"]
        return found

    def called(target: str) -> Callable[[dict[str, bytes], str], None]:
        def change(model: Any) -> None:
            model["graph_module"]["graph"]["nodes"][0]["target"] = target

        return lambda members, root: edited(members, root, change)

    def graph_in_a_graph(members: dict[str, bytes], root: str) -> None:
        def change(model: Any) -> None:
            graph = model["graph_module"]["graph"]
            argument = {"name": "body", "arg": {"as_graph": {"name": "body", "graph": graph}}}
            model["graph_module"]["graph"] = graph | {"nodes": [*graph["nodes"]]}
            model["graph_module"]["graph"]["nodes"][0]["inputs"].append(json.loads(json.dumps(argument)))

        edited(members, root, change)

    def endless_power(members: dict[str, bytes], root: str) -> None:
        edited(members, root, lambda model: model["guards_code"].append("9**9**9**9 == 1"))

    def endless_symbols(members: dict[str, bytes], root: str) -> None:
        def change(model: Any) -> None:
            model["range_constraints"]["u999999999999"] = {"min_val": 0, "max_val": None}

        edited(members, root, change)

    def tensor_without_bytes(members: dict[str, bytes], root: str) -> None:
        name = f"{root}/data/weights/model_weights_config.json"
        config = json.loads(members[name])
        entry = next(iter(config["config"].values()))
        entry["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}, {"as_int": 1}]
        members[name] = json.dumps(config).encode()
        members[f"{root}/data/weights/{entry['path_name']}"] = b""

    def above_the_folder(members: dict[str, bytes], root: str) -> None:
        members[f"{root}/../../{mark.name}"] = b""

    foreign = "the program holds what does not belong in one"
    operator = "operator {} of node 't' is not on the list of allowed operators"
    targets = {
        "file_operator": "torch.ops.aten.from_file.default",
        "any_function": "torch.load",
        "other_namespace": "torch.ops.quantized.linear.default",
        "loop": "torch.ops.higher_order.while_loop",
        "output_operator": "torch.ops.aten.add.out",
        "memory_operator": "torch.ops.aten.as_strided.default",
        "random_operator": "torch.ops.aten.bernoulli.default",
    }
    return {
        "pickled_weight": (pickled_weight, "tensors of the program are pickled"),
        "legacy_weights": (legacy_weights, foreign),
        "opaque_constant": (opaque_constant, foreign),
        "sample_inputs": (sample_inputs, "the program holds sample inputs, which torch would unpickle"),
        "library": (library, foreign),
        "above_the_folder": (above_the_folder, foreign),
        "guard": (guard, "the program has an expression that names ['__import__'"),
        "expression": (expression, "the program has an expression that names ['__import__'"),
        "escaped_expression": (escaped_expression, "the program has an expression that names ['\\\\'"),
        "endless_power": (endless_power, "the program has an expression that names ['**'"),
        "endless_symbols": (endless_symbols, "the program has a size named 'u999999999999'"),
        "tensor_without_bytes": (tensor_without_bytes, "has the shape [1099511627776, 1] and no bytes"),
        "code_in_a_name": (code_in_a_name, "which is no identifier"),
        "imported_module": (imported_module, "takes or returns a 'collections.defaultdict'"),
        "imported_enum": (imported_enum, "takes or returns a structure with"),
        "graph_in_a_graph": (graph_in_a_graph, "the program has a value of kind 'as_graph'"),
        **{name: (called(target), operator.format(target)) for name, target in targets.items()},
    }


ATTACKS = [*attacks(Path())]


@pytest.mark.covers("A1", "A2")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_malicious_program_runs_nothing_even_if_the_manifest_agrees_with_it(
    plain_made: Made, tmp_path: Path, attack: str
) -> None:
    change, message = attacks(tmp_path / "was run")[attack]
    folder, mark = copied(plain_made.folder, tmp_path), tmp_path / "was run"
    rewritten(folder / "program.pt2", change)
    with pytest.raises(InputError, match=r"program\.pt2 is not what the model's manifest says"):
        serving.load(folder)
    forged(folder)
    with pytest.raises(ModelRefused, match=re.escape(message)) as refused:
        serving.load(folder)
    assert (refused.value.code, refused.value.where) == (12, str(folder / "program.pt2"))
    assert not mark.exists()


def test_a_program_that_unfolds_to_any_size_is_refused(plain_made: Made, tmp_path: Path) -> None:
    whole = (plain_made.folder / "program.pt2").read_bytes()
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("program/models/model.json", b" " * (256 << 20))
    with pytest.raises(ModelRefused, match="compressed members, which may unfold to any size"):
        read_program(bomb)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(bomb, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, archive.read(name) + b"\n" * ((65 << 20) * name.endswith("model.json")))
    with pytest.raises(ModelRefused, match="67,108,864 are allowed"):
        read_program(bomb)


@pytest.mark.parametrize("attack", ["pickled_weight", "expression", "escaped_expression"])
@pytest.mark.filterwarnings("ignore")
def test_torch_itself_does_run_what_such_a_program_holds(
    plain_made: Made, tmp_path: Path, attack: str
) -> None:
    """Without this, the test above would show nothing."""
    folder, mark = copied(plain_made.folder, tmp_path), tmp_path / "was run"
    rewritten(folder / "program.pt2", attacks(mark)[attack][0])
    with pytest.raises(Exception, match=""):  # noqa: PT011 - it is run first, and fails then
        torch.export.load(folder / "program.pt2").module()
    assert mark.exists()


def test_a_forged_folder_has_another_digest_than_the_one_that_was_registered(
    plain_made: Made, tmp_path: Path
) -> None:
    folder, digest = copied(plain_made.folder, tmp_path), Model.read(plain_made.folder).digest
    assert serving.load(folder, digest).model.digest == digest
    (folder / "README.md").write_text("better")
    forged(folder)
    serving.load(folder)
    with pytest.raises(InputError, match=f"this is model [0-9a-f]{{12}}, not {digest[:12]}"):
        serving.load(folder, digest)


def test_a_file_cut_short_exchanged_or_outside_the_folder_is_refused(
    plain_made: Made, odd_set: Path, tmp_path: Path
) -> None:
    folder = copied(plain_made.folder, tmp_path)
    whole = (folder / "program.pt2").read_bytes()
    (folder / "program.pt2").write_bytes(whole[:-100])
    with pytest.raises(InputError, match=r"program\.pt2 is not what"):
        serving.load(folder)
    with pytest.raises(InputError, match="this is no exported program"):
        read_program(folder / "program.pt2")
    untrained(odd_set, TARGETS["binary"], "quantile").write(tmp_path / "other")
    (folder / "program.pt2").write_bytes((tmp_path / "other" / "program.pt2").read_bytes())
    with pytest.raises(InputError, match=r"program\.pt2 is not what"):
        serving.load(folder)
    (folder / "program.pt2").unlink()
    with pytest.raises(InputError, match=r"the model has no program\.pt2"):
        serving.load(folder)
    (folder / "program.pt2").symlink_to(plain_made.folder / "program.pt2")
    with pytest.raises(InputError, match=r"program\.pt2 of the model lies outside its folder"):
        serving.load(folder)
    with pytest.raises(InputError, match="there is no program here"):
        read_program(tmp_path / "nothing.pt2")


def test_a_program_that_the_manifest_does_not_name_is_not_read(plain_made: Made, tmp_path: Path) -> None:
    folder = copied(plain_made.folder, tmp_path)
    model = Model.read(folder)
    replace(model, files=tuple(entry for entry in model.files if entry.path != "program.pt2")).write(folder)
    with pytest.raises(InputError, match=r"manifest names no program\.pt2"):
        serving.load(folder)
