"""Look at this machine: which uses it is ready for, what the others lack, and what to do about it."""

import contextlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from trainwright.authoring import environments
from trainwright.authoring.environments import TOOLCHAINS
from trainwright.authoring.images import name
from trainwright.authoring.terminal import Diagnostic
from trainwright.errors import DependencyError, TrainwrightError
from trainwright.local import containers

DISK_GB, MEMORY_GB, CORES = 10, 4, 2
"""What the flights example needs, environments included."""

USES = {
    "run": "trainwright run",
    "containers": "trainwright run --containers",
    "submit": "trainwright submit",
}
"""What the command line is used for. Nobody needs all: who submits needs no environment, and no engine."""

ENGINE_S = 10
"""Seconds that a container engine may take for one answer here."""

TOOLS = {"git": "a run's record names the commit", "kubectl": "only to look at runs on a cluster"}
"""Programs that every use does without, and what each is for."""


def look() -> list[Diagnostic]:
    """Look at everything, and raise nothing. The last findings say which uses this machine is ready for."""
    findings = [_python(), *_environments(), *_containers(), _client(), *_hardware(), *_tools()]
    for use, command in USES.items():
        missing = [one.name for one in findings if one.use == use and one.state == "miss"]
        text = f"not ready: {', '.join(missing)}" if missing else "ready"
        findings.append(Diagnostic(use, "note" if missing else "ok", f"{command}: {text}"))
    return findings


def require(findings: Sequence[Diagnostic]) -> None:
    """Reject a machine that is ready for none of the uses."""
    uses = [finding for finding in findings if finding.name in USES]
    if not any(finding.state == "ok" for finding in uses):
        raise DependencyError(
            f"this machine is not ready for {', '.join(finding.name for finding in uses)}",
            hint="See the lines above.",
        )


def _python() -> Diagnostic:
    ready = sys.version_info[:2] == (3, 11)
    advice = "" if ready else "The toolchains are locked for Python 3.11: install it."
    return Diagnostic("python", "ok" if ready else "miss", platform.python_version(), advice, use="run")


def _environments() -> Iterator[Diagnostic]:
    for toolchain in TOOLCHAINS:
        try:
            environments.python(toolchain)
        except TrainwrightError as error:
            yield Diagnostic(toolchain, "miss", error.what, error.hint, use="run")
        else:
            digest = environments.lock_digest(toolchain)[:12]
            yield Diagnostic(toolchain, "ok", f"environment is as its lock ({digest})", use="run")


def _containers() -> Iterator[Diagnostic]:
    try:
        with (
            contextlib.closing(containers.client(ENGINE_S)) as engine,
            containers.answering("the engine"),
        ):
            text = f"{containers.program(engine)} {engine.version().get('Version', '')} answers"
    except TrainwrightError as error:
        yield Diagnostic("engine", "miss", error.what, error.hint, use="containers")
        return
    yield Diagnostic("engine", "ok", text, use="containers")
    problems: dict[str, TrainwrightError] = {}
    for toolchain in TOOLCHAINS:
        try:
            containers.identity(name(toolchain))
        except TrainwrightError as error:
            problems[toolchain] = error
    text = f"{len(TOOLCHAINS) - len(problems)} of {len(TOOLCHAINS)} are built from what is here"
    if not problems:
        yield Diagnostic("images", "ok", text, use="containers")
        return
    first = next(iter(problems.values()))
    yield Diagnostic(
        "images", "miss", f"{text}, not {', '.join(problems)}: {first.what}", first.hint, "containers"
    )


def _client() -> Diagnostic:
    if importlib.util.find_spec("kfp_server_api"):
        return Diagnostic("client", "ok", f"kfp-server-api {version('kfp-server-api')}", use="submit")
    advice = "Install the library's extra: trainwright[authoring]."
    return Diagnostic("client", "miss", "the client of Kubeflow Pipelines is not there", advice, use="submit")


def _hardware() -> Iterator[Diagnostic]:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = os.cpu_count() or 1
    for part, text, small, advice in (
        (
            "disk",
            f"{free:,.0f} GB free here",
            free < DISK_GB,
            f"The environments and the example need about {DISK_GB} GB.",
        ),
        ("memory", f"{total:,.1f} GB", total < MEMORY_GB, f"The example needs about {MEMORY_GB} GB."),
        ("cores", str(cores), cores < CORES, "The example trains with two processes; it will be slow."),
    ):
        yield Diagnostic(part, "note" if small else "ok", text, advice if small else "")


def _tools() -> Iterator[Diagnostic]:
    for tool, purpose in TOOLS.items():
        place = shutil.which(tool)
        advice = "" if place else f"{purpose}."
        yield Diagnostic(tool, "ok" if place else "note", place or "not there", advice)
