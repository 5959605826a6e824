"""Two real environments with a conflicting package, and real pipelines compiled by kfp."""

import dataclasses
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kfp
import kfp.local
import pytest
import yaml
from google.protobuf import json_format
from kfp import compiler, dsl
from kfp.local import config, pipeline_orchestrator, subprocess_task_handler
from kfp.pipeline_spec import pipeline_spec_pb2

import trainwright
from tests.authoring.probe import Probe
from trainwright import tracking
from trainwright.local import runner
from trainwright.local.run_folder import Task
from trainwright.local.runner import Outcome, Plan

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@dataclasses.dataclass
class Venvs:
    """The environments of a test: ``red`` and ``blue`` have other versions of the package ``clash``."""

    folder: Path
    locks: dict[str, str]
    library: Path | None = None
    names: tuple[str, ...] = ("red", "blue")

    def python(self, toolchain: str) -> Path:
        return self.folder / toolchain / "bin" / "python"

    def lock_digest(self, toolchain: str) -> str:
        return self.locks[toolchain]

    def library_digest(self) -> str:
        return tracking.library_digest(self.library)


@pytest.fixture(scope="session")
def venvs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environments")
    for name in ("red", "blue"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / name], check=True)
        site = folder / name / SITE
        (site / "kfp").symlink_to(Path(kfp.__file__).parent)
        (site / "trainwright").symlink_to(Path(trainwright.__file__).parent)
        (site / "clash.py").write_text(f"VERSION = {name!r}\n")
    return folder


@pytest.fixture
def machine(venvs: Path) -> Venvs:
    return Venvs(venvs, {"red": "lock of red", "blue": "lock of blue"})


class Told(runner.Listener):
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.tasks: list[Task] = []
        self.warnings: list[str] = []

    def started(self, plan: Plan) -> None:
        self.plan = plan

    def task_ended(self, task: Task) -> None:
        self.tasks.append(task)

    def warned(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


Compile = Callable[..., Path]
Run = Callable[..., Outcome]


@pytest.fixture
def compile_pipeline(tmp_path: Path) -> Compile:
    def compile_it(function: Callable[..., Any], name: str = "") -> Path:
        name = name or function.__name__
        path = tmp_path / f"{name}.yaml"
        if not hasattr(function, "component_spec"):
            function = dsl.pipeline(name=name.replace("_", "-"))(function)
        compiler.Compiler().compile(function, str(path))
        return path

    return compile_it


@pytest.fixture
def run(tmp_path: Path, machine: Venvs, told: Told, compile_pipeline: Compile) -> Run:
    """Compile a pipeline function and run it on the two environments."""

    def run_it(
        function: Callable[..., Any] | Path, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Outcome:
        compiled = function if isinstance(function, Path) else compile_pipeline(function)
        given = {"runs_folder": tmp_path / "runs", "listener": told, "machine": machine} | options
        return runner.run(compiled, arguments or {}, **given)

    return run_it


@pytest.fixture
def states() -> Callable[[Outcome], dict[str, str]]:
    return lambda outcome: {task.step: task.state for task in outcome.tasks}


@pytest.fixture
def kfp_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run a pipeline with kfp.local itself, its handler replaced by a probe."""

    def run_it(pipeline: Any, probe: Probe | None, **options: Any) -> None:
        path = tmp_path / "pipeline.yaml"
        compiler.Compiler().compile(dsl.pipeline(name="p")(pipeline), str(path))
        document = next(yaml.safe_load_all(path.read_text()))
        spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
        if probe:
            probe.root = str(tmp_path / "root")
            monkeypatch.setattr(subprocess_task_handler, "SubprocessTaskHandler", probe.handler())
        kfp.local.init(kfp.local.SubprocessRunner(use_venv=False), str(tmp_path / "root"), **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipeline_orchestrator.run_local_pipeline(pipeline_spec=spec, arguments={})

    before = config.LocalExecutionConfig.instance
    yield run_it
    config.LocalExecutionConfig.instance = before
