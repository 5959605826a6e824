"""An elastic job: it loses a machine, continues with the others, and takes a new one in."""

import os
import signal
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.elastic import (
    SECTIONS,
    attempt,
    await_that,
    killed_at_the_end,
    losses,
    machine,
    sizes,
)
from tests.train.forked import ForkedLauncher
from tests.train.problems import request
from trainwright.errors import InputError
from trainwright.launch.job_directory import Completion, completed
from trainwright.train import submit


@pytest.mark.covers("F18")
def test_job_that_shrinks_and_grows_has_the_losses_of_an_undisturbed_one(
    training_set: Path, tmp_path: Path
) -> None:
    whole, directory = tmp_path / "whole", tmp_path / "elastic"
    folder = attempt(training_set, whole)
    prepared = submit._prepare(request(training_set, **SECTIONS))
    ForkedLauncher().run(submit._job(prepared, folder, "train"))

    folder, port = attempt(training_set, directory), free_port()
    # The first agent has the rendezvous, and looks for those that wait long after the others, which restart
    # its processes.
    machines = [machine(folder, port, hosts=True, monitor_s=3.0)]
    machines += [machine(folder, port, hosts=False) for _ in range(3)]
    with killed_at_the_end(machines):
        await_that(lambda: max(sizes(directory), default=0) >= 30, machines)
        os.killpg(machines[3].pid, signal.SIGKILL)
        await_that(lambda: 3 in sizes(directory).values(), machines)
        machines.append(machine(folder, port, hosts=False))
        await_that(lambda: completed(folder, "0001") is not None, machines)
        assert [each.wait(60) for each in machines] == [0, 0, 0, -signal.SIGKILL, 0]

    written = [processes for _, processes in sorted(sizes(directory).items())]
    runs = [size for index, size in enumerate(written) if index == 0 or size != written[index - 1]]
    assert runs == [4, 3, 4]
    assert losses(directory) == pytest.approx(losses(whole), rel=1e-4)
    assert Completion.read(folder).attempt == "0001"


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"replicate": 4}, "replicate 4 is fixed"),
        ({"shard": 4}, "pipeline x shard x tensor = 4 does not divide 2 processes, on 1 nodes"),
    ],
)
def test_degrees_that_some_number_of_nodes_cannot_have_are_rejected(
    training_set: Path, parallel: dict[str, int], said: str
) -> None:
    resources = {"launcher": "pytorchjob", "nodes": 2, "processes": 2, "placement": {"min_nodes": 1}}
    with pytest.raises(InputError, match=said):
        submit.check_trial(request(training_set, training={"parallel": parallel}, resources=resources))
