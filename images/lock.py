"""Resolve every lock of the project, or check that each still belongs to its requirements.

``python images/lock.py`` resolves with uv and writes; ``--upgrade`` takes newer versions, without it pins
that still fit are kept. ``python images/lock.py --check`` needs no network and changes nothing.

A lock starts with the digest of the requirements that it was resolved from, names no address, and carries
a hash for every package.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

IMAGES = Path(__file__).resolve().parent
ROOT = IMAGES.parent
COMPILE = ("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes")
PLAIN = ("--no-header", "--no-annotate")
FROM = "# resolved from "


@dataclass(frozen=True)
class Lock:
    """One lock and what it is resolved from."""

    path: Path
    inputs: tuple[Path, ...]
    override: Path | None = None
    constraint: Path | None = None
    dependencies: bool = True

    def digest(self) -> str:
        """Return the SHA-256 over the requirements, comments and blank lines left out."""
        parts = [*self.inputs, *([self.override] if self.override else [])]
        return hashlib.sha256("\0".join(requirements(part) for part in parts).encode()).hexdigest()

    def command(self) -> list[str]:
        """Return the arguments that make uv resolve this lock."""
        command = [*COMPILE, *PLAIN, *map(str, self.inputs)]
        command += ["--override", str(self.override)] if self.override else []
        command += ["--constraint", str(self.constraint)] if self.constraint else []
        return command if self.dependencies else [*command, "--no-deps"]


def requirements(path: Path) -> str:
    """Return the lines of a requirements file that are requirements."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in path.read_text().splitlines())
    return "\n".join(line for line in lines if line)


def locks() -> list[Lock]:
    """List every lock: the builder's tools, kfp alone, each toolchain and variant, examples, tests, docs."""
    found = [Lock(IMAGES / f"{name}.lock", (IMAGES / f"{name}.in",)) for name in ("build", "sbom", "audit")]
    found.append(Lock(IMAGES / "kfp.lock", (IMAGES / "kfp.in",), dependencies=False))
    for path in sorted(IMAGES.glob("*/requirements.in")):
        override = path.with_name("overrides.txt")
        found.append(Lock(path.with_suffix(".lock"), (path,), override if override.exists() else None))
        plain = found[-1]
        for more in sorted(path.parent.glob("requirements-*.txt")):
            found.append(replace(plain, path=more.with_suffix(".lock"), inputs=(path, more)))
    for path in sorted(ROOT.glob("examples/*/requirements.in")):
        found.append(Lock(path.with_suffix(".lock"), (path,), dependencies=False))
    for path in sorted(ROOT.glob("tests/*/requirements.in")):
        found.append(Lock(path.with_suffix(".lock"), (path,)))
    authoring = IMAGES / "authoring" / "requirements.lock"  # the tools of tests and docs go on top of it
    for path in (ROOT / "tests" / "requirements.in", ROOT / "docs" / "site" / "requirements.in"):
        found.append(Lock(path.with_suffix(".lock"), (path,), constraint=authoring))
    return found


def resolve(lock: Lock, *, upgrade: bool) -> None:
    """Write a lock. The markers that uv adds all say the one system of pyproject.toml: they are left out.

    Raises:
        subprocess.CalledProcessError: uv found no set that satisfies the requirements.
    """
    uv = Path(sys.executable).with_name("uv")
    before = lock.path.read_text() if lock.path.exists() else ""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / lock.path.name
        output.write_text(before)  # uv keeps the versions that it finds there
        command = [
            str(uv),
            *lock.command(),
            "--output-file",
            str(output),
            *(["--upgrade"] if upgrade else []),
        ]
        subprocess.run(command, cwd=IMAGES, check=True)  # noqa: S603
        plain = re.sub(r" ;.*( \\)$", r"\1", output.read_text(), flags=re.MULTILINE)
    after = f"{FROM}{lock.digest()}\n{plain}"
    if after != before:  # what has not changed keeps its time: nothing is made again
        lock.path.write_text(after)


def problems(lock: Lock) -> list[str]:
    """List the problems of a lock file."""
    if not lock.path.exists():
        return ["is missing"]
    first, *lines = lock.path.read_text().splitlines()
    found = []
    if first != FROM + lock.digest():
        found.append(f"was not resolved from {lock.inputs[0].name} as it is now")
    pinned = re.compile(r"[a-z0-9][a-z0-9.-]*(\[[a-z0-9,-]+\])?==[^ ;@]+ \\")
    hashed = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    for before, line in zip(["", *lines], lines, strict=False):
        if pinned.fullmatch(line):
            continue
        if not hashed.fullmatch(line) or not before.endswith("\\"):
            found.append(f"has a line that is neither a pinned package nor its hash: {line.strip()!r}")
    if lines and lines[-1].endswith("\\"):
        found.append("ends with a package that has no hash")
    return found


def main() -> int:
    """Resolve or check; 0 when all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only say what does not agree")
    parser.add_argument("--upgrade", action="store_true", help="take newer versions than the ones pinned")
    arguments = parser.parse_args()
    if not arguments.check:
        for lock in locks():
            resolve(lock, upgrade=arguments.upgrade)
    wrong = [f"{lock.path.relative_to(ROOT)} {text}" for lock in locks() for text in problems(lock)]
    if wrong:
        print("\n".join(wrong), "\n  next  make lock", sep="", file=sys.stderr)  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
