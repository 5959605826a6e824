"""No process of a training forks: a fork has none of the threads that autograd, OpenMP and gloo started."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.run import environment_of_package
from tests.train import clean
from tests.train.problems import request
from trainwright.train.submit import submit

ROOT = Path(__file__).resolve().parents[2]

NOTING = """
import os, sys

def note(what):
    with open(os.path.join(FOLDER, f"{what}-{os.getpid()}"), "a") as stream:
        stream.write(" ".join(sys.orig_argv))

def audit(event, arguments):
    if event in ("os.fork", "os.forkpty"):
        note("forked")

sys.addaudithook(audit)
note("began")
"""


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Let each Python that starts below this process note that it began and that it forks; read the notes."""
    (folder := tmp_path / "site").mkdir()
    (folder / "sitecustomize.py").write_text(f"FOLDER = {str(folder)!r}\n{NOTING}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))
    return lambda what: [path.read_text() for path in folder.glob(f"{what}-*")]


def test_a_process_that_forks_is_noted(noted: Callable[[str], list[str]]) -> None:
    """Else the next test would pass whatever a training did."""
    subprocess.run([sys.executable, "-c", "import os; os.fork() or os._exit(0)"], check=True)
    assert len(noted("began")) == len(noted("forked")) == 1


def test_no_process_of_a_training_forks(
    training_set: Path, tmp_path: Path, noted: Callable[[str], list[str]]
) -> None:
    """Of both candidates, a network and trees."""
    early = {"share": 0.2, "patience": 1}
    training = {"epochs": 1, "checkpoints": {"every_steps": 2}, "guards": {"early_stopping": early}}
    asked = replace(request(training_set, training=training), network={"kind": "auto"})
    submit(asked, *(tmp_path / name for name in ("model", "predictions", "summary.md", "report.html")))
    began = noted("began")
    agents = [line for line in began if "trainwright.launch.agent" in line]
    ranks = [line for line in began if "-m trainwright.train" in line and line not in agents]
    assert (len(agents), len(ranks)) == (1, 2)
    assert "Held-out loss, " in (tmp_path / "summary.md").read_text()
    assert noted("forked") == []


FORKS = re.compile(r"^\s*(from|import) multiprocessing\b|\bos\.fork|ProcessPoolExecutor", re.MULTILINE)


def test_packages_that_start_processes_by_forking_run_where_there_is_no_torch() -> None:
    library = ROOT / "trainwright"
    files = [path.relative_to(library) for path in library.rglob("*.py") if FORKS.search(path.read_text())]
    assert files, "the expression finds those of ingest and validate"
    for path in files:
        lock = ROOT / "images" / environment_of_package(path.parts[0]) / "requirements.lock"
        assert not re.search(r"^torch==", lock.read_text(), re.MULTILINE), path


def _gradient() -> None:
    module = nn.Linear(2, 1)
    module(torch.ones(3, 2)).sum().backward()
    assert module.weight.grad is not None


def test_a_process_of_the_server_computes_gradients_whatever_this_one_did_before() -> None:
    """With a CUDA build, an export starts threads of autograd, and a fork of this process could not."""
    torch.export.export(nn.Linear(2, 1), (torch.ones(3, 2),))
    _gradient()
    assert clean.ended(clean.start(_gradient)) == 0
