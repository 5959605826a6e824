"""Run one step: restore it from the cache, or start its process as often as its retry policy allows."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainwright import tracking
from trainwright.authoring import environments
from trainwright.authoring.pipeline_spec import Step, toolchains_in
from trainwright.authoring.toolchains import TOOLCHAINS
from trainwright.local import failures, invocation, run_folder
from trainwright.local.cache import HERE, Broken, Cache, Digests, key_of, moved
from trainwright.local.cache_explanation import MadeFrom
from trainwright.local.invocation import Invocation, decisive
from trainwright.local.kfp_spec import whole
from trainwright.local.processes import Ended, Processes
from trainwright.local.run_folder import Task

RETRYABLE = frozenset({20, 21, 40, 41})
"""Exit codes after which the compiled retry policy applies."""

_HOMES = ".*.job-*"
"""Pattern of the job directories that launchers keep beside the outputs of their step."""


class Machine(Protocol):
    """The environments of the toolchains. :class:`Environments` is the implementation."""

    @property
    def names(self) -> Sequence[str]:
        """Toolchains with an environment here, made or not."""
        ...

    def python(self, toolchain: str) -> Path:
        """Return the interpreter of a toolchain."""
        ...

    def lock_digest(self, toolchain: str) -> str:
        """Return the digest of the locks of a toolchain's environment."""
        ...

    def library_digest(self) -> str:
        """Return the digest of the library that steps import."""
        ...


def require(machine: Machine, steps: Sequence[Step]) -> None:
    """Check the environments of all steps and of the jobs that they start.

    Raises:
        DependencyError: An environment is missing, or older than its lock.
    """
    for step in steps:
        for toolchain in {step.toolchain, *toolchains_in(step.constants)}:
            machine.python(toolchain)


class Executor(Protocol):
    """An executor of single attempts: processes of this machine, or containers."""

    def run(self, call: Invocation, scratch: str) -> Ended:
        """Run one attempt to its end; ``scratch`` is a folder for its temporary files."""
        ...

    def made_from(self, call: Invocation) -> dict[str, str]:
        """Return the digests of the packages of the step, and of its job."""
        ...


class Environments:
    """The environments of :mod:`trainwright.authoring.environments`."""

    names: Sequence[str] = TOOLCHAINS

    def python(self, toolchain: str) -> Path:
        """Return the interpreter of a toolchain."""
        return environments.python(toolchain)

    def lock_digest(self, toolchain: str) -> str:
        """Return the digest of the toolchain's lock."""
        return environments.lock_digest(toolchain)

    def library_digest(self) -> str:
        """Return the digest of this library, to which every environment has a link."""
        return tracking.library_digest()


class Here:
    """Start steps as processes of this machine, each in the environment of its image."""

    def __init__(self, machine: Machine, processes: Processes) -> None:
        self._machine, self._processes = machine, processes

    def run(self, call: Invocation, scratch: str) -> Ended:
        """Run one attempt to its end."""
        python = self._machine.python(call.step.toolchain)
        variables = invocation.variables(python, call.variables, scratch)
        return self._processes.run(call.command, variables, call.log, call.step.timeout_s)

    def made_from(self, call: Invocation) -> dict[str, str]:
        """Return the digests of the locks of the step's environment and of those that a parameter names."""
        toolchains = {call.step.toolchain, *toolchains_in(call.parameters)}
        return {name: self._machine.lock_digest(name) for name in toolchains}


