"""The Dockerfile copies what it runs: without a builder, its steps are followed here."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.authoring import images
from trainwright.authoring.toolchains import TOOLCHAINS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text().replace("\\\n", " ")
MAKING = "-m trainwright.authoring.environments"


def copied(toolchain: str, target: Path) -> None:
    """Copy what the first stage has when it makes the environment."""
    before = DOCKERFILE.partition(MAKING)[0].replace("${IMAGE}", toolchain)
    for line in re.findall(r"^COPY (.*)$", before, re.MULTILINE):
        *sources, place = shlex.split(line)
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
    assert installing == []


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
    code = f"from trainwright.authoring.environments import lock_digest; print(lock_digest({toolchain!r}))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    from trainwright.authoring.environments import lock_digest

    assert done.stdout.strip() == lock_digest(toolchain)


def test_an_edit_of_a_step_makes_no_environment_again(tmp_path: Path) -> None:
    copied("launcher", tmp_path)
    code = "import json, sys, trainwright.authoring.environments; print(json.dumps(sorted(sys.modules)))"
    said = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, check=True)
    imported = {name for name in json.loads(said.stdout) if name.startswith("trainwright")}
    making = {"trainwright", "trainwright.errors", "trainwright.authoring"}
    assert imported == making | {"trainwright.authoring.environments", "trainwright.authoring.toolchains"}
    files = list((tmp_path / "trainwright").rglob("*.py"))
    assert len(files) == len(imported), "more is copied than what makes an environment"
