"""A change of an interface says which part of the version must rise: what breaks others is refused."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.authoring import interfaces
from trainwright.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PORTS = {
    "needed": {"type": "STRING", "required": True},
    "times": {"type": "NUMBER_INTEGER", "required": False, "default": 2.0},
    "rows": {"type": "system.Dataset", "required": True},
}
GREET = {"sha256": "a" * 64, "inputs": PORTS, "outputs": {"page": {"type": "system.HTML", "required": True}}}
Edit = Callable[[dict[str, Any]], object]


def index(component: dict[str, Any], version: str = "1.2.3") -> dict[str, Any]:
    return {"schema_version": 1, "version": version, "components": {"greet": component}, "pipelines": {}}


CASES: dict[str, tuple[str, str, Edit]] = {
    "nothing": ("none", "", lambda greet: greet),
    "another body": ("patch", "other content", lambda greet: greet.update(sha256="b" * 64)),
    "an input less": ("major", "input times is gone", lambda greet: greet["inputs"].pop("times")),
    "an optional input more": (
        "minor",
        "input more is new",
        lambda greet: greet["inputs"].update(more={"type": "STRING", "required": False}),
    ),
    "a required input more": (
        "major",
        "input more is new, and must be given",
        lambda greet: greet["inputs"].update(more={"type": "STRING", "required": True}),
    ),
    "another type": (
        "major",
        "input needed is BOOLEAN, it was STRING",
        lambda greet: greet["inputs"]["needed"].update(type="BOOLEAN"),
    ),
    "another artifact": (
        "major",
        "input rows is system.Model, it was system.Dataset",
        lambda greet: greet["inputs"]["rows"].update(type="system.Model"),
    ),
    "an input that must be given": (
        "major",
        "input times must be given now",
        lambda greet: greet["inputs"].update(times={"type": "NUMBER_INTEGER", "required": True}),
    ),
    "an input that need not be given": (
        "minor",
        "input needed may be left out now",
        lambda greet: greet["inputs"]["needed"].update(required=False, default=""),
    ),
    "another default": (
        "minor",
        "input times defaults to 3.0, it was 2.0",
        lambda greet: greet["inputs"]["times"].update(default=3.0),
    ),
    "an output less": ("major", "output page is gone", lambda greet: greet["outputs"].clear()),
    "an output more": (
        "minor",
        "output more is new",
        lambda greet: greet["outputs"].update(more={"type": "STRING", "required": True}),
    ),
    "an output of another type": (
        "major",
        "output page is system.Markdown, it was system.HTML",
        lambda greet: greet["outputs"]["page"].update(type="system.Markdown"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_change_has_its_level(case: str) -> None:
    level, what, edit = CASES[case]
    greet = copy.deepcopy(GREET)
    edit(greet)
    found = interfaces.changes(index(copy.deepcopy(GREET)), index(greet))
    assert interfaces.level(found) == level
    assert [change.what.startswith(what) for change in found] == [True] * (level != "none")


def test_a_component_less_breaks_others_and_one_more_does_not() -> None:
    old, new = index(GREET), index(GREET)
    new["components"] = {"welcome": GREET}
    found = interfaces.changes(old, new)
    assert [(change.level, change.name) for change in found] == [("major", "greet"), ("minor", "welcome")]


@pytest.mark.parametrize(
    ("version", "level", "least"),
    [
        ("1.2.3", "major", "2.0.0"),
        ("1.2.3", "minor", "1.3.0"),
        ("1.2.3", "patch", "1.2.4"),
        ("1.2.3", "none", "1.2.3"),
        ("0.2.3", "major", "0.3.0"),
        ("0.2.3", "minor", "0.2.4"),
        ("0.2.3", "patch", "0.2.4"),
    ],
)
def test_the_version_rises_as_semantic_versioning_has_it(
    version: str, level: interfaces.Level, least: str
) -> None:
    assert interfaces.smallest(version, level) == least


def test_a_version_that_has_risen_by_too_little_is_refused() -> None:
    broken = copy.deepcopy(GREET)
    broken["inputs"].pop("times")  # type: ignore[attr-defined]
    old = index(GREET, "1.2.3")
    for version in ("1.2.3", "1.2.4", "1.9.0"):
        new = index(broken, version)
        with pytest.raises(InputError, match=r"it must be 2\.0\.0 at least"):
            interfaces.require_version(old, new, interfaces.changes(old, new))
    new = index(broken, "2.0.0")
    interfaces.require_version(old, new, interfaces.changes(old, new))


def test_compiled_yaml_without_an_index_is_compared_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "components"
    folder.mkdir()
    text = (ROOT / "compiled" / "components" / "validate.yaml").read_text()
    (folder / "validate.yaml").write_text(text)
    read = interfaces.read(tmp_path)
    whole = interfaces.read(ROOT / "compiled")
    same = {**whole, "components": {"validate": whole["components"]["validate"]}, "pipelines": {}}
    assert interfaces.changes(same, read) == []
    (folder / "validate.yaml").write_text(text.replace("parameterType: STRING", "parameterType: BOOLEAN"))
    assert interfaces.level(interfaces.changes(same, interfaces.read(tmp_path))) == "major"


def cut(root: Path, *versions: str) -> Path:
    """Lay out a repository in which versions were released with ``greet`` as it is above."""
    (root / "compiled" / "released").mkdir(parents=True)
    for version in versions:
        (root / "compiled" / "released" / f"{version}.json").write_text(json.dumps(index(GREET, version)))
    return root / "compiled"


def test_the_last_release_is_the_highest_version_and_before_the_first_there_is_none(tmp_path: Path) -> None:
    assert interfaces.released(tmp_path) is None
    last = interfaces.released(cut(tmp_path, "0.2.0", "0.10.0", "0.9.1"))
    assert last
    assert last.name == "0.10.0.json"


def test_a_released_index_under_another_name_is_refused(tmp_path: Path) -> None:
    kept = cut(tmp_path, "0.1.0") / "released"
    (kept / "0.1.0.json").rename(kept / "0.3.0.json")
    with pytest.raises(InputError, match=r"the index of version '0\.1\.0'"):
        interfaces.released(tmp_path / "compiled")


@pytest.mark.parametrize(
    ("case", "refused", "taken"),
    [
        ("nothing", (), ("0.1.0", "0.1.1")),
        ("another body", ("0.1.0",), ("0.1.1", "0.2.0")),
        ("an optional input more", ("0.1.0",), ("0.1.1",)),
        ("another default", ("0.1.0",), ("0.1.1",)),
        ("an input less", ("0.1.0", "0.1.7"), ("0.2.0", "1.0.0")),
        ("another type", ("0.1.0", "0.1.7"), ("0.2.0",)),
        ("a required input more", ("0.1.0", "0.1.7"), ("0.2.0",)),
        ("an output less", ("0.1.0", "0.1.7"), ("0.2.0",)),
    ],
)
def test_the_check_holds_the_next_version_to_the_last_release_without_a_tag(
    tmp_path: Path, case: str, refused: tuple[str, ...], taken: tuple[str, ...]
) -> None:
    folder = cut(tmp_path, "0.1.0")
    greet = copy.deepcopy(GREET)
    CASES[case][2](greet)
    for version in (*refused, *taken):
        (folder / "index.json").write_text(json.dumps(index(greet, version)))
        assert check(folder) == (10 if version in refused else 0), version


def check(folder: Path) -> int:
    """Run what `make interface-check` runs, on compiled YAML that lies elsewhere."""
    from typer.testing import CliRunner

    from trainwright.authoring import catalog
    from trainwright.cli import app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "folder", lambda: folder)
        return CliRunner().invoke(app.app, ["interface-diff"]).exit_code


def test_a_renamed_input_breaks_others() -> None:
    greet = copy.deepcopy(GREET)
    ports = greet["inputs"]
    assert isinstance(ports, dict)
    greet["inputs"] = {{"rows": "table"}.get(name, name): port for name, port in ports.items()}
    found = interfaces.changes(index(copy.deepcopy(GREET)), index(greet))
    assert [change.what for change in found] == [
        "input rows is gone",
        "input table is new, and must be given",
    ]
    assert interfaces.level(found) == "major"


def test_a_version_that_the_changelog_calls_released_has_its_interface_kept() -> None:
    """Releasing is taking "(unreleased)" away, which asks for `make release`, and the other way round."""
    headings = re.findall(r"^## (\d+\.\d+\.\d+)(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings
    out = {version for version, said in headings if "unreleased" not in said}
    assert out == {path.stem for path in (ROOT / "compiled" / "released").glob("*.json")}
    assert headings[0][0] == trainwright.__version__, "the first heading is of the version that is made"


def test_ci_checks_the_interface() -> None:
    targets = dict(re.findall(r"^([\w-]+):([^#\n]*)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert "interface-check" in targets["check"].split()
    assert "make check" in (ROOT / ".ci" / "run").read_text()


def test_a_release_keeps_the_index_and_is_made_once(tmp_path: Path) -> None:
    for name in ("Makefile", "trainwright/__init__.py", "compiled/index.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    command = ["make", "-o", "compile-check", "-o", "interface-check", "release", "BIN=bin"]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    kept = tmp_path / "compiled" / "released" / f"{trainwright.__version__}.json"
    assert kept.read_bytes() == (ROOT / "compiled" / "index.json").read_bytes()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "is out already" in again.stderr


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no index"):
        interfaces.read(tmp_path / "none.json")
    for text in ("[", "[]", "{}", '{"schema_version": 2, "components": {}, "pipelines": {}}'):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(InputError, match="not an index"):
            interfaces.read(tmp_path)


def test_ci_is_refused_by_the_command(tmp_path: Path) -> None:
    whole = interfaces.read(ROOT / "compiled")
    whole["components"]["validate"]["inputs"]["gone"] = {"type": "STRING", "required": False}
    (tmp_path / "index.json").write_text(json.dumps(whole))
    start = "from trainwright.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, "interface-diff", str(tmp_path), "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 10
    first, *_, last = (json.loads(line) for line in done.stdout.splitlines())
    assert first == {"level": "major", "name": "validate", "what": "input gone is gone"}
    assert "it must be" in last["what"]
