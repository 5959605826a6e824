"""Building the images: what the engine is asked, what is looked into, written down and refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright import __version__
from trainwright.authoring import images
from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment, lock_digest
from trainwright.tracking import library_digest

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "1" * 64

ENGINE = """#!{python}
import json, os, sys

arguments = sys.argv[1:]
answers = json.load(open("{answers}"))
with open("{calls}", "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
for argument in arguments:
    if argument.startswith("wheels="):
        json.dump(sorted(os.listdir(argument.removeprefix("wheels="))), open("{calls}.wheels", "w"))
if arguments[0] == "build" and answers["build"]:
    sys.exit("no such base")
if arguments[0] == "run":
    print(json.dumps(answers["found"]))
if arguments[0] == "push":
    open(arguments[arguments.index("--digestfile") + 1], "w").write("{digest}")
if arguments[0] == "pull":
    answers["there"] = True
    json.dump(answers, open("{answers}", "w"))
if arguments[:2] == ["image", "inspect"] and "RepoDigests" in arguments[3]:
    if not answers["there"]:
        sys.exit("no such image")
    print(json.dumps([arguments[-1].split(":")[0] + "@{digest}"] if answers["digest"] else None))
elif arguments[:2] == ["image", "inspect"]:
    size = answers["base"] if arguments[-1].startswith("base") else answers["size"]
    print(size if "Size" in arguments[3] else "{digest}")
"""
"""Stands in for podman's command line, whose real one tests/authoring/test_containers_live.py uses."""


class Builder:
    """Runs ``images/build.py`` with an engine that only answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls_file = folder, folder / "calls"
        packages = {"components": [{"name": "numpy"}], "metadata": {}}
        found = {
            "user": 65532,
            "seconds": 0.25,
            "left": [],
            "packages": packages,
            "stamp": {"name": "launcher"},
            "cuda": "",
        }
        self.answers: dict[str, Any] = {"build": "", "found": found, "there": True, "digest": True}
        self.answers |= {"base": 100_000_000, "size": 160_000_000}
        self.base = "base:1"

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        engine = self.folder / "podman"
        answers = self.folder / "answers.json"
        answers.write_text(json.dumps(self.answers))
        places = {"python": sys.executable, "answers": answers, "calls": self.calls_file, "digest": DIGEST}
        engine.write_text(ENGINE.format(**places))
        engine.chmod(0o755)
        command = [sys.executable, str(ROOT / "images" / "build.py"), *arguments, "--engine", "podman"]
        command += ["--base", self.base, "--output", str(self.folder / "out"), "--", "--network", "host"]
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def calls(self, verb: str) -> list[list[str]]:
        calls = [json.loads(line) for line in self.calls_file.read_text().splitlines()]
        return [call for call in calls if call[0] == verb]

    def written(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "out" / "images.json").read_text())["images"]
        return found


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def labels(command: list[str]) -> dict[str, str]:
    given = [command[place + 1] for place, word in enumerate(command) if word == "--label"]
    return dict(label.split("=", 1) for label in given)


def test_an_image_says_its_version_its_commit_and_what_it_was_made_from(build: Builder) -> None:
    done = build("launcher")
    assert done.returncode == 0, done.stderr
    (command,) = build.calls("build")
    said = labels(command)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said["org.opencontainers.image.version"] == __version__
    assert said["org.opencontainers.image.revision"].removesuffix("-dirty") == head.stdout.strip()
    assert said["org.opencontainers.image.base.name"] == f"base@{DIGEST}"
    assert said["org.opencontainers.image.base.digest"] == DIGEST
    assert said["trainwright.lock-sha256"] == lock_digest("launcher")
    assert said["trainwright.library-sha256"] == library_digest()
    assert command[-3:] == ["--network", "host", "."]


@pytest.mark.covers("A12")
@pytest.mark.parametrize("there", [True, False])
def test_base_named_by_tag_is_built_on_and_written_down_by_digest(build: Builder, there: bool) -> None:
    build.answers["there"] = there
    assert build("launcher").returncode == 0
    assert f"BASE=base@{DIGEST}" in build.calls("build")[0]
    assert build.written()[images.LAUNCHER]["base"] == f"base@{DIGEST}"
    assert build.calls("pull") == ([] if there else [["pull", "base:1"]])


@pytest.mark.parametrize("base", [f"base@{DIGEST}", "localhost/base:1"])
def test_base_named_by_digest_or_made_here_is_taken_as_it_is(build: Builder, base: str) -> None:
    build.base = base
    assert build("launcher").returncode == 0
    assert build.written()[images.LAUNCHER]["base"] == base


def test_base_without_a_digest_is_an_error_before_anything_is_built(build: Builder) -> None:
    build.answers["digest"] = False
    done = build("launcher")
    assert done.returncode == 21
    assert "the base base:1 has no digest of a registry" in done.stderr
    assert build.calls("build") == []


def test_the_torch_image_is_made_from_the_lock_for_gpus_on_a_base_of_its_own(build: Builder) -> None:
    done = build("torch", "launcher", "--variant", "gpu", "--torch-base", "base-with-cuda:1")
    assert done.returncode == 0, done.stderr
    torch, launcher = build.calls("build")
    assert {f"BASE=base-with-cuda@{DIGEST}", "VARIANT=gpu", "IMAGE=torch"} <= set(torch)
    assert (
        labels(torch)["trainwright.lock-sha256"]
        == ToolchainEnvironment("torch", variant="gpu").digest
        != ToolchainEnvironment("torch").digest
    )
    assert labels(torch)["org.opencontainers.image.base.name"] == f"base-with-cuda@{DIGEST}"
    assert f"BASE=base@{DIGEST}" in launcher
    assert not any(word.startswith("VARIANT=") for word in launcher)


def test_the_lock_for_gpus_holds_torch_and_cuda_and_leaves_nothing_for_pip_to_choose() -> None:
    place = ToolchainEnvironment("torch", variant="gpu")
    packages = re.findall(r"^([a-z0-9-]+)==", place.locks.files[0].read_text(), re.MULTILINE)
    assert "torch" in packages
    assert any(package.startswith("nvidia-cu") for package in packages)
    assert [path.name for path in place.locks.files] == ["requirements-gpu.lock", "kfp.lock"]


@pytest.mark.parametrize(("name", "size"), [("feast", 1_500_000_000), ("tabular", 700_000_000)])
def test_image_with_engines_is_held_to_its_own_lock_and_budget(build: Builder, name: str, size: int) -> None:
    build.answers["size"] = size
    done = build(name, "launcher", "--variant", "engines")
    assert done.returncode == 10, done.stderr
    image, launcher = build.calls("build")
    assert "VARIANT=engines" in image
    assert not any(word.startswith("VARIANT=") for word in launcher)
    place = ToolchainEnvironment(name, variant="engines")
    assert labels(image)["trainwright.lock-sha256"] == place.digest in ToolchainEnvironment(name).digests
    assert f"launcher {size / 1e6 - 100:,.0f} MB" in done.stderr
    assert f"{name} " not in done.stderr


def test_settings_of_pip_and_uv_reach_the_build_and_no_others(build: Builder) -> None:
    build("launcher", PIP_INDEX_URL="mirror", ELSEWHERE="hidden")
    (command,) = build.calls("build")
    assert "PIP_INDEX_URL=mirror" in command
    assert not any("hidden" in word for word in command)


def test_folders_of_wheels_are_a_build_context(build: Builder, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}-1.0-py3-none-any.whl").write_text(name)
    page = "http://127.0.0.1:8000/wheels/"
    done = build(
        "launcher", PIP_FIND_LINKS=f"{tmp_path}/one {page} {tmp_path}/two /nowhere", UV_FIND_LINKS=""
    )
    assert done.returncode == 0, done.stderr
    (command,) = build.calls("build")
    assert f"PIP_FIND_LINKS={page} /wheels" in command
    assert json.loads((tmp_path / "calls.wheels").read_text()) == [
        "one-1.0-py3-none-any.whl",
        "two-1.0-py3-none-any.whl",
    ]


def test_without_folders_of_wheels_there_is_no_build_context(build: Builder) -> None:
    build("launcher", PIP_FIND_LINKS="/nowhere", UV_FIND_LINKS="")
    (command,) = build.calls("build")
    assert "--build-context" not in command
    assert not any("FIND_LINKS" in word for word in command)


def test_it_is_looked_into_under_the_constraints_of_a_cluster(build: Builder) -> None:
    build("launcher")
    (command,) = build.calls("run")
    assert {"--read-only", "--network=none", "--cap-drop=ALL"} <= set(command)
    assert "trainwright.train.submit" in command


def test_what_was_built_is_written_down_beside_its_packages(build: Builder) -> None:
    build("launcher")
    entry = build.written()[images.LAUNCHER]
    assert entry["id"] == DIGEST
    assert entry["reference"] == ""
    assert (entry["megabytes"], entry["packages"], entry["import_s"]) == (60.0, 1, 0.25)
    packages = json.loads((build.folder / "out" / "launcher.cdx.json").read_text())
    assert packages["metadata"]["component"]["name"] == "trainwright/launcher"


def test_an_image_that_is_built_later_leaves_the_entries_of_others(build: Builder) -> None:
    build("launcher")
    build("mlflow")
    assert build.written().keys() == {images.LAUNCHER, images.MLFLOW}


def test_a_pushed_image_is_known_by_the_digest_of_the_registry(build: Builder) -> None:
    build("launcher", "--push", "registry.example/team/")
    reference = f"registry.example/team/trainwright/launcher@{DIGEST}"
    assert build.written()[images.LAUNCHER]["reference"] == reference
    assert build.calls("push")[0][-1] == f"registry.example/team/{images.LAUNCHER}"


def test_an_image_over_its_budget_is_an_error_that_names_both_numbers(build: Builder) -> None:
    build.answers["size"] = 1_100_000_000
    done = build("launcher")
    assert done.returncode == 10
    assert "launcher 1,000 MB > 90 MB" in done.stderr


def test_image_over_its_budget_is_not_pushed_and_the_others_are(build: Builder) -> None:
    build.answers["size"] = 300_000_000
    done = build("launcher", "mlflow", "--push", "registry.example/team")
    assert done.returncode == 10
    assert "larger than its budget and not pushed: launcher 200 MB > 90 MB" in done.stderr
    assert [call[-1] for call in build.calls("push")] == [f"registry.example/team/{images.MLFLOW}"]
    references = {name: image["reference"] for name, image in build.written().items()}
    assert references == {
        images.LAUNCHER: "",
        images.MLFLOW: f"registry.example/team/trainwright/mlflow@{DIGEST}",
    }


@pytest.mark.parametrize(("cuda", "code"), [("13.0", 0), ("", 10)], ids=["CUDA", "CPU"])
def test_torch_is_held_to_the_budget_of_its_build(build: Builder, cuda: str, code: int) -> None:
    build.answers["size"] = 5_000_000_000
    build.answers["found"]["cuda"] = cuda
    done = build("torch", "--push", "registry.example/team")
    assert done.returncode == code, done.stderr
    budgets = json.loads((ROOT / "images" / "budgets.json").read_text())
    assert (
        f"4,900 of {budgets['torch-gpu' if cuda else 'torch']:,} MB, {'CUDA 13.0' if cuda else 'CPU'}"
        in done.stdout
    )
    assert build.written()[images.TORCH]["cuda"] == cuda
    assert len(build.calls("push")) == (1 if cuda else 0)


@pytest.mark.parametrize(
    ("key", "value", "message"), [("left", ["gcc"], "holds gcc"), ("user", 0, "superuser")]
)
def test_an_image_that_holds_what_it_should_not_is_refused(
    build: Builder, key: str, value: Any, message: str
) -> None:
    build.answers["found"][key] = value
    done = build("launcher")
    assert done.returncode == 21
    assert message in done.stderr
    assert not (build.folder / "out" / "images.json").exists()


def test_a_build_that_fails_says_what_the_engine_said_last(build: Builder) -> None:
    build.answers["build"] = "fails"
    done = build("launcher")
    assert done.returncode == 21
    assert "no such base" in done.stderr
    assert "launcher.log" in done.stderr


def test_an_engine_that_is_not_there_is_named_with_the_other(build: Builder) -> None:
    done = build("launcher", PATH="/nowhere")
    assert done.returncode == 21
    assert "there is no podman here" in done.stderr
    assert "ENGINE=podman" in done.stderr


def test_every_image_has_a_budget() -> None:
    budgets = json.loads((ROOT / "images" / "budgets.json").read_text())
    assert budgets.keys() == {*TOOLCHAINS, "torch-gpu", "feast-engines", "tabular-engines", "torch-engines"}
