"""Looks at this machine and says what a run would miss, and what to do about it."""

import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.authoring import environments
from trainwright.authoring.toolchains import TOOLCHAINS
from trainwright.errors import DependencyError, TrainwrightError

DISK_GB, MEMORY_GB, CORES = 10, 4, 2
"""What the flights example needs, environments included."""

TOOLS = {
    "git": "a run's record names the commit",
    "kubectl": "only to look at runs on a cluster",
    "docker": "only to build the images and to run in them",
}
"""Programs that a local run does without, and what each is for."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``state`` is ``ok``, ``note`` (it works without) or ``miss``."""

    name: str
    state: str
    text: str
    advice: str = ""

    def fields(self) -> dict[str, str]:
        """Return it as plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Write it as one line, and what to do on a second."""
        line = f"  {self.state:<5} {self.name:<10} {self.text}"
        return f"{line}\n{'':<19}{self.advice}" if self.advice else line


def look() -> list[Finding]:
    """Look at everything, and raise nothing."""
    return [_python(), *_environments(), _disk(), _memory(), _cores(), *_tools()]


def require(findings: Sequence[Finding]) -> None:
    """Refuse a machine on which a run would fail.

    Raises:
        DependencyError: Something is missing.
    """
    if missing := [finding.name for finding in findings if finding.state == "miss"]:
        raise DependencyError(f"this machine is not ready: {', '.join(missing)}", hint="See the lines above.")


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] == (3, 11):
        return Finding("python", "ok", version)
    return Finding("python", "miss", version, "The toolchains are locked for Python 3.11: install it.")


def _environments() -> Iterator[Finding]:
    for toolchain in TOOLCHAINS:
        try:
            environments.python(toolchain)
        except TrainwrightError as error:
            yield Finding(toolchain, "miss", error.what, error.hint)
        else:
            yield Finding(
                toolchain, "ok", f"environment is as its lock ({environments.lock_digest(toolchain)[:12]})"
            )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    text = f"{free:,.0f} GB free here"
    advice = f"The environments and the example need about {DISK_GB} GB." if free < DISK_GB else ""
    return Finding("disk", "note" if advice else "ok", text, advice)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    advice = f"The example needs about {MEMORY_GB} GB." if total < MEMORY_GB else ""
    return Finding("memory", "note" if advice else "ok", f"{total:,.1f} GB", advice)


def _cores() -> Finding:
    count = os.cpu_count() or 1
    advice = "The example trains with two processes; it will be slow." if count < CORES else ""
    return Finding("cores", "note" if advice else "ok", str(count), advice)


def _tools() -> Iterator[Finding]:
    for tool, purpose in TOOLS.items():
        place = shutil.which(tool)
        yield Finding(tool, "ok" if place else "note", place or "not there", "" if place else f"{purpose}.")
