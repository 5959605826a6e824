"""The launcher for this machine: runs a job in the sibling environment of its toolchain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from trainwright import ENVIRONMENT_FILE
from trainwright.errors import DependencyError, Hang, InputError, Preempted, PreemptedUnsaved
from trainwright.launch.agent.rank_errors import first_error
from trainwright.launch.failure import Failure
from trainwright.launch.job import Job, Result
from trainwright.launch.job_directory import Completion, completed, describe_progress
from trainwright.launch.launcher import collect_signals

_RENDEZVOUS = ("PET_", "MASTER_", "TORCHELASTIC_")
_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"})


def sibling_python(toolchain: str) -> Path:
    """Return the interpreter of the environment of a toolchain, beside the one this process runs in.

    One that was not made by this library, such as a cluster's own Python with torch, stands for itself.

    Raises:
        DependencyError: It is not there.
    """
    path = Path(sys.prefix).parent / toolchain / "bin" / "python"
    if not path.exists():
        if not (Path(sys.prefix) / ENVIRONMENT_FILE).exists() and find_spec(toolchain):
            return Path(sys.executable)
        raise DependencyError(
            f"no environment {toolchain!r} beside {Path(sys.prefix).name!r}",
            where=str(path),
            hint="Make the environments: make environments",
        )
    return path


class LocalLauncher:
    """Runs a job under torchrun on this machine, in the environment of torch."""

    name = "local"

    def run(self, job: Job) -> Result:
        """Run a job to its end; its processes write to this process's standard output and error.

        Raises:
            InputError: The job asks for more than one node.
            DependencyError: There is no environment with torch, or the job ended without its marker.
            Hang: It did not end within its ``timeout_s``.
            Preempted: This process received SIGTERM; the job was stopped too, and has saved its state.
            PreemptedUnsaved: The same, but it could not save within ``grace_s``.
            TrainwrightError: What the first failing process reported.
        """
        if job.nodes != 1:
            raise InputError(
                f"the local launcher runs 1 node, not {job.nodes}",
                where="resources.nodes",
                hint="Set nodes: 1 and more processes, or run on a cluster with launcher: pytorchjob.",
            )
        python, start = sibling_python("torch"), time.monotonic()
        with collect_signals() as received, _running_agent(python, job) as process:
            code = _wait(process, job, received)
        completion, seconds = _completion(code, job), time.monotonic() - start
        return Result(folder=job.folder, completion=completion, launcher=self.name, seconds=seconds)


@contextmanager
def _running_agent(python: Path, job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job's agent in a process group of its own; whatever happens, leave no process of it.

    The pipe to its standard input is the tether: it closes even when this process is killed.
    """
    command = [str(python), "-m", "trainwright.launch.agent", str(job.folder), "--tethered"]
    command += [*job.agent_options, "--", "--standalone", f"--nproc-per-node={job.processes}"]
    command += [f"--max-restarts={job.restarts}", *job.arguments]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_RENDEZVOUS) and name not in _RANKS  # of another job
    }
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, env=environment | job.environment, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        _stop(process, job.grace_s)
        if process.stdin:
            process.stdin.close()


def _stop(process: subprocess.Popen[bytes], grace_s: int) -> int:
    """End the agent with SIGTERM, then SIGKILL. Ranks end by themselves when their agent is gone."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s + 5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode


def _wait(process: subprocess.Popen[bytes], job: Job, received: list[int]) -> int:
    """Return the exit code of the agent when it has ended; raise Hang after too long, or Preempted."""
    end = time.monotonic() + job.timeout_s
    while not received:
        try:
            return process.wait(min(0.2, max(end - time.monotonic(), 0.001)))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= end:
                state = describe_progress(job.folder) or "training had not begun"
                raise Hang(
                    f"the job did not end within {job.timeout_s:,} s: {state}",
                    where="resources.timeout_s",
                    hint="If it was still getting on, allow more time; if not, its log shows where it stood.",
                ) from None
    code = _stop(process, job.grace_s)
    if code == 0:
        return code
    name, first = signal.Signals(received[0]).name, first_error(job.folder)
    if code == Preempted.code and first:
        raise Preempted(f"stopped by {name}; {first.what}", hint="Run the step again: it goes on from there.")
    raise PreemptedUnsaved(f"stopped by {name}; {describe_progress(job.folder) or 'training had not begun'}")


def _completion(code: int, job: Job) -> Completion:
    """Return the completion marker, or raise why there is none."""
    completion = completed(job.folder, job.attempt)
    if code == 0 and completion:
        return completion
    if first := first_error(job.folder):
        raise first.to_error()
    what = f"the job ended with exit code {code} and no process left an error"
    if (job.folder / Failure.FILE).exists():
        what = Failure.read(job.folder).what
    raise DependencyError(what, where=str(job.folder), hint="Its last lines are in the log of the step.")
