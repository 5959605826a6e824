"""Install a toolchain's packages into a virtual environment, and run uv with the settings of pip.

``python installer.py environment TOOLCHAIN FOLDER`` creates an environment; ``python installer.py uv`` runs
uv. The Dockerfile and the Makefile run this file by path before anything else is installed, so it imports
only the standard library. With any other import, an edit of that module would rebuild the largest layer of
every image.
"""

import argparse
import ast
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "STAMP",
    "InstallationError",
    "Installed",
    "Locks",
    "Settings",
    "find_uv",
    "install",
    "pip_settings",
]

STAMP = "trainwright-environment.json"
"""Written into an environment last: its toolchain and the digest of its locks."""

TAIL_LINES = 12
UNSATISFIABLE = 1
"""uv's exit code when no version fits; anything else that fails, such as the network, ends with 2."""

DEPENDENCY = 21
"""The exit code of ``trainwright.errors.DependencyError``."""

HINTS = (
    (r"[Hh]ash mismatch|DO NOT MATCH", "Run it again; if it stays, the index changed the file."),
    (r"must have (its|a) hash|their versions pinned", "Every package of a lock needs a hash: run make lock."),
    (r"[Nn]o space left", "Free some disk space: all environments take about 4 GB, and 4 GB more with CUDA."),
    (r"[Ff]ailed to build|Build failures", "It needs a C++ compiler: apt-get install g++ python3-dev."),
    (r"[Ff]ailed to fetch|[Cc]onnection|timed out|(was|were) not found|[Nn]o (version|solution)",
     "No package index answered with it: look at the network and the proxy. What is downloaded is kept."),
)  # fmt: skip
"""The next step, by what the tool's output says."""

VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "proxy": ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "all_proxy"),
}
"""The variables of uv that mean the same as a setting of pip; the first is set unless one of them is."""


class InstallationError(Exception):
    """An environment could not be made: what the tool said, and what to do next."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(what, hint)


@dataclass(frozen=True)
class Locks:
    """The files that one toolchain's environment is made from.

    Attributes:
        images: The folder of all locks.
        toolchain: The toolchain's name.
        gpu: Take the lock for machines with GPUs, if the toolchain has one.
    """

    images: Path
    toolchain: str
    gpu: bool = False

    @property
    def hashed(self) -> tuple[Path, ...]:
        """The toolchain's lock, and kfp's, which is installed without its dependencies."""
        own = self.images / self.toolchain
        gpu = own / "requirements-gpu.lock"
        return gpu if self.gpu and gpu.exists() else own / "requirements.lock", self.images / "kfp.lock"

    @property
    def last(self) -> tuple[Path, ...]:
        """Pinned but not hashed, installed last: torch, whose build differs by package index."""
        if self.hashed[0].name == "requirements-gpu.lock":
            return ()
        return tuple(sorted((self.images / self.toolchain).glob("requirements-*.txt")))

    @property
    def digest(self) -> str:
        """The SHA-256 over all that the environment is made from."""
        total = hashlib.sha256()
        for path in (*self.hashed, *self.last):
            total.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
        return total.hexdigest()


@dataclass(frozen=True)
class Settings:
    """Settings of uv that make it use the same indexes and wheels as pip.

    Attributes:
        variables: Environment variables for uv.
        no_index: pip uses no index; uv has an option for this, but no variable.
        find_links: Folders or pages of wheels are configured.
    """

    variables: Mapping[str, str]
    no_index: bool
    find_links: bool

    @property
    def options(self) -> tuple[str, ...]:
        """Options for every ``uv pip install``."""
        return ("--no-index",) if self.no_index else ()


@dataclass(frozen=True)
class Installed:
    """An unhashed requirement as it was installed, such as ``torch==2.13.0+cpu``."""

    requirement: str
    cuda: bool

    def __str__(self) -> str:
        """Return it with its build."""
        return f"{self.requirement.replace('==', ' ')}{', with CUDA' if self.cuda else ''}"


def pip_settings() -> Settings:
    """Return pip's configuration (its files and ``PIP_*`` variables) in uv's terms; uv's own variables win.

    uv reads none of pip's settings, and a mirror is often configured for pip alone.
    """
    pip = _pip_configuration()
    variables: dict[str, str] = {}
    for setting, names in VARIABLES.items():
        value = _for_uv(setting, pip.get(setting, ""))
        if value and not any(os.environ.get(name) for name in names):
            variables[names[0]] = value
    if "UV_INDEX" in variables and "UV_INDEX_STRATEGY" not in os.environ:
        # pip looks for a version in all indexes, uv in the first that has the package. uv's way guards
        # against a stranger's package of the same name; here the hashes of the locks do.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    links = {**os.environ, **variables}.get("UV_FIND_LINKS", "")
    no_index = pip.get("no-index", "").lower() in {"1", "true", "yes", "on", "y", "t"}
    return Settings(variables, no_index, bool(links))


def _pip_configuration() -> dict[str, str]:
    """Return pip's settings as ``pip install`` has them; none where there is no pip."""
    if importlib.util.find_spec("pip") is None:
        return {}
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise InstallationError(f"pip's configuration cannot be read: {done.stderr.strip()}", "Mend it.")
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section in found:
            found[section][setting] = str(ast.literal_eval(value))
    return {**found["global"], **found["install"], **found[":env:"]}


