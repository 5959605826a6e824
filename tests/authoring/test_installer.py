"""Which build of a package is installed, and from where: small wheels, pip's settings, real uv."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.authoring.wheels import serving, write_wheel
from trainwright import ENVIRONMENT_FILE
from trainwright.authoring import installer

ROOT = Path(__file__).resolve().parents[2]
MANYLINUX = "cp311-cp311-manylinux_2_17_x86_64"
CUDA = ("nvidia_cublas==13",)


@dataclass
class Packages:
    """Indexes over HTTP and folders of wheels, and an environment made from them."""

    folder: Path
    address: str
    asked: list[str]
    settings: dict[str, str] = field(default_factory=dict)

    def add(self, place: str, version: str, requires: tuple[str, ...] = (), tag: str = MANYLINUX) -> None:
        """Put a wheel of ``flame`` into an index or a folder; it says where it came from."""
        write_wheel(
            self.folder / place / "flame",
            "flame",
            version,
            f"PLACE = {place!r}\n",
            requires=requires,
            tag=tag,
        )

    def url(self, index: str) -> str:
        return f"{self.address}/{index}/"

    def links(self, name: str) -> str:
        return str(self.folder / name / "flame")

    def configure(self, **settings: str) -> None:
        """Write a pip.conf."""
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in settings.items()]
        (self.folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))

    def lock(self, place: str, version: str) -> None:
        """Let ``torch.lock`` name the wheel of ``flame`` that lies in a place."""
        (wheel,) = (self.folder / place / "flame").glob(f"flame-{version}-*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text = f"# its builds differ\nflame=={version} --hash=sha256:{digest}\n"
        (self.folder / "images" / "tiny" / "torch.lock").write_text(text)

    def install(self, name: str = "made") -> str:
        """Make the environment; return the place that its ``flame`` came from."""
        target = self.folder / name
        installer.install(installer.Locks(self.folder / "images", "tiny"), target)
        code = "import flame; print(flame.PLACE)"
        said = subprocess.run(
            [target / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
        )
        return said.stdout.strip()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """An index ``main`` that serves what PyPI does, named in a pip.conf; nothing is configured for uv."""
    for variable in os.environ:
        if variable.startswith(("PIP_", "UV_")) or variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    tiny = tmp_path / "images" / "tiny"
    tiny.mkdir(parents=True)
    (tiny / "requirements.lock").write_text(write_wheel(tmp_path / "main" / "pebble", "pebble", "1.0"))
    (tmp_path / "images" / "kfp.lock").write_text(write_wheel(tmp_path / "main" / "kfp", "kfp", "2.0"))
    write_wheel(tmp_path / "main" / "nvidia-cublas", "nvidia_cublas", "13")
    with serving(tmp_path) as (address, asked):
        found = Packages(tmp_path, address, asked)
        found.add("main", "2.13.0", CUDA)
        found.lock("main", "2.13.0")
        found.configure(index_url=found.url("main"))
        yield found


def cpu(packages: Packages, place: str = "wheels") -> None:
    """Put a CPU build into a place, and lock it."""
    packages.add(place, "2.13.0+cpu")
    packages.lock(place, "2.13.0+cpu")


def test_cpu_build_in_folder_of_wheels_is_installed(packages: Packages) -> None:
    cpu(packages)
    packages.configure(index_url=packages.url("main"), find_links=packages.links("wheels"))
    assert packages.install() == "wheels"


def test_cpu_build_on_page_of_wheels_is_installed(packages: Packages) -> None:
    cpu(packages)
    packages.configure(index_url=packages.url("main"), find_links=f"{packages.url('wheels')}flame/")
    assert packages.install() == "wheels"


@pytest.mark.parametrize("first", [True, False], ids=["main index", "extra index"])
def test_cpu_build_in_one_of_two_indexes_is_installed(packages: Packages, first: bool) -> None:
    cpu(packages, "other")
    write_wheel(packages.folder / "other" / "pebble", "pebble", "0.9")
    both = [packages.url("other"), packages.url("main")]
    main, extra = both if first else reversed(both)
    packages.configure(index_url=main, extra_index_url=extra)
    assert packages.install() == "other"


def test_build_that_no_index_has_is_an_error_of_its_own_before_anything_else_is_installed(
    packages: Packages,
) -> None:
    cpu(packages)
    with pytest.raises(installer.BuildNotFound) as caught:
        packages.install()
    assert "--variant gpu" in caught.value.hint
    assert not list((packages.folder / "made").rglob("pebble*"))


@pytest.mark.covers("A12")
@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0"])
def test_other_file_under_the_name_of_the_build_is_rejected(packages: Packages, version: str) -> None:
    packages.add("wheels", version)
    packages.lock("wheels", version)
    packages.add("other", version)
    packages.configure(index_url=packages.url("main"), find_links=packages.links("other"))
    with pytest.raises(installer.InstallationError, match=r"[Hh]ash") as caught:
        packages.install()
    assert not isinstance(caught.value, installer.BuildNotFound)


def test_without_index_only_folders_of_wheels_are_read(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu(packages)
    folders = [
        packages.links("wheels"),
        *(str(packages.folder / "main" / name) for name in ("pebble", "kfp")),
    ]
    packages.configure(index_url=packages.url("main"))
    monkeypatch.setenv("PIP_FIND_LINKS", " ".join(folders))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert packages.install() == "wheels"
    assert packages.asked == []


def test_folder_of_wheels_that_is_missing_is_ignored_as_pip_does(packages: Packages) -> None:
    packages.configure(index_url=packages.url("main"), find_links="/nowhere/wheels")
    assert packages.install() == "main"


def test_proxy_of_pip_is_used_by_uv(packages: Packages) -> None:
    packages.configure(index_url="http://mirror.invalid/main/", proxy=packages.address)
    assert packages.install() == "main"
    assert all(url.startswith("http://mirror.invalid/main/") for url in packages.asked)


def test_settings_for_uv_win_over_those_of_pip(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.configure(index_url="http://127.0.0.1:9/nobody/")
    monkeypatch.setenv("UV_DEFAULT_INDEX", packages.url("main"))
    assert packages.install() == "main"


def test_password_of_index_is_in_no_message(packages: Packages) -> None:
    (packages.folder / "images" / "tiny" / "torch.lock").unlink()
    packages.configure(index_url=packages.url("nothing").replace("//", "//reader:hunter2@"))
    with pytest.raises(installer.InstallationError, match="pebble") as caught:
        packages.install()
    assert "hunter2" not in caught.value.what
    assert "look at the network" in caught.value.hint


def test_stamp_is_where_run_records_look_for_it() -> None:
    assert installer.STAMP == ENVIRONMENT_FILE


def run(packages: Packages, *arguments: str) -> "subprocess.CompletedProcess[str]":
    script = ROOT / "trainwright" / "authoring" / "installer.py"
    command = [sys.executable, "-I", str(script), *arguments]
    return subprocess.run(command, cwd=packages.folder, capture_output=True, text=True, check=False)


def test_script_makes_environment_and_imports_nothing_of_library(packages: Packages) -> None:
    done = run(packages, "environment", "tiny", "made")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (packages.folder / "made" / installer.STAMP).exists()


def test_script_that_fails_ends_with_21_and_says_what_to_do(packages: Packages) -> None:
    (packages.folder / "images" / "tiny" / "torch.lock").unlink()
    packages.configure(index_url=packages.url("nothing"))
    done = run(packages, "environment", "tiny", "made")
    assert done.returncode == 21
    assert "pebble" in done.stderr
    assert "  next  No package index answered" in done.stderr
    assert not (packages.folder / "made" / installer.STAMP).exists()


def test_uv_is_run_with_settings_of_pip(packages: Packages) -> None:
    target = packages.folder / "plain"
    assert run(packages, "uv", "venv", "--quiet", str(target)).returncode == 0
    done = run(
        packages, "uv", "pip", "install", "--quiet", "--python", str(target / "bin" / "python"), "pebble"
    )
    assert done.returncode == 0, done.stderr
    assert any("/main/pebble/" in url for url in packages.asked)
