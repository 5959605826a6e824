"""What kfp's DockerRunner does, right and wrong, that running steps in containers stands on or works around.

A test of a defect that fails after an upgrade of kfp names a work-around that is no longer needed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import kfp.local
import pytest
from kfp.local import docker_task_handler

from trainwright.authoring.pipeline_spec import read
from trainwright.local import kfp_local
from trainwright.local.kfp_local import Call

Compile = Callable[..., Path]


class Container:
    """A container of an engine that removed it as soon as it had ended, whatever it ended with."""

    def logs(self, **_: Any) -> Iterator[bytes]:
        yield b"its last words\n"

    def wait(self) -> dict[str, int]:
        raise docker.errors.NotFound("no such container")


class Engine:
    """An engine that answers as one does that has one image, as podman names it."""

    def __init__(self) -> None:
        self.pulled: list[str] = []
        self.started: dict[str, Any] = {}
        image = SimpleNamespace(tags=["localhost/trainwright/red:0.1.0"], attrs={"RepoDigests": []})
        self.images = SimpleNamespace(list=lambda: [image], pull=self.pulled.append)
        self.containers = SimpleNamespace(run=self.run)

    def run(self, **options: Any) -> Container:
        self.started = options
        return Container()


def test_defect_a_container_that_was_removed_before_it_was_waited_for_counts_as_done() -> None:
    assert docker_task_handler.run_docker_container(Engine(), "red:1", ["false"], {}) == 0


def test_defect_the_exit_code_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(docker_task_handler, "run_docker_container", lambda **_: 11)
    client = SimpleNamespace(info=dict, close=lambda: None)
    monkeypatch.setattr(docker, "from_env", lambda: client)
    handler = docker_task_handler.DockerTaskHandler("i", ["c"], str(tmp_path), kfp.local.DockerRunner())
    assert handler.run().name == "FAILURE"


def test_defect_an_image_that_was_built_here_is_pulled_all_the_same() -> None:
    engine = Engine()
    docker_task_handler.run_docker_container(engine, "trainwright/red:0.1.0", ["true"], {})
    assert engine.pulled == ["trainwright/red:0.1.0"]


def test_defect_a_container_is_always_removed_by_the_engine_itself() -> None:
    engine = Engine()
    docker_task_handler.run_docker_container(engine, "red:1", ["true"], {})
    assert engine.started["auto_remove"] is True
    with pytest.raises(TypeError, match="auto_remove"):
        docker_task_handler.run_docker_container(engine, "red:1", ["true"], {}, auto_remove=False)


def test_what_the_runner_was_given_reaches_us_and_no_container_is_started_by_kfp(
    compile_pipeline: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp import dsl

    @dsl.component(base_image="trainwright/red:0.1.0", install_kfp_package=False)
    def noted(text: str) -> str:
        return text

    def pipeline() -> None:
        noted(text="a").set_env_variable("COLOUR", "red")

    monkeypatch.setattr(docker, "from_env", lambda: SimpleNamespace(info=dict, close=lambda: None))
    compiled, calls = compile_pipeline(pipeline), []
    document = dict(read(compiled).document)

    def execute(call: Call) -> bool:
        calls.append(call)
        return False

    before = docker_task_handler.run_docker_container
    with pytest.raises(kfp_local.Failed):
        kfp_local.run(document, {}, execute, tmp_path, {"read_only": True, "user": "7:7"})
    (call,) = calls
    assert call.image == "trainwright/red:0.1.0"
    assert call.variables == {"COLOUR": "red"}
    assert call.container.options == {"read_only": True, "user": "7:7"}
    assert {volume["bind"] for volume in call.container.volumes.values()} == {str(tmp_path), "/kfp-workspace"}
    assert docker_task_handler.run_docker_container is before
