"""What an environment holds: what its steps import, all of it and little else."""

import ast
import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.authoring.environments import TOOLCHAINS, python
from trainwright.tracking import library_digest

ROOT = Path(__file__).resolve().parents[2]
WRAPPERS = sorted((ROOT / "components").glob("*/component.py"))
POD = ("trainwright.launch.agent.__main__", "trainwright.train.__main__")
"""What the pods of a training job run, in the image that no component names."""

SERVICE = ("trainwright.service.__main__",)
"""What `trainwright serve` runs, which is no step either."""

MODULES = {
    "mlflow-skinny": "mlflow",
    "kubeflow-training": "kubeflow",
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
    "xgboost-cpu": "xgboost",
    "google-cloud-storage": "google.cloud.storage",
    "google-auth": "google.auth",
    "openlineage-python": "openlineage.client",
}
NEEDED_BY_ANOTHER = {
    "tfdv": {
        "tensorflow-cpu": "tensorflow-data-validation",
        "tensorflow-serving-api": "tfx-bsl",
        "dill": "tfx-bsl, undeclared",
        "google-crc32c": "apache-beam, for TFRecords, undeclared",
    },
    "torch": dict.fromkeys(
        ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"), "torch"
    ),
    "mlflow": dict.fromkeys(("sqlalchemy", "alembic"), "mlflow's SQLite store"),
    "service": dict.fromkeys(("sqlalchemy", "alembic"), "mlflow's SQLite store"),
    "ingest": {"psycopg": "sqlalchemy, for postgresql://"},
    "tune": {"cmaes": "optuna, for its sampler of that name"},
}
"""Requirements that no step imports itself, and what does."""


def imported(tree: ast.AST) -> set[str]:
    """Every module that a piece of code may import, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found | {name.rpartition(".")[0] for name in found if "." in name}


def wrapper(path: Path) -> tuple[str, set[str]]:
    """The toolchain of a component, and the modules that its body imports."""
    tree = ast.parse(path.read_text())
    (image,) = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "images"
    }
    body = next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == path.parent.name
    )
    return image.lower(), {name for name in imported(body) if source(name)}


def source(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
    return found[0] if module.startswith("trainwright") and found else None


@functools.cache
def imported_by(file: Path) -> set[str]:
    return imported(ast.parse(file.read_text()))


def reached(modules: set[str]) -> set[str]:
    """The names of all that some modules of the library can import, through the library."""
    seen: set[str] = set()
    waiting = set(modules)
    outside: set[str] = set()
    while waiting:
        module = waiting.pop()
        seen.add(module)
        names = imported_by(file) if (file := source(module)) else set()
        outside |= {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
        waiting |= {name for name in names if source(name)} - seen
    return outside


def entries(toolchain: str) -> set[str]:
    found = [modules for path in WRAPPERS for image, modules in [wrapper(path)] if image == toolchain]
    return set().union(*found, {"torch": POD, "service": SERVICE}.get(toolchain, ()))


def required(toolchain: str) -> list[str]:
    text = (ROOT / "images" / toolchain / "requirements.in").read_text()
    return re.findall(r"^([a-z0-9-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_no_environment_holds_what_its_steps_do_not_import(toolchain: str) -> None:
    own = set(required(toolchain)) - NEEDED_BY_ANOTHER.get(toolchain, {}).keys()
    assert own
    found = reached(entries(toolchain))
    missing = {name for name in own if MODULES.get(name, name).replace("-", "_") not in found}
    assert not missing, f"no step that runs in {toolchain} imports {missing}"


@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_what_a_step_imports_is_there_in_its_image(toolchain: str) -> None:
    modules = sorted(entries(toolchain))
    assert modules
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = subprocess.run(
        [python(toolchain), "-c", code, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_torchs_own_requirements_are_all_in_the_lock() -> None:
    code = "import json; from importlib.metadata import requires; print(json.dumps(requires('torch')))"
    done = subprocess.run([python("torch"), "-c", code], capture_output=True, text=True, check=True)
    declared = {re.match(r"[a-z0-9-]+", line)[0] for line in json.loads(done.stdout) if ";" not in line}
    assert "sympy" in declared
    assert declared <= set(required("torch"))


def test_image_without_what_the_dockerfile_removes_has_the_digest_of_the_checkout(tmp_path: Path) -> None:
    """Else no version that a cluster registered can be reproduced from its commit."""
    text = (ROOT / "images" / "Dockerfile").read_text()
    removed = " ".join(re.findall(r"rm -rf ((?:[a-z_]+ ?)+)", text)).split()
    assert {"cli", "service"} <= {*removed}
    ignored = shutil.ignore_patterns("__pycache__")
    copy = Path(shutil.copytree(ROOT / "trainwright", tmp_path / "trainwright", ignore=ignored))
    for name in removed:
        shutil.rmtree(copy / name, ignore_errors=True)
    assert library_digest(copy) == library_digest()
