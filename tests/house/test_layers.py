"""The import contracts fail on a planted violation, each one of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PLANTED = {
    "a component that imports a pipeline": (
        "components/ingest/component.py",
        "import pipelines.train_and_register",
        "pipelines stand on components",
    ),
    "a shared package that imports a verb": (
        "trainwright/storage/listing.py",
        "import trainwright.ingest",
        "arrows point down",
    ),
    "a verb that imports another verb": (
        "trainwright/evaluate/__init__.py",
        "import trainwright.train",
        "arrows point down",
    ),
    "a new module that has no layer": ("trainwright/corner.py", "", "arrows point down"),
    "a component that imports another": (
        "components/train/component.py",
        "import components.ingest.component",
        "components know nothing of each other",
    ),
    "a verb that imports kfp": ("trainwright/join/__init__.py", "import kfp", "only authors need kfp"),
    "a pipeline that imports a verb": (
        "pipelines/train_and_register.py",
        "import trainwright.train",
        "pipelines never import verbs",
    ),
}


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("trainwright", "components", "pipelines"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_keeps_its_contracts(copy: Path) -> None:
    done = check(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_violation_breaks_its_contract(case: str, copy: Path) -> None:
    path, line, contract = PLANTED[case]
    with (copy / path).open("a") as file:
        file.write(f"\n{line}\n")
    done = check(copy)
    assert done.returncode != 0
    broken = [text for text in done.stdout.splitlines() if "BROKEN" in text] or done.stdout.splitlines()
    assert any(contract in text for text in broken), done.stdout
