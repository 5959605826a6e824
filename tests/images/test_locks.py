"""The locks: each belongs to its requirements, names no address, and leaves out what no step imports."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.authoring import images
from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(
    path for folder in ("images", "examples", "tests") for path in (ROOT / folder).rglob("*s.lock")
)
LOCKS += [*(ROOT / "images").glob("*.lock"), ROOT / "images" / "torch" / "torch.lock"]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "images" / "lock.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "images", tmp_path / "images")
    for folder in ("tests", "examples/flights", "docs/site"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("requirements.in", "requirements.lock"):
            shutil.copy(ROOT / folder / name, tmp_path / folder)
    return tmp_path


def names(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)(?:\[.*\])?==(\S+)", lock.read_text(), re.MULTILINE))


def test_every_lock_belongs_to_its_requirements() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.covers("A12")
@pytest.mark.parametrize("path", LOCKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_lock_names_no_address_and_hashes_every_package(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(index|extra-index|find-links|trusted)|^-[if]\b| @ ", text, re.MULTILINE)
    packages = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert packages
    assert all("--hash=sha256:" in package for package in packages)


@pytest.mark.parametrize(
    ("path", "edit", "message"),
    [
        ("images/launcher/requirements.in", lambda text: text + "requests\n", "was not resolved from"),
        ("images/tfdv/overrides.txt", lambda text: text + "six<1\n", "was not resolved from"),
        ("images/launcher/requirements.lock", lambda text: text + "six==1.17.0\n", "'six==1.17.0'"),
        (
            "images/kfp.lock",
            lambda text: re.sub(r" \\\n.*", "", text),
            "neither a pinned package nor its hash",
        ),
        ("tests/requirements.lock", lambda text: text + "x @ https://example.org/x.whl\n", "example.org"),
    ],
    ids=["a new requirement", "a new override", "no hash", "no hash left", "an address"],
)
def test_a_lock_that_does_not_hold_is_named(copy: Path, path: str, edit, message: str) -> None:
    (copy / path).write_text(edit((copy / path).read_text()))
    done = check(copy)
    assert done.returncode == 1
    assert message in done.stderr
    assert "make lock" in done.stderr


def test_a_comment_may_change_without_locking_again(copy: Path) -> None:
    with (copy / "images/launcher/requirements.in").open("a") as file:
        file.write("\n# said differently\n")
    assert check(copy).returncode == 0


def test_every_image_has_a_lock_and_every_toolchain_an_image() -> None:
    named = (value for key, value in vars(images).items() if key.isupper() and isinstance(value, str))
    used = {value.split("/")[1].split(":")[0] for value in named}
    assert used == set(TOOLCHAINS)
    assert all(ToolchainEnvironment(toolchain).locks.files[0].exists() for toolchain in TOOLCHAINS)


def test_every_package_that_the_registry_imports_is_a_requirement_of_its_image() -> None:
    imported = set()
    for path in (ROOT / "trainwright" / "registry").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    called = {"mlflow": "mlflow-skinny", "google": "google-auth", "yaml": "pyyaml"}
    packages = {called.get(name, name) for name in imported - sys.stdlib_module_names - {"trainwright"}}
    listed = (ROOT / "images" / "mlflow" / "requirements.in").read_text()
    assert {"cryptography", "google-auth"} <= packages
    assert packages <= set(re.findall(r"^[\w-]+", listed, re.MULTILINE))


def test_what_is_left_out_on_purpose_is_in_no_lock() -> None:
    for path in (ROOT / "images").glob("*/overrides.txt"):
        dropped = set(re.findall(r"^([a-z0-9-]+) ; sys_platform == 'never'", path.read_text(), re.MULTILINE))
        assert dropped
        assert not dropped & names(path.with_name("requirements.lock")).keys()


def test_both_builds_of_torch_are_of_one_version_and_in_a_lock() -> None:
    folder = ROOT / "images" / "torch"
    pinned = re.fullmatch(r"torch==(\S+)\n", (folder / "requirements-gpu.txt").read_text())
    assert pinned
    assert names(folder / "requirements-gpu.lock")["torch"] == pinned[1]
    assert names(folder / "torch.lock") == {"torch": f"{pinned[1]}+cpu"}
    assert "torch" not in names(folder / "requirements.lock")


def test_the_tests_and_the_command_line_agree_on_what_both_hold() -> None:
    command_line = names(ROOT / "images" / "authoring" / "requirements.lock")
    tests = names(ROOT / "tests" / "requirements.lock")
    shared = command_line.keys() & tests.keys()
    assert "rich" in shared
    assert {name: command_line[name] for name in shared} == {name: tests[name] for name in shared}


def test_every_environment_takes_the_kfp_of_the_command_line() -> None:
    assert names(ROOT / "images" / "kfp.lock") == {
        "kfp": names(ROOT / "images" / "authoring" / "requirements.lock")["kfp"]
    }
