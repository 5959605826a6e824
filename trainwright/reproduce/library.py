"""The library of a run: a git worktree of its commit, with its changes and its own environments."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trainwright
from trainwright import tracking
from trainwright.authoring import pipeline_spec
from trainwright.authoring.environments import LIBRARY, ToolchainEnvironment, locks
from trainwright.command import stopped_together
from trainwright.errors import DependencyError, InputError
from trainwright.reproduce.recorded_run import RecordedRun

DIRTY = "-dirty"
_START = "from trainwright.cli.app import main; main()"
_DIGEST = "from trainwright.tracking import record; print(record.library_digest())"
_AUTHORING = Path("authoring", "requirements.lock")


@dataclass(frozen=True)
class Library:
    """A copy of the library that can run pipelines.

    Attributes:
        python: Words that start its Python.
        variables: Environment variables with which it finds its own source.
        root: Its repository; None if it is installed.
        commit: Its commit; empty if it is installed, or is the present checkout.
    """

    python: tuple[str, ...] = (sys.executable, "-P")
    variables: dict[str, str] = field(default_factory=dict)
    root: Path | None = None
    commit: str = ""

    def call(self, *words: str) -> tuple[list[str], dict[str, str]]:
        """Return the command that calls its command line, and the environment variables for it."""
        return [*self.python, "-c", _START, *words], os.environ | self.variables


def library_of(run: RecordedRun, cache: Path) -> Library:
    """Return the library with which a run was made; it is made first where it is not the present one.

    Args:
        run: The run.
        cache: Folder of worktrees, outside of the checkout.

    Raises:
        InputError: Its commit is not here, or its source is not what the record says.
        DependencyError: git or an environment could not be used.
    """
    version, expected = run.library
    root = LIBRARY.parent
    if locks().parent != root:
        _require_installed(run, version, expected)
        return Library()
    sha = run.commit.removesuffix(DIRTY)
    if not sha.isalnum() or sha == "none" or not _has(root, sha):
        if tracking.library_digest() == expected:
            return Library(root=root)
        raise InputError(
            f"commit {run.commit or '(none recorded)'} of run {run.name} is not in this repository",
            where=str(root),
            hint="Fetch it (git fetch), or call this command in a clone that has it.",
        )
    worktree, fresh = _worktree(root, sha, run.patch, cache)
    library = Library(*_python(root, worktree), root=worktree, commit=sha)
    if fresh or _digest(library) != expected:  # else another reproduction may be running in it
        _restore(worktree, sha, run.patch)
        _require_source(run, library, expected)
    _make_environments(run.pipeline, library)
    return library


def _require_installed(run: RecordedRun, version: str, expected: str) -> None:
    if trainwright.__version__ != version:
        raise InputError(
            f"run {run.name} was made by trainwright {version}, installed is {trainwright.__version__}",
            hint=f"Install it: pip install trainwright=={version}; then trainwright setup.",
        )
    if (found := tracking.library_digest()) != expected:
        raise InputError(
            f"run {run.name} was made by a library with digest {expected[:12]}, this one has {found[:12]}, "
            f"and both are version {version}",
            where=str(LIBRARY),
            hint="It was made from a checkout: call this command in a clone of the repository.",
        )


def git(folder: Path, *words: str) -> str:
    """Run git in a folder and return its output.

    Raises:
        DependencyError: git is missing or fails.
    """
    try:
        done = subprocess.run(  # noqa: S603 - words of ours
            ["git", "-C", str(folder), *words],  # noqa: S607 - found on the PATH
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        raise DependencyError(
            "git is not installed", hint="Install it, such as apt-get install git."
        ) from None
    except subprocess.CalledProcessError as error:
        what = f"git {words[0]} failed: {error.stderr.strip()[:500]}"
        raise DependencyError(what, where=str(folder)) from None
    return done.stdout.strip()


def _has(root: Path, sha: str) -> bool:
    try:
        git(root, "cat-file", "-e", f"{sha}^{{commit}}")
    except DependencyError:
        return False
    return True


def _worktree(root: Path, sha: str, patch: Path | None, cache: Path) -> tuple[Path, bool]:
    """Return the worktree of a commit with its changes, and True if it was made now, without the changes."""
    changes = hashlib.sha256(patch.read_bytes()).hexdigest()[:8] if patch else ""
    folder = cache / "-".join(filter(None, (sha[:12], changes)))
    if (folder / ".git").exists():
        return folder, False
    cache.mkdir(parents=True, exist_ok=True)
    git(root, "worktree", "prune")
    git(root, "worktree", "add", "--detach", str(folder), sha)
    return folder, True


def _restore(folder: Path, sha: str, patch: Path | None) -> None:
    """Restore the files of a commit, and apply the changes. Environments in the worktree stay."""
    git(folder, "reset", "--hard", "--quiet", sha)
    git(folder, "clean", "-fdq")
    if patch:
        try:
            git(folder, "apply", "--allow-empty", str(patch.resolve()))  # one may only name untracked files
        except DependencyError as error:
            raise InputError(
                f"the recorded changes do not apply to commit {sha[:12]}: {error.what}",
                where=str(patch),
                hint="It may be cut or redacted: its first lines say so.",
            ) from None


def _python(root: Path, worktree: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the Python of the command line, and its variables: this one if its lock is the same."""
    here, there = (folder / "images" / _AUTHORING for folder in (root, worktree))
    if there.exists() and here.read_bytes() == there.read_bytes():
        return (sys.executable, "-P"), {"PYTHONPATH": str(worktree)}
    command = ["make", "-C", str(worktree), f"PYTHON={Path(sys.executable).resolve()}", "cli"]
    _prepare(command, dict(os.environ), worktree, "make cli")
    return (str(worktree / ".venv" / "bin" / "python"), "-P"), {}


