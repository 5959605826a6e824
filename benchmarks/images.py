"""How long a fresh set-up takes, and how large each environment is.

Makes all that ``make demo`` sets up, ``.venv`` included, in a temporary folder: with empty caches of uv and
pip, then again with warm ones. The peer is venv and pip, the usual way to fill an image, for one toolchain.
``--warm-only`` uses the caches of this machine and downloads little.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from results import publish

from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment

ROOT = Path(__file__).resolve().parents[1]
GOAL_S = 240
PEER = "tabular"
MAKE = """
import json, sys
from pathlib import Path
from trainwright.authoring.environments import make
made = make(folder=Path(sys.argv[1]))
print(json.dumps({one.toolchain: [one.seconds, one.megabytes] for one in made}))
"""


@dataclass(frozen=True)
class SetUp:
    """What one set-up took; environments are made two at a time, so theirs add up to more than the total."""

    label: str
    total_s: float
    each: dict[str, tuple[float, float]]  # seconds and megabytes by environment


def set_up(label: str, folder: Path, caches: Mapping[str, str]) -> SetUp:
    """Make ``.venv`` and every environment from a copy of this project, as ``make`` does."""
    for name in ("images", "trainwright"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", folder)
    variables = {**os.environ, **caches}
    started = time.monotonic()
    command = ["make", "--silent", ".venv/.made"]
    subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
    each = {".venv": (time.monotonic() - started, megabytes(folder / ".venv"))}
    started_making = time.monotonic()
    command = [str(folder / ".venv/bin/python"), "-c", MAKE, str(folder / ".environments")]
    done = subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    total = each[".venv"][0] + time.monotonic() - started_making
    return SetUp(label, total, each | json.loads(done.stdout))


def megabytes(folder: Path) -> float:
    """Return the size of all files below a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*")) / 1e6


def ours_alone(scratch: Path) -> float:
    """Make the peer's environment by itself, with an empty cache; return the seconds."""
    started = time.monotonic()
    code = "import sys; from pathlib import Path; from trainwright.authoring import environments as made; "
    code += "made.make([sys.argv[1]], folder=Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, PEER, str(scratch / "made")]
    variables = {**os.environ, "UV_CACHE_DIR": str(scratch / "cache")}
    subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def by_pip(scratch: Path) -> float:
    """Make the same environment with venv and pip, with an empty cache; return the seconds."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", scratch / PEER], check=True)
    variables = {**os.environ, "PIP_CACHE_DIR": str(scratch / "cache")}
    for lock in ToolchainEnvironment(PEER).locks.hashed:
        command = [
            str(scratch / PEER / "bin/python"),
            "-m",
            "pip",
            "install",
            "-qq",
            "--require-hashes",
            "--no-deps",
        ]
        subprocess.run([*command, "--requirement", str(lock)], env=variables, check=True)
    return time.monotonic() - started


def packages(environment: str) -> str:
    """Return how many packages an environment's lock names, torch and kfp included."""
    if environment not in TOOLCHAINS:
        return ""
    place = ToolchainEnvironment(environment)
    text = "".join(path.read_text() for path in (*place.locks.hashed, *place.locks.last))
    return str(sum("==" in line and not line.startswith(("#", " ")) for line in text.splitlines()))


def table(runs: list[SetUp]) -> list[list[object]]:
    """Return one row an environment: packages, seconds of each run, size in MB."""
    rows: list[list[object]] = [
        [name, packages(name), *(f"{run.each[name][0]:.1f}" for run in runs), f"{size:,.0f}"]
        for name, (_, size) in runs[0].each.items()
    ]
    sizes = sum(size for _, size in runs[0].each.values())
    return [*rows, ["all", "", *(f"{run.total_s:.1f}" for run in runs), f"{sizes:,.0f}"]]


def main() -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--warm-only", action="store_true", help="use this machine's caches, download little")
    warm_only = parser.parse_args().warm_only
    with tempfile.TemporaryDirectory(prefix="trainwright-images-") as name:
        scratch = Path(name)
        empty = {"UV_CACHE_DIR": str(scratch / "uv"), "PIP_CACHE_DIR": str(scratch / "pip")}
        runs = [
            set_up(label, scratch / label, {} if warm_only else empty)
            for label in ("cold", "warm")[warm_only:]
        ]
        peer = ""
        if not warm_only:
            ours, theirs = ours_alone(scratch / "ours"), by_pip(scratch / "theirs")
            peer = f", {PEER} alone {ours:.1f} s against {theirs:.1f} s by venv and pip"
    total = runs[0].total_s
    line = f"images: {runs[0].label} set-up {total:.0f} s on {os.cpu_count()} cores{peer} (goal {GOAL_S} s)"
    header = ["environment", "packages", *(f"{run.label} s" for run in runs), "MB"]
    return publish("images", header, table(runs), line, total <= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
