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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STAMP = "trainwright-environment.json"
"""Written into an environment last: its toolchain and the digest of its locks."""

TAIL_LINES = 12

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

BUILD_HINT = "Name an index with the build of torch.lock, or take PyPI's: --variant gpu; see docs/images.md."

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


class BuildNotFound(InstallationError):
    """No package index here has the build of torch that ``torch.lock`` names."""


@dataclass(frozen=True)
class Locks:
    """The files that one toolchain's environment is made from, in the folder ``images``."""

    images: Path
    toolchain: str
    variant: str = ""  # take requirements-VARIANT.lock, if the toolchain has it

    @property
    def files(self) -> tuple[Path, ...]:
        """The toolchain's locks, and kfp's, which is installed without its dependencies.

        The lock of a variant has everything, that of ``gpu`` also PyPI's build of torch. Otherwise
        ``torch.lock`` has torch; it comes first, because many indexes do not have it.
        """
        own = self.images / self.toolchain
        variant = own / f"requirements-{self.variant}.lock"
        build = () if self.variant == "gpu" else own.glob("torch.lock")
        chosen = variant if variant.exists() else own / "requirements.lock"
        return (*build, chosen, self.images / "kfp.lock")

    @property
    def digest(self) -> str:
        """The SHA-256 over all that the environment is made from."""
        total = hashlib.sha256()
        for path in self.files:
            total.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
        return total.hexdigest()


def pip_settings() -> tuple[dict[str, str], tuple[str, ...]]:
    """Return pip's configuration (its files and ``PIP_*`` variables) for uv, whose own variables win.

    uv reads none of pip's settings, and a mirror is often configured for pip alone.

    Returns:
        Variables for uv, and options of ``uv pip install``.
    """
    pip = _pip_configuration()
    variables: dict[str, str] = {}
    for setting, names in VARIABLES.items():
        words = [os.path.expanduser(word) for word in pip.get(setting, "").split()]
        if setting == "find-links":  # like pip, leave out a folder of wheels that does not exist
            words = [word if re.match(r"[a-z]+://", word) else str(Path(word).absolute()) for word in words]
            words = [word for word in words if not word.startswith("/") or Path(word).exists()]
        if words and not any(os.environ.get(name) for name in names):
            variables[names[0]] = ("," if setting == "find-links" else " ").join(words)
    if "UV_INDEX" in variables and "UV_INDEX_STRATEGY" not in os.environ:
        # pip looks for a version in all indexes, uv in the first that has the package. uv's way guards
        # against a stranger's package of the same name; here the hashes of the locks do.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    no_index = pip.get("no-index", "").lower() in {"1", "true", "yes", "on", "y", "t"}
    return variables, ("--no-index",) if no_index else ()


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


def find_uv() -> str:
    """Return the path of uv: beside this interpreter, else on the path."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("uv", path=beside) or shutil.which("uv")
    if not found:
        raise InstallationError(
            f"uv, which makes the environments, is not in {beside}",
            f"Run: {sys.executable} -m pip install uv",
        )
    return found


def install(locks: Locks, target: Path, *, pass_fds: Sequence[int] = ()) -> None:
    """Create the virtual environment of a toolchain in ``target``, which must be empty.

    Raises:
        BuildNotFound: No index here has the build of torch.
        InstallationError: uv could not do it, or a file does not match its hash.
    """
    uv, (variables, options), python = find_uv(), pip_settings(), str(target / "bin" / "python")
    tool = _Tool(locks, variables, tuple(pass_fds))
    tool.run([uv, "venv", "--quiet", "--python", sys.executable, str(target)])
    pip = [uv, "pip", "install", "--quiet", "--python", python, "--compile-bytecode", *options]
    constraints = locks.images / "build.lock"
    if constraints.exists():
        pip += ["--build-constraints", str(constraints)]
    for path in locks.files:
        try:
            tool.run([*pip, "--require-hashes", "--no-deps", "--requirements", str(path)])
        except InstallationError as error:
            if path.name == "torch.lock" and "No solution found" in error.what:
                raise BuildNotFound(error.what, BUILD_HINT) from None
            raise
    (target / STAMP).write_text(json.dumps({"name": locks.toolchain, "lock_sha256": locks.digest}) + "\n")


@dataclass(frozen=True)
class _Tool:
    """Runs uv for a toolchain."""

    locks: Locks
    variables: Mapping[str, str]
    pass_fds: tuple[int, ...]

    def run(self, command: Sequence[str]) -> None:
        """Run a command; raise its last output if it fails."""
        unset = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        done = subprocess.run(  # noqa: S603
            command,
            cwd=self.locks.images,
            env={**inherited, **self.variables},
            pass_fds=self.pass_fds,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            output = done.stderr.strip() or done.stdout.strip()
            hint = next((hint for pattern, hint in HINTS if re.search(pattern, output)), "")
            lines = "".join(f"\n    {line}" for line in output.splitlines()[-TAIL_LINES:])
            what = f"the environment of {self.locks.toolchain} could not be made: "
            raise InstallationError(
                f"{what}{Path(command[0]).name} ended with {done.returncode}{lines}", hint
            )


def run_uv(arguments: Sequence[str]) -> None:
    """Replace this process by uv, with pip's settings."""
    variables, options = pip_settings()
    options = options if list(arguments[:2]) == ["pip", "install"] else ()
    uv = find_uv()
    os.execve(uv, [uv, *arguments, *options], os.environ | variables)  # noqa: S606


def main() -> None:
    """Run one of the two commands; print an error with its next step."""
    try:
        if sys.argv[1:2] == ["uv"]:
            run_uv(sys.argv[2:])
        parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
        parser.add_argument("command", choices=("environment", "uv"))
        parser.add_argument("toolchain")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--images", type=Path, default=Path("images"), help="folder of the locks")
        parser.add_argument("--variant", default="", help="take the lock of a variant: gpu, engines")
        options = parser.parse_args()
        install(
            Locks(options.images.resolve(), options.toolchain, options.variant), options.folder.absolute()
        )
    except InstallationError as error:
        print(f"{error.what}\n  next  {error.hint}", file=sys.stderr)  # noqa: T201
        sys.exit(DEPENDENCY)


if __name__ == "__main__":
    main()
