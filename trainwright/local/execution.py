"""Run one step: restore it from the cache, or start its process as often as its retry policy allows."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright import errors, tracking
from trainwright.authoring import environments
from trainwright.authoring.environments import TOOLCHAINS
from trainwright.authoring.pipeline_spec import Step, toolchains_in
from trainwright.errors import InputError
from trainwright.local import invocation, run_folder
from trainwright.local.cache import HERE, Broken, Cache, Digests, MadeFrom, key_of, moved
from trainwright.local.invocation import Invocation
from trainwright.local.kfp_spec import whole
from trainwright.local.processes import Ended, Processes, tail
from trainwright.local.run_folder import Task

if TYPE_CHECKING:
    from trainwright.local.containers import Containers

RETRYABLE = frozenset({20, 21, 40, 41})
"""Exit codes after which the compiled retry policy applies."""

KILLED = frozenset({-1, -2, -9, -15, 129, 130, 137, 143})
"""Exit codes of a process that a signal ended, as written by the shell and by Python."""

_TAIL_BYTES = 131_072
_ATTEMPT = "\n-- attempt "
"""What the note between two attempts in a log begins with."""

_JOB_DIRECTORIES = ".*.job-*"
"""Pattern of the job directories that launchers keep beside the outputs of their step."""


class Environments:
    """The environments of :mod:`trainwright.authoring.environments`, one for each toolchain."""

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

    def __init__(self, machine: Environments, processes: Processes) -> None:
        self._machine, self._processes = machine, processes

    def run(self, call: Invocation, scratch: str) -> Ended:
        """Run one attempt to its end; ``scratch`` is a folder for its temporary files."""
        python = self._machine.python(call.step.toolchain)
        variables = invocation.variables(python, call.variables, scratch)
        step = call.step
        return self._processes.run(call.command, variables, call.log, step.timeout_s, closing=step.closing)

    def made_from(self, call: Invocation) -> dict[str, str]:
        """Return the digests of the locks of the step's environment and of those that a parameter names."""
        toolchains = {call.step.toolchain, *toolchains_in(call.parameters)}
        return {name: self._machine.lock_digest(name) for name in toolchains}


class Execution:
    """Run the steps of one run.

    Attempts are started in ``place``; the digest of the ``library`` is part of every cache key; only results
    of ``reusable`` steps may come from the cache.
    """

    def __init__(
        self,
        folder: Path,
        *,
        place: "Here | Containers",
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
        """Run a step, or reuse its result. An error is the result of the step, so that others still run."""
        try:
            return self._run(call)
        except Exception as error:
            ours = errors.as_ours(error)
            if ours is None:  # a bug
                call.folder.mkdir(exist_ok=True)
                with call.log.open("a") as log:
                    log.write(errors.traceback_of(error))
            return _failed(call, errors.as_record(ours or error, call.name))

    def _run(self, call: Invocation) -> Task:
        call.require_short()
        made_from = self._made_from(call)
        cache, key = self._cache(call, made_from)
        unfinished = _set_aside(call.folder)
        output, reason = self._reused(cache, key, call)
        if made_from:
            try:
                MadeFrom(step=call.name, key=key, reason=reason, made_from=made_from).keep(self._folder)
            except OSError as problem:
                self._warn(f"what {call.name} is made from was not written down: {problem}")
        if output is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
            return _task(call, output, "cached", 0)
        call.folder.mkdir()
        if unfinished.exists():
            for path in unfinished.iterdir():
                path.rename(call.folder / path.name)
            unfinished.rmdir()
        attempts, error = self._attempts(call)
        if error:
            return _failed(call, error, attempts)
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
            "parameters": call.parameters,
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

    def _reused(self, cache: Cache | None, key: str, call: Invocation) -> tuple[dict[str, Any] | None, str]:
        """Return the cached output if it may be used, and the reason why it was or was not."""
        if cache is None:
            return None, "never cached"
        if call.step.name not in self._reusable:
            return None, "asked"
        try:
            output = cache.restore(key, call.folder, self._folder)
            if output is None:
                return None, "no result" if call.step.cacheable else "never cached"
            invocation.write_output(call, output)
        except (Broken, InputError) as problem:
            shutil.rmtree(call.folder, ignore_errors=True)
            self._warn(f"{call.name} is done again: {problem}")
            return None, "broken"
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
            error = _error_of(call, ended)
            wait_s = retry.wait_s(attempt)
            if attempt == retry.count or error["code"] not in RETRYABLE:
                break
            note = f"{attempt + 1} of {retry.count + 1} ended, the next is in {wait_s:g} s"
            self._warn(f"{call.name}: attempt {note}: {error['what']}")
            with call.log.open("a") as log:
                log.write(f"{_ATTEMPT}{note} --\n")
            if self._processes.cancelled.wait(wait_s):
                break
            # A new pod would not see the files of this attempt; job directories are on a volume.
            for path in call.folder.iterdir():
                if path.name != run_folder.LOG and not path.match(_JOB_DIRECTORIES):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return attempt + 1, error


def _error_of(call: Invocation, ended: Ended) -> dict[str, Any]:
    """Return the error of a step that failed: the line it printed, or one derived from its exit code."""
    log = tail(call.log, _TAIL_BYTES).rpartition(_ATTEMPT)[2]  # the lines of this attempt
    if ended.late:
        limit = call.step.timeout_s
        return errors.as_record(errors.Hang(f"stopped after its limit of {limit:,.0f} s"), call.name)
    if record := errors.last_record(log, ended.code):
        return record
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it wrote nothing")
    what = f"ended with exit code {ended.code}; its last line: {last:.300}"
    hint = "If nobody stopped it, the machine ran out of memory: give it less data or more memory."
    if ended.code in KILLED:
        return errors.as_record(errors.PreemptedUnsaved(f"killed: {what}", hint=hint), call.name)
    return errors.as_record(errors.ERRORS.get(ended.code, errors.InternalError)(what), call.name)


def _set_aside(folder: Path) -> Path:
    """Remove a step's folder except unfinished job directories; return where these are now."""
    place = folder.with_name(f".{folder.name}.unfinished")
    for directory in folder.glob(_JOB_DIRECTORIES):
        place.mkdir(exist_ok=True)
        shutil.rmtree(place / directory.name, ignore_errors=True)
        directory.rename(place / directory.name)
    shutil.rmtree(folder, ignore_errors=True)
    return place


def _failed(call: Invocation, error: dict[str, Any], attempts: int = 0) -> Task:
    return Task(
        step=call.name,
        state="failed",
        environment=call.step.toolchain,
        verb=call.step.name,
        attempts=attempts,
        error=error,
    )


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


def require(machine: Environments, steps: Sequence[Step]) -> None:
    """Reject a run if an environment of a step, or of a job that it starts, is missing or stale."""
    for step in steps:
        for toolchain in {step.toolchain, *toolchains_in(step.constants)}:
            machine.python(toolchain)
