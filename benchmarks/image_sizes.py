"""How large the images' environments are, against what the named peers publish, installed the same way.

The peers are one package each that every step of theirs carries: google-cloud-pipeline-components, whose
image only submits work to a service, and TFX, whose image does all of its steps. Each is resolved and
installed by uv for the same Python and compiled to bytecode, as ours are. Where images were built
(``build/images/images.json``), the table says what each adds to its base.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import publish

from trainwright.authoring.environments import TOOLCHAINS, default_folder
from trainwright.authoring.images import name

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"google-cloud-pipeline-components": "2.22.0", "tfx": "1.16.0"}
COMPARED = {"launcher": "google-cloud-pipeline-components", "tfdv": "tfx"}
"""Ours against the peer that does the same: wait for a job; judge data, the largest of ours."""


def megabytes(place: Path) -> float:
    """Return the size of all files below a folder; one that has several names counts once."""
    files = (file.lstat() for file in place.rglob("*"))
    return sum({(file.st_ino, file.st_dev): file.st_size for file in files}.values()) / 1e6


def packages(place: Path) -> int:
    """Return how many packages an environment holds."""
    return sum(1 for _ in place.glob("lib/python3*/site-packages/*.dist-info"))


def installed(peer: str, scratch: Path) -> tuple[int, float]:
    """Install a peer as our environments are; return its packages and its size."""
    uv = Path(sys.executable).with_name("uv")
    place = scratch / peer
    subprocess.run([uv, "venv", "--quiet", "--python", "3.11", place], check=True)
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", place / "bin" / "python"]
    subprocess.run([*install, f"{peer}=={PEERS[peer]}"], check=True)
    return packages(place), megabytes(place)


def built() -> dict[str, float]:
    """Return what each image adds to its base, as far as images were built here."""
    path = ROOT / "build" / "images" / "images.json"
    images = json.loads(path.read_text())["images"] if path.exists() else {}
    return {toolchain: images.get(name(toolchain), {}).get("megabytes", 0.0) for toolchain in TOOLCHAINS}


def main() -> int:
    """Measure, print, and say whether each of ours is smaller than its peer."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0]).parse_args()
    ours = {toolchain: megabytes(default_folder() / toolchain) for toolchain in sorted(TOOLCHAINS)}
    images = built()
    rows: list[list[object]] = [
        [
            toolchain,
            packages(default_folder() / toolchain),
            f"{size:,.0f}",
            f"{images[toolchain]:,.0f}" if images[toolchain] else "",
        ]
        for toolchain, size in ours.items()
    ]
    theirs = {}
    with tempfile.TemporaryDirectory(prefix="trainwright-peers-") as scratch:
        for peer, version in PEERS.items():
            started = time.monotonic()
            count, theirs[peer] = installed(peer, Path(scratch))
            print(f"{peer} in {time.monotonic() - started:.0f} s", flush=True)
            rows.append([f"{peer} {version}", count, f"{theirs[peer]:,.0f}", ""])
    compared = [
        f"{own} {ours[own]:,.0f} MB against {peer} {theirs[peer]:,.0f} MB" for own, peer in COMPARED.items()
    ]
    met = all(ours[own] < theirs[peer] for own, peer in COMPARED.items())
    line = f"image_sizes: {', '.join(compared)} (goal: smaller)"
    return publish(
        "image_sizes", ["environment", "packages", "MB", "image above its base, MB"], rows, line, met
    )


if __name__ == "__main__":
    sys.exit(main())
