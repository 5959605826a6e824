"""A model's folder that someone changed: nothing of it is run, and it is refused."""

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
from trainwright.errors import InputError
from trainwright.serving.program import read_program

REFUSED = "the program h(as|olds)|tensors of the program are pickled"


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


def attacks(mark: Path) -> dict[str, Callable[[dict[str, bytes], str], None]]:
    """Ways to make torch run something when it reads a program."""

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

    found = (pickled_weight, legacy_weights, opaque_constant, sample_inputs, library, guard)
    found = (*found, expression, escaped_expression)
    return {attack.__name__: attack for attack in found}


ATTACKS = [*attacks(Path())]


@pytest.mark.covers("A1")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_malicious_program_runs_nothing_even_if_the_manifest_agrees_with_it(
    plain_made: Made, tmp_path: Path, attack: str
) -> None:
    folder, mark = copied(plain_made.folder, tmp_path), tmp_path / "was run"
    rewritten(folder / "program.pt2", attacks(mark)[attack])
    with pytest.raises(InputError, match=r"program\.pt2 is not what the model's manifest says"):
        serving.load(folder)
    forged(folder)
    with pytest.raises(InputError, match=REFUSED):
        serving.load(folder)
    with pytest.raises(InputError, match=REFUSED):
        read_program(folder / "program.pt2")
    assert not mark.exists()


@pytest.mark.parametrize("attack", ["pickled_weight", "expression", "escaped_expression"])
@pytest.mark.filterwarnings("ignore")
def test_torch_itself_does_run_what_such_a_program_holds(
    plain_made: Made, tmp_path: Path, attack: str
) -> None:
    """Without this, the test above would show nothing."""
    folder, mark = copied(plain_made.folder, tmp_path), tmp_path / "was run"
    rewritten(folder / "program.pt2", attacks(mark)[attack])
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