class Execution:
    """Run the steps of one run.

    Args:
        folder: The run's folder.
        place: Where attempts are started.
        processes: The run's processes.
        library: Digest of the library; part of every cache key.
        reusable: Steps whose result may come from the cache.
        warn: Called with a warning.
    """

    def __init__(
        self,
        folder: Path,
        *,
        place: Executor,
        processes: Processes,
        library: str,
        reusable: frozenset[str],
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._place, self._processes, self._library = folder, place, processes, library
        self._reusable, self._warn = reusable, warn
        self._digests = Digests()
        self._shared = Cache(folder.parent / ".cache", self._digests)
        self._finished = Cache(folder / run_folder.OWN / "finished", self._digests)

    def run(self, call: Invocation) -> Task:
        """Run a step, or reuse its result.

        Raises:
            TrainwrightError: The step could not be started, or its outputs are invalid.
        """
        call.require_short()
        made_from = self._made_from(call)
        cache, key = self._cache(call, made_from)
        unfinished = _set_aside(call.folder)
        output, reason = self._reused(cache, key, call)
        if made_from:
            self._note(MadeFrom(step=call.name, key=key, reason=reason, made_from=made_from))
        if output is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
            return _task(call, output, "cached", 0)
        call.folder.mkdir()
        _bring_back(unfinished, call.folder)
        attempts, error = self._attempts(call)
        if error:
            return failures.failed(call, error, attempts)
        output = invocation.read_output(call)
        if cache:
            try:
                cache.store(key, call.folder, self._folder, output)
            except OSError as problem:
                self._warn(f"the result of {call.name} was not kept for later runs: {problem}")
        return _task(call, output, "done", attempts)

    def _made_from(self, call: Invocation) -> dict[str, Any]:
        """Return everything that decides the step's result; empty for a result that is not cached."""
        artifacts = call.input_digests(self._digests)
        if call.step.closing or artifacts is None:
            return {}
        made_from = {
            "image": call.step.image,
            "locks": self._place.made_from(call),
            "library": self._library,
            "container": call.step.container,
            "parameters": decisive(call.step, call.parameters),
            "artifacts": artifacts,
            "outputs": call.step.outputs,
        }
        return dict(moved(made_from, str(self._folder), HERE))

    def _cache(self, call: Invocation, made_from: Mapping[str, Any]) -> tuple[Cache | None, str]:
        """Return the cache of the step's result, and its key; None for a result that is not cached.

        A run stores the result of a step that must not be reused in its own folder, to be able to resume.
        """
        if not made_from:
            return None, ""
        if call.step.cacheable:
            return self._shared, key_of(made_from)
        return self._finished, key_of({**made_from, "call": call.name})

    def _note(self, made_from: MadeFrom) -> None:
        """Write the data of ``trainwright cache explain``; the run does not depend on it."""
        try:
            made_from.keep(self._folder)
        except OSError as problem:
            self._warn(f"what {made_from.step} is made from was not written down: {problem}")

    def _reused(self, cache: Cache | None, key: str, call: Invocation) -> tuple[dict[str, Any] | None, str]:
        """Return the cached output if it may be used, and the reason why it was or was not."""
        if cache is None:
            return None, "never cached"
        if call.step.name not in self._reusable:
            return None, "asked"
        try:
            output = cache.restore(key, call.folder, self._folder)
        except Broken as problem:
            self._warn(f"{call.name} is done again: {problem}")
            return None, "broken"
        if output is None:
            return None, "no result" if call.step.cacheable else "never cached"
        invocation.write_output(call, output)
        return output, "reused"

    def _attempts(self, call: Invocation) -> tuple[int, dict[str, Any]]:
        """Run the step's process until it succeeds or must not be retried.

        Returns:
            The number of attempts, and the error of the last one; empty if it succeeded.
        """
        retry = call.step.retry
        for attempt in range(retry.count + 1):
            with self._processes.scratch() as scratch:
                ended = self._place.run(call, scratch)
            if ended.code == 0 and not ended.late:
                return attempt + 1, {}
            error = failures.failure(call, ended)
            wait_s = retry.wait_s(attempt)
            if attempt == retry.count or error["code"] not in RETRYABLE:
                break
            note = f"attempt {attempt + 1} of {retry.count + 1} ended, the next is in {wait_s:g} s"
            self._warn(f"{call.name}: {note}: {error['what']}")
            with call.log.open("a") as log:
                log.write(f"\n-- {note} --\n")
            if self._processes.cancelled.wait(wait_s):
                break
            _clear(call.folder)
        return attempt + 1, error


def _clear(folder: Path) -> None:
    """Remove the files of an attempt but its log, as a new pod would not see them.

    Job directories stay: they are on a volume, from which a restarted job resumes.
    """
    for path in folder.iterdir():
        if path.name != run_folder.LOG and not path.match(_HOMES):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _bring_back(place: Path, folder: Path) -> None:
    """Move the files of :func:`_set_aside` back."""
    if place.exists():
        for path in place.iterdir():
            path.rename(folder / path.name)
        place.rmdir()


def _set_aside(folder: Path) -> Path:
    """Remove a step's folder except unfinished job directories; return where these are now."""
    place = folder.with_name(f".{folder.name}.unfinished")
    for home in folder.glob(_HOMES):
        place.mkdir(exist_ok=True)
        shutil.rmtree(place / home.name, ignore_errors=True)
        home.rename(place / home.name)
    shutil.rmtree(folder, ignore_errors=True)
    return place


def _task(call: Invocation, output: dict[str, Any], state: str, attempts: int) -> Task:
    artifacts = invocation.artifacts(call, output)
    record = run_folder.record_of(artifacts)
    return Task(
        step=call.name,
        state=state,
        environment=call.step.toolchain,
        headline=record.headline if record else "",
        decision=record.decision if record else "",
        verb=record.step if record else call.step.name,
        attempts=attempts,
        outputs=artifacts,
        parameters=whole(output["executor"].get("parameterValues", {})),
    )