def _digest(library: Library) -> str:
    command = [*library.python, "-c", _DIGEST]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env=os.environ | library.variables
    )
    return done.stdout.strip()


def _require_source(run: RecordedRun, library: Library, expected: str) -> None:
    if (found := _digest(library)) != expected:
        dirty = run.commit.endswith(DIRTY) and not run.patch
        raise InputError(
            f"the library of run {run.name} has digest {expected[:12]}, commit {library.commit[:12]} "
            + (f"with its changes has {found[:12]}" if run.patch else f"has {found[:12]}"),
            where=str(library.root),
            hint="It had changes that were not committed, and nobody recorded them."
            if dirty
            else "The record or the commit was changed, or the run was made from another checkout.",
        )


def _make_environments(pipeline: str, library: Library) -> None:
    """Make the environments of a pipeline from the locks of the worktree.

    Those of this checkout with the same lock are linked file by file; its own ``setup`` makes the others.
    """
    assert library.root is not None  # noqa: S101 - a worktree has one
    compiled = library.root / "compiled" / "pipelines" / f"{pipeline}.yaml"
    if not compiled.exists():
        raise InputError(f"{library.commit[:12]} has no pipeline {pipeline!r}", where=str(compiled))
    toolchains = _toolchains(compiled)
    folder = library.root / ".environments"
    for name in toolchains:
        made = ToolchainEnvironment(name)
        same = ToolchainEnvironment(name, folder, library.root / "images")
        if made.made_from in same.digests and same.problem():
            _link(made.path, same.path)
    command, variables = library.call("setup", *toolchains)
    _prepare(command, variables, library.root, "make environments")


def _prepare(command: Sequence[str], variables: Mapping[str, str], worktree: Path, by_hand: str) -> None:
    """Run a command that makes a part of a worktree; it stops together with this process."""
    with subprocess.Popen(  # noqa: S603
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        with stopped_together(process) as received:
            printed, _ = process.communicate()
        if received:
            raise KeyboardInterrupt
    if process.returncode:
        what = f"the library could not be prepared: {printed.strip()[-500:]}"
        raise DependencyError(what, where=str(worktree), hint=f"Run there: {by_hand}")


def _toolchains(compiled: Path) -> Sequence[str]:
    found: dict[str, None] = {}
    for step in pipeline_spec.read(compiled).steps:
        found |= dict.fromkeys((step.toolchain, *pipeline_spec.toolchains_in(step.constants)))
    return list(found)


def _link(source: Path, target: Path) -> None:
    """Copy an environment by hard links; across disks this fails, and it is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    attempt = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copytree(source, attempt, symlinks=True, copy_function=os.link)
        attempt.replace(target)
    except OSError:
        shutil.rmtree(attempt, ignore_errors=True)
