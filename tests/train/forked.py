"""A launcher whose processes begin in a moment: for tests of what a training makes, not of how it starts."""

import os
import runpy
import sys
from collections.abc import Sequence

from tests.train import clean
from trainwright.launch import local
from trainwright.launch.job import Job, Result


class ForkedLauncher:
    """Runs the program of a job in processes of the fork server, which saves four imports of torch.

    The program, its arguments and its environment are those of a local job. What is missing is the agent
    with torchrun: nothing restarts a process and nothing looks for a hang.
    """

    name = "local"

    def run(self, job: Job) -> Result:
        places = clean.places(*((rank, job.processes) for rank in range(job.processes)))
        started = [clean.start(_program, job.arguments, **job.environment, **place) for place in places]
        code = max(map(abs, clean.all_ended(started, within_s=job.timeout_s)))
        return Result(folder=job.folder, completion=local._completion(code, job), launcher=self.name)


def _program(arguments: Sequence[str]) -> None:
    """Be what ``python -m MODULE ARGUMENTS`` is."""
    assert arguments[0] == "-m"
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = list(arguments[1:])
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
