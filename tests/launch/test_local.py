"""The local launcher: truth about success and failure, and no process left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import programs
from tests.launch.programs import SLEEP, alive, children, gone, job, pids
from trainwright import ENVIRONMENT_FILE
from trainwright.errors import (
    DependencyError,
    Hang,
    InputError,
    InternalError,
    TransientError,
)
from trainwright.launch import local
from trainwright.launch.launcher import collect_signals
from trainwright.launch.local import LocalLauncher

ROOT = Path(__file__).resolve().parents[2]


def test_exit_code_0_without_the_marker_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match=r"exit code 0, but without the completion marker result\.json"):
        LocalLauncher().run(job(tmp_path, "", processes=1))


def test_a_rank_that_was_killed_is_the_cause_and_not_its_peer_that_noticed(tmp_path: Path) -> None:
    body = """
    with reported_rank(folder, rank):
        if rank == 1:
            os.kill(os.getpid(), 9)
        await_end(1)
        raise RuntimeError("connection closed by peer")
    """
    with pytest.raises(TransientError, match="rank 1 was killed by SIGKILL") as caught:
        LocalLauncher().run(job(tmp_path, body))
    assert "ran out of memory" in caught.value.hint


def test_a_rank_that_ends_without_a_word_is_named_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="rank 0 ended with exit code 86 and left no error"):
        LocalLauncher().run(job(tmp_path, "sys.exit(86)\n", processes=1))


def test_a_job_that_takes_too_long_is_a_hang_and_leaves_no_process(tmp_path: Path) -> None:
    progress = """
    if rank == 0:
        state = {"step": 400, "total": 2000, "loss": 0.25, "epoch": 1, "samples_per_s": 9.5, "eta_s": 8.5}
        state |= {"schema_version": 1, "time": "2026-11-20T08:00:00Z", "checkpoint_step": 0, "metrics": {}}
        (folder / "progress.json").write_text(json.dumps(state))
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    """
    asked = job(tmp_path, progress + SLEEP, timeout_s=20, grace_s=1)
    with pytest.raises(Hang, match=r"did not end within 20 s: step 400 of 2,000 .*, loss 0\.2500"):
        LocalLauncher().run(asked)
    assert gone(pids(tmp_path))


def test_a_launcher_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, programs.__file__, str(tmp_path)]
    with subprocess.Popen(command, env=environment) as launcher:
        ranks = pids(tmp_path)
        (agent,) = children(launcher.pid)
        assert all(alive(pid) for pid in [agent, *ranks])
        launcher.kill()
    assert gone([agent, *ranks])


def test_a_launcher_listens_to_every_signal_that_asks_it_to_stop() -> None:
    """What follows then is the same for all: test_rounds.py has it for SIGTERM."""
    with collect_signals() as received:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert received == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.covers("F3")
def test_ranks_end_when_their_agent_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    body = "with reported_rank(folder, rank):\n    time.sleep(600)\n"
    asked = job(tmp_path, body)
    command = [str(local.sibling_python("torch")), "-m", "trainwright.launch.agent", str(asked.folder), "--"]
    command += ["--standalone", "--nproc-per-node=2", *asked.arguments]
    with subprocess.Popen(command, env=environment) as agent:
        ranks = pids(tmp_path)
        agent.kill()
    assert gone(ranks)


def test_more_than_one_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs 1 node, not 2"):
        LocalLauncher().run(job(tmp_path, "", nodes=2))


def test_a_missing_environment_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "launcher"))
    with pytest.raises(DependencyError, match="no environment 'torch'") as caught:
        LocalLauncher().run(job(tmp_path, ""))
    assert "make environments" in caught.value.hint


def test_a_python_of_ones_own_runs_the_job_itself_if_it_has_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    package = own / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "prefix", str(own))
    with pytest.raises(DependencyError, match="no environment 'torch'"):
        local.sibling_python("torch")
    monkeypatch.syspath_prepend(own / "site")
    assert local.sibling_python("torch") == Path(sys.executable)
    (own / ENVIRONMENT_FILE).touch()
    with pytest.raises(DependencyError, match="no environment 'torch'"):
        local.sibling_python("torch")
