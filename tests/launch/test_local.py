"""The local launcher: truth about success and failure, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import programs
from tests.launch.programs import COMPLETE, SLEEP, alive, children, gone, job, pids
from trainwright.errors import (
    DependencyError,
    Diverged,
    Hang,
    InputError,
    InternalError,
    TransientError,
)
from trainwright.launch import local
from trainwright.launch.local import Local

ROOT = Path(__file__).resolve().parents[2]


def test_a_job_that_completes_returns_its_marker_and_its_environment_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    monkeypatch.setenv("WORLD_SIZE", "9")
    note = '(notes / f"environment-{rank}").write_text(json.dumps(dict(os.environ)))\n'
    result = Local().run(job(tmp_path, note + COMPLETE, cpu=6, env={"SEED": "5"}))
    assert result.completion.attempt == "attempt-1"
    assert result.launcher == "local"
    environments = [json.loads((tmp_path / "notes" / f"environment-{rank}").read_text()) for rank in (0, 1)]
    for environment in environments:
        assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["WORLD_SIZE"] == "2"
        assert environment["SEED"] == "5"
    assert gone(pids(tmp_path), within_s=5)


def test_exit_code_0_without_the_marker_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match=r"exit code 0, but without the completion marker result\.json"):
        Local().run(job(tmp_path, "", processes=1))


def test_the_rank_that_failed_first_is_heard_and_not_those_that_follow(tmp_path: Path) -> None:
    body = """
    with reported_rank(folder, rank):
        if rank == 1:
            raise errors.Diverged("the loss is not finite at step 7", hint="Lower the rate.")
        await_file(folder / "errors" / "round-0" / "rank-1.json")
        raise RuntimeError("connection closed by peer")
    """
    with pytest.raises(Diverged) as caught:
        Local().run(job(tmp_path, body))
    assert caught.value.code == 30
    assert caught.value.what == "the loss is not finite at step 7"
    assert caught.value.where == "rank 1"
    assert caught.value.hint == "Lower the rate."


def test_a_rank_that_was_killed_is_the_cause_and_not_its_peer_that_noticed(tmp_path: Path) -> None:
    body = """
    with reported_rank(folder, rank):
        if rank == 1:
            os.kill(os.getpid(), 9)
        await_end(1)
        raise RuntimeError("connection closed by peer")
    """
    with pytest.raises(TransientError, match="rank 1 was killed by SIGKILL") as caught:
        Local().run(job(tmp_path, body))
    assert "ran out of memory" in caught.value.hint


def test_an_error_that_is_not_ours_is_told_with_its_text_and_not_the_end_of_a_healthy_peer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    with reported_rank(folder, rank):
        if rank == 0:
            {}["tail_number"]
        time.sleep(120)
    """
    with pytest.raises(InternalError, match="KeyError: 'tail_number'") as caught:
        Local().run(job(tmp_path, body))
    assert caught.value.where == "rank 0"
    assert "Traceback" in capfd.readouterr().err


def test_a_peer_that_had_to_be_killed_because_it_would_not_end_is_not_the_cause(tmp_path: Path) -> None:
    body = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (notes / f"deaf-{rank}").touch()
    with reported_rank(folder, rank):
        if rank == 0:
            await_file(notes / "deaf-1")
            raise RuntimeError("the collective timed out")
        time.sleep(120)
    """
    with pytest.raises(InternalError, match="RuntimeError: the collective timed out"):
        Local().run(job(tmp_path, body))


def test_a_rank_that_ends_without_a_word_is_named_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="rank 0 ended with exit code 86 and left no error"):
        Local().run(job(tmp_path, "sys.exit(86)\n", processes=1))


def test_a_job_that_takes_too_long_is_a_hang_and_leaves_no_process(tmp_path: Path) -> None:
    progress = """
    if rank == 0:
        state = {"step": 400, "total": 2000, "loss": 0.25}
        (folder / "progress.json").write_text(json.dumps(state))
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    """
    asked = job(tmp_path, progress + SLEEP, timeout_s=10, grace_s=1)
    with pytest.raises(Hang, match=r"did not end within 10 s: step 400 of 2,000, loss 0\.2500"):
        Local().run(asked)
    assert gone(pids(tmp_path), within_s=5)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 41), (signal.SIGINT, 41), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_launcher_that_is_stopped_or_killed_leaves_no_process(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, programs.__file__, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as launcher:
        ranks = pids(tmp_path)
        (agent,) = children(launcher.pid)
        assert all(alive(pid) for pid in [agent, *ranks])
        launcher.send_signal(number)
        _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == code
    assert gone([agent, *ranks], within_s=15)
    if number != signal.SIGKILL:
        assert f"stopped by {number.name}" in said


def test_ranks_end_when_their_agent_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    body = "with reported_rank(folder, rank):\n    time.sleep(120)\n"
    asked = job(tmp_path, body)
    command = [str(local.sibling_python("torch")), "-m", "trainwright.launch.agent", str(asked.folder), "--"]
    command += ["--standalone", "--nproc-per-node=2", *asked.arguments]
    with subprocess.Popen(command, env=environment) as agent:
        ranks = pids(tmp_path)
        agent.kill()
    assert gone(ranks, within_s=5)


def test_more_than_one_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs 1 node, not 2"):
        Local().run(job(tmp_path, "", nodes=2))


def test_a_missing_environment_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "launcher"))
    with pytest.raises(DependencyError, match="no environment 'torch'") as caught:
        Local().run(job(tmp_path, ""))
    assert "make environments" in caught.value.hint
