"""The janitor as its page starts it: a program of its own, with what kubectl uses here."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launch.standin import cluster
from tests.launch.standin.clusters import ADMIN
from tests.launch.test_manifests import asked
from trainwright.launch import manifests

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"python (-m trainwright\.launch\.janitor [^`\n|]*)")
WRITTEN = sorted(
    {found[1].strip() for path in (ROOT / "docs").glob("*.md") for found in LINE.finditer(path.read_text())}
)


def settings(folder: Path, url: str) -> Path:
    """Write what kubectl would use."""
    named = [
        ("cluster", {"server": url}),
        ("user", {"token": ADMIN}),
        ("context", {"cluster": "c", "user": "u"}),
    ]
    content = {f"{kind}s": [{"name": kind[0], kind: body}] for kind, body in named}
    content["contexts"][0]["name"] = "here"
    path = folder / "config"
    path.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here"} | content)
    )
    return path


@pytest.mark.parametrize("line", WRITTEN)
def test_the_janitor_of_the_pages_looks_and_ends_well(line: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    words = shlex.split(line.replace("/shared", str(tmp_path / "shared")))
    with cluster(tmp_path / "cluster", operator=False, namespaces=("team", "team-a")) as there:
        body = manifests.make_manifest(asked(), "pytorchjob")
        body["metadata"]["namespace"] = "team-a"
        there.put(body)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | {"KUBECONFIG": str(settings(tmp_path, there.url))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert body["metadata"]["name"] in done.stdout
        assert there.objects("PyTorchJob")


def test_the_pages_start_it() -> None:
    assert any("--dry-run" in line for line in WRITTEN)
    assert any("--remove-homes" in line for line in WRITTEN)