def _for_uv(setting: str, value: str) -> str:
    """Write a setting of pip as uv reads it. Like pip, leave out a folder of wheels that is not there."""
    words = [os.path.expanduser(word) for word in value.split()]
    if setting == "find-links":
        local = [word if re.match(r"[a-z]+://", word) else str(Path(word).absolute()) for word in words]
        return ",".join(word for word in local if not word.startswith("/") or Path(word).exists())
    return " ".join(words)


def find_uv() -> str:
    """Return the path of uv: beside this interpreter, else on the path.

    Raises:
        InstallationError: uv is not installed.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("uv", path=beside) or shutil.which("uv")
    if not found:
        raise InstallationError(
            f"uv, which makes the environments, is not in {beside}",
            f"Run: {sys.executable} -m pip install uv",
        )
    return found


def install(locks: Locks, target: Path, *, pass_fds: Sequence[int] = ()) -> list[Installed]:
    """Create the virtual environment of a toolchain in ``target``, which must be empty.

    Args:
        locks: Its locks.
        target: Its folder.
        pass_fds: File descriptors that the tools inherit, such as a lock's.

    Returns:
        The packages that were installed without a hash.

    Raises:
        InstallationError: uv is missing, no index answers, or a file does not match its hash.
    """
    uv, settings, python = find_uv(), pip_settings(), str(target / "bin" / "python")
    run = _runner(locks, settings, pass_fds)
    run([uv, "venv", "--quiet", "--python", sys.executable, str(target)])
    pip = [uv, "pip", "install", "--quiet", "--python", python, "--compile-bytecode", *settings.options]
    constraints = locks.images / "build.lock"
    if constraints.exists():
        pip += ["--build-constraints", str(constraints)]
    for path in locks.hashed:
        run([*pip, "--require-hashes", "--no-deps", "--requirements", str(path)])
    installed = []
    for path in locks.last:
        for requirement in re.findall(r"^[^#\s]+", path.read_text(), re.MULTILINE):
            chosen = _install_unhashed(run, pip, requirement, settings)
            installed.append(Installed(chosen, any(target.glob("lib/*/site-packages/nvidia_cu*.dist-info"))))
    (target / STAMP).write_text(json.dumps({"name": locks.toolchain, "lock_sha256": locks.digest}) + "\n")
    return installed


def _install_unhashed(
    run: Callable[..., int], pip: Sequence[str], requirement: str, settings: Settings
) -> str:
    """Install the CPU build wherever one is configured, else what the index has; return what was asked for.

    For ``torch==2.13.0``, pip and uv both prefer ``2.13.0+cpu`` to ``2.13.0``. But they prefer ``+cu130`` to
    ``+cpu``, and pip prefers the plain 2.13.0 of an index to one in a folder of wheels.
    """
    cpu = f"{requirement}+cpu"
    if run([*pip, cpu], may_fail=UNSATISFIABLE) == 0:
        return cpu
    # Without an index, a wheel with CUDA is passed over, unless the packages that it needs lie beside it.
    folder_alone = [*pip, "--no-index", requirement]
    if settings.find_links and not settings.no_index and run(folder_alone, may_fail=UNSATISFIABLE) == 0:
        return requirement
    run([*pip, requirement])
    return requirement


def _runner(locks: Locks, settings: Settings, pass_fds: Sequence[int]) -> Callable[..., int]:
    """Return a function that runs one tool, and raises what it said last if it fails."""
    unset = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    variables.update(settings.variables)

    def run(command: Sequence[str], may_fail: int = 0) -> int:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=locks.images,
            env=variables,
            pass_fds=tuple(pass_fds),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in {0, may_fail}:
            said = done.stderr.strip() or done.stdout.strip()
            hint = next((hint for pattern, hint in HINTS if re.search(pattern, said)), "")
            lines = "".join(f"\n    {line}" for line in said.splitlines()[-TAIL_LINES:])
            what = f"the environment of {locks.toolchain} could not be made: "
            raise InstallationError(
                f"{what}{Path(command[0]).name} ended with {done.returncode}{lines}", hint
            )
        return done.returncode

    return run


def run_uv(arguments: Sequence[str]) -> None:
    """Replace this process by uv, with pip's settings."""
    settings = pip_settings()
    options = settings.options if list(arguments[:2]) == ["pip", "install"] else ()
    uv = find_uv()
    os.execve(uv, [uv, *arguments, *options], {**os.environ, **settings.variables})  # noqa: S606


def main() -> None:
    """Run one of the two commands; print an error with its next step."""
    if sys.argv[1:2] == ["uv"]:
        work: Callable[[], object] = lambda: run_uv(sys.argv[2:])  # noqa: E731
    else:
        parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
        parser.add_argument("command", choices=("environment", "uv"))
        parser.add_argument("toolchain")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--images", type=Path, default=Path("images"), help="folder of the locks")
        parser.add_argument("--gpu", action="store_true", help="take the lock for GPUs")
        asked = parser.parse_args()
        locks = Locks(asked.images.resolve(), asked.toolchain, asked.gpu)
        work = lambda: print(*install(locks, asked.folder.absolute()))  # noqa: E731, T201
    try:
        work()
    except InstallationError as error:
        print(f"{error.what}\n  next  {error.hint}", file=sys.stderr)  # noqa: T201
        sys.exit(DEPENDENCY)


if __name__ == "__main__":
    main()
