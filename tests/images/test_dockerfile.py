"""The Dockerfile copies what it runs: without a builder, its steps are followed here."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.authoring import images
from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text().replace("\\\n", " ")
MAKING = "/opt/installer.py environment"


def copied(toolchain: str, target: Path) -> None:
    """Copy what the first stage has when it makes the environment."""
    stage = DOCKERFILE.partition(MAKING)[0].partition(" AS build")[2].replace("${IMAGE}", toolchain)
    for line in re.findall(r"^COPY (?!--from)(.*)$", stage, re.MULTILINE):
        *sources, place = shlex.split(line)
        place = place.lstrip("/")
        (target / place).mkdir(parents=True, exist_ok=True)
        for source in sources:
            if source.endswith("/"):
                shutil.copytree(ROOT / source, target / place, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, target / place)


def final_stage() -> list[tuple[str, str]]:
    """The instructions of the last stage: what an image is made of."""
    text = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[-1]
    return re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)


def test_an_image_is_its_base_an_environment_and_the_library() -> None:
    copied = [value.split()[1] for word, value in final_stage() if word == "COPY"]
    assert copied == ["/opt/environments", "/opt/library"]
    installing = [value for word, value in final_stage() if word == "RUN" and "install" in value]
    assert all(
        value.startswith('test "${VARIANT} ${IMAGE}" != "engines feast" || {') for value in installing
    ), "Java, else nothing"
    assert len(installing) == 1


def test_an_image_runs_as_nobody_in_particular_and_starts_without_a_shell() -> None:
    told = dict(final_stage())
    assert told["USER"] == f"{images.USER}:{images.USER}"
    assert json.loads(told["CMD"]) == ["python3"]
    assert "ENTRYPOINT" not in told


def test_no_setting_of_the_builder_is_in_an_image() -> None:
    words = " ".join(value for _, value in final_stage())
    assert not re.search(r"PIP_|UV_|SSL_|secret", words)


@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_the_environment_can_be_made_from_what_was_copied_before(toolchain: str, tmp_path: Path) -> None:
    copied(toolchain, tmp_path)
    code = f"""
import pathlib, installer
locks = installer.Locks(pathlib.Path("images"), {toolchain!r})
assert all(path.exists() for path in (*locks.files, locks.images / "build.lock"))
print(locks.digest)
"""
    variables = {"PYTHONPATH": str(tmp_path / "opt")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ToolchainEnvironment(toolchain).digest


def test_edit_of_library_or_of_another_lock_makes_no_environment_again(tmp_path: Path) -> None:
    copied("launcher", tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "opt/installer.py",
        "images/build.lock",
        "images/kfp.lock",
        "images/launcher/requirements.in",
        "images/launcher/requirements.lock",
    }


def test_installer_imports_the_standard_library_alone() -> None:
    tree = ast.parse((ROOT / "trainwright" / "authoring" / "installer.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_every_download_of_a_build_has_the_settings_of_pip() -> None:
    """pip reads the secret by itself, uv by the installer."""
    for command in re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE):
        if "pip install" in command or "installer.py" in command:
            assert "--mount=type=secret,id=pip,target=/etc/pip.conf" in command
        for part in command.split("&&"):
            if "pip install" in part:
                assert "-m pip install" in part or "/opt/installer.py uv pip install" in part
