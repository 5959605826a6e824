"""Run the trainer's tests with another Python and another torch, from this checkout, which is not installed.

``.venv/bin/python tests/versions.py 3.13 2.12.1 [pytest's options and paths]`` makes an environment below
build/versions/ with what the trainer stands on, in the versions of its lock, runs tests/train in it, and ends
with one line of counts. PYTHON is a version that uv finds, or the path of an interpreter.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from run import ROOT, count

TRAINER = ROOT / "images" / "torch"
LOCKS = (ROOT / "tests" / "requirements.lock", TRAINER / "requirements.lock")
"""Whose versions are taken; of a package in both, the last one's."""

TOOLS = ("pytest", "hypothesis")
TORCHS_OWN = {"setuptools"}
"""Not of the lock: torch 2.11 and 2.12 ask for one below 82."""


def versions() -> str:
    """Return the locks' versions, a line for each package, without their hashes."""
    pinned = dict(pin for lock in LOCKS for pin in re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.M))
    return "".join(f"{name}=={pinned[name]}\n" for name in sorted(pinned.keys() - TORCHS_OWN))


def environment(python: str, torch: str) -> Path:
    """Make an environment, or bring it up to date, and return its interpreter.

    Raises:
        CalledProcessError: uv cannot find the interpreter or the packages, and has said so.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    place = f"{python.strip('/').replace('/', '-')}-{torch}"
    folder = ROOT / "build" / "versions" / place / "torch"  # named as the image is, which records tell
    here = folder / "bin" / "python"
    if not here.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", python, str(folder)], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch) / "versions.txt"
        pins.write_text(versions())
        asked = ["--requirements", str(TRAINER / "requirements.in"), f"torch=={torch}", *TOOLS]
        install = [uv, "pip", "install", "--quiet", "--python", str(here), "--constraints", str(pins)]
        subprocess.run([*install, *asked], check=True)
    return here


def main() -> int:
    """Run the tests; 0 when every one passed and there was at least one."""
    parser = argparse.ArgumentParser(prog="tests/versions.py")
    parser.add_argument("python")
    parser.add_argument("torch")
    asked, options = parser.parse_known_args()
    try:
        here = environment(asked.python, asked.torch)
    except subprocess.CalledProcessError as ended:
        return ended.returncode
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "junit.xml"
        command = [str(here), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(report)]
        paths = options if any("tests/" in option for option in options) else [*options, "tests/train"]
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([*command, *paths], cwd=ROOT, env=variables, check=False)
        passed, failed, skipped = count(report)
    print(f"Python {asked.python}, torch {asked.torch}: {passed} passed, {failed} failed, {skipped} skipped")  # noqa: T201
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
