"""Pushing to a registry: the digest that is written down is the one that it gives the image out by.

Needs podman, and the registry of Debian's package docker-registry, which the test starts; else it is skipped.
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.authoring import engine as engines

ROOT = Path(__file__).resolve().parents[2]
PUSH = "import sys; sys.path.append('images'); import build; print(build.pushed(*sys.argv[1:]))"

SETTINGS = """
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/registry
http:
  addr: {address}
"""
PLAIN = """
[[registry]]
location = "{address}"
insecure = true
"""
MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
SMALL = "trainwright/launcher:0.0.0"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry on a free port of this machine, which podman speaks plain HTTP to."""
    program = shutil.which("docker-registry")
    if not program or not shutil.which("podman"):
        pytest.skip("podman or Debian's docker-registry is not installed")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "registry.yml").write_text(SETTINGS.format(folder=folder, address=address))
    (folder / "registries.conf").write_text(PLAIN.format(address=address))
    with (folder / "log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        if "CONTAINERS_CONF" not in os.environ:
            runtime = 'runtime = "runc"' if shutil.which("runc") or Path("/usr/sbin/runc").exists() else ""
            (folder / "containers.conf").write_text(engines.SETTINGS.format(runtime=runtime))
            patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_REGISTRIES_CONF", str(folder / "registries.conf"))
        command = [program, "serve", str(folder / "registry.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            require_answer(f"http://{address}/v2/", process)
            yield address
        finally:
            process.terminate()
            process.wait()


def require_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            assert requests.get(url, timeout=30).ok
        except requests.ConnectionError:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def image(tmp_path: Path, registry: str) -> str:
    """An image of one file, by a name such as ours have."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("1")
    subprocess.run(["tar", "-C", tmp_path / "root", "-cf", tmp_path / "image.tar", "."], check=True)
    done = subprocess.run(
        ["podman", "import", "--quiet", tmp_path / "image.tar", SMALL],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"podman does not run here: {done.stderr[-300:]}")
    return SMALL


def test_the_reference_is_what_the_registry_gives_out(registry: str, image: str) -> None:
    command = [sys.executable, "-c", PUSH, "podman", image, f"{registry}/team/"]
    reference = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    manifests = f"http://{registry}/v2/team/trainwright/launcher/manifests"
    by_tag = requests.get(f"{manifests}/0.0.0", headers={"Accept": MANIFESTS}, timeout=30)
    assert reference == f"{registry}/team/trainwright/launcher@{by_tag.headers['Docker-Content-Digest']}"
    digest = f"sha256:{hashlib.sha256(by_tag.content).hexdigest()}"
    assert reference.endswith(f"@{digest}"), "it names these very bytes"
    for words in (["rmi", "--force", image, f"{registry}/team/{image}"], ["pull", "--quiet", reference]):
        subprocess.run(["podman", *words], check=True, capture_output=True)
    subprocess.run(["podman", "rmi", reference], check=True, capture_output=True)
