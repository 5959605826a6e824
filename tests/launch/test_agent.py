"""The agent: rounds, attempts that are over, and out-of-memory kills."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.launch.programs import COMPLETE, ROOT, SLEEP, agent, gone, job, pids
from tests.ports import free_port
from trainwright.errors import (
    DependencyError,
    Diverged,
    Hang,
    InternalError,
    Preempted,
    PreemptedUnsaved,
)
from trainwright.launch import manifests
from trainwright.launch.agent import process_monitor
from trainwright.launch.agent.__main__ import Agent
from trainwright.launch.agent.heartbeat import HeartbeatMonitor
from trainwright.launch.agent.process_monitor import ProcessMonitor
from trainwright.launch.agent.rank_errors import RankError, begin_round, first_error, rounds, upcoming_round
from trainwright.launch.diagnosis.diagnosis import read_report
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import (
    FAILED_ATTEMPT_FILE,
    Completion,
    create_attempt,
    locked_attempt,
    newest_attempt,
    publish,
    remove_job_directory,
    sibling_directories,
)
from trainwright.launch.local import LocalLauncher

STEPS = """
from trainwright.launch.agent.heartbeat import Heartbeat
def steps(rank, stall_s, until, phase=None):
    with Heartbeat(folder, rank, stall_s) as pulse:
        step = 0
        while not until(step):
            step += 1
            pulse.beat(step)
            time.sleep(0.02)
"""

SAVES = """
import signal
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
(notes / f"listens-{rank}").touch()
def save_and_leave(seconds):
    while not told:
        time.sleep(0.02)
    (notes / f"saves-{rank}").touch()
    time.sleep(seconds)
    raise errors.Preempted("stopped after step 7 of 100, which is saved")
"""


def await_file(path: Path, within_s: float = 180) -> None:
    end = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not come"
        time.sleep(0.02)


def await_listener(port: int, within_s: float = 180) -> None:
    """Wait until a port is listened on, as the kernel says: to connect would be to take part."""
    end, listening = time.monotonic() + within_s, f":{port:04X} "
    while not any(
        listening in line and line.split()[3] == "0A"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ):
        assert time.monotonic() < end, f"nothing listens on {port}"
        time.sleep(0.02)


def test_processes_are_started_again_after_one_was_killed_and_what_ended_each_round_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the job that completes then returns its marker; its environment is its own."""
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    monkeypatch.setenv("WORLD_SIZE", "9")
    body = """
    (notes / f"environment-{rank}").write_text(json.dumps(dict(os.environ)))
    with reported_rank(folder, rank):
        if number < 2 and rank == number % 2:
            os.kill(os.getpid(), 9)
    """
    program = body + COMPLETE.replace("\n", "\n    ")
    result = LocalLauncher().run(job(tmp_path, program, restarts=2, cpu=6, env={"SEED": "5"}))
    assert (result.completion.attempt, result.launcher) == ("attempt-1", "local")
    wanted = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "PASSIVE",
        "WORLD_SIZE": "2",
        "SEED": "5",
    }
    for rank in (0, 1):
        environment = json.loads((tmp_path / "notes" / f"environment-{rank}").read_text())
        assert {name: environment[name] for name in wanted} == wanted
    log = capfd.readouterr().err
    assert "restart 1 of 2: rank 0 was killed by SIGKILL; the processes start again" in log
    assert "restart 2 of 2: rank 1 was killed by SIGKILL; the processes start again" in log
    ends = [[(entry.rank, entry.what) for entry in entries] for entries in rounds(tmp_path / "attempt-1")]
    assert ends == [[(0, "rank 0 was killed by SIGKILL")], [(1, "rank 1 was killed by SIGKILL")], []]
    assert len(pids(tmp_path, 6)) == 6
    assert gone(pids(tmp_path, 6))


@pytest.mark.parametrize(("left", "code"), [(Completion.FILE, 0), (FAILED_ATTEMPT_FILE, 41)])
def test_an_attempt_that_is_over_is_not_run_again_when_its_pods_are(
    tmp_path: Path, left: str, code: int
) -> None:
    """The controller of TrainJobs does that to one that has failed, once somebody removes its JobSet."""
    asked = job(tmp_path, SLEEP)
    if left == Completion.FILE:
        Completion(attempt=asked.folder.name, outputs={}).write(asked.folder)
    else:
        (asked.folder / left).write_text("{}")
    assert agent(asked).wait(300) == code
    assert not list((tmp_path / "notes").iterdir())


def test_the_last_round_is_blamed_and_the_earlier_ones_are_evidence(tmp_path: Path) -> None:
    body = """
    with reported_rank(folder, rank):
        if number == 0 and rank == 1:
            os.kill(os.getpid(), 9)
        if number == 1 and rank == 0:
            raise errors.Diverged("the loss is not finite at step 7", hint="Lower the rate.")
        if number == 1:
            await_file(folder / "errors" / "round-1" / "rank-0.json")
            raise RuntimeError("connection closed by peer")
    """
    with pytest.raises(Diverged) as caught:
        LocalLauncher().run(job(tmp_path, body, restarts=3, grace_s=2))
    assert (caught.value.what, caught.value.where) == ("the loss is not finite at step 7", "rank 0")
    assert (caught.value.code, caught.value.hint) == (30, "Lower the rate.")
    failure = Failure.read(tmp_path / "attempt-1")
    assert (failure.kind, failure.code, failure.rank, failure.retryable) == ("DIVERGED", 30, 0, False)
    assert "round 0: rank 1: TransientError: rank 1 was killed by SIGKILL" in failure.evidence
    assert len(pids(tmp_path, 4)) == 4, "what is permanent is not tried again"


def test_an_error_of_the_users_code_is_told_with_its_traceback_short_without_secrets_and_not_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told, and not the end of its healthy peer, which has to be killed because it would not end."""
    body = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (notes / f"deaf-{rank}").touch()
    def lookup():
        raise KeyError("cannot reach postgres://me:hunter2@db/rows: " + "x" * 100_000)
    with reported_rank(folder, rank):
        if rank == 1:
            await_file(notes / "deaf-0")
            lookup()
        time.sleep(600)
    """
    with pytest.raises(InternalError, match="KeyError: 'cannot reach") as caught:
        LocalLauncher().run(job(tmp_path, body, restarts=3))
    assert caught.value.where == "rank 1"
    assert "Traceback" in capfd.readouterr().err
    path = tmp_path / "attempt-1" / Failure.FILE
    failure, text = Failure.read(path), path.read_text()
    assert (failure.kind, failure.code, failure.rank) == ("USER_EXCEPTION", 70, 1)
    assert any("in lookup" in line for line in failure.evidence)
    assert len(pids(tmp_path, 2)) == 2
    assert ("postgres://***@db" in text, "hunter2" in text, len(text) < 12_000) == (True, False, True)


def test_a_process_that_is_stopped_is_found_and_the_stacks_of_all_are_saved(tmp_path: Path) -> None:
    body = """
    import signal
    def waits_for_its_peer(step):
        if step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if step == 5:
            time.sleep(600)  # the stopped one too: once it is continued, any of its threads may be the first
        return False
    with reported_rank(folder, rank):
        steps(rank, 4, waits_for_its_peer)
    """
    with pytest.raises(Hang, match=r"rank 1 at step \d, stopped from outside") as caught:
        LocalLauncher().run(job(tmp_path, STEPS + _dedented(body), stall_s=4, restarts=1))
    assert caught.value.where == "rank 1, training.guards.stall_s"
    folder = tmp_path / "attempt-1"
    for rank in (0, 1):
        saved = (folder / "stacks" / f"rank-{rank}.txt").read_text()
        assert saved.count("in waits_for_its_peer") == 2, "once a round"
    failure = Failure.read(folder)
    assert (failure.kind, failure.code, failure.retryable) == ("HANG", 31, True)
    assert [entry.kind for entries in rounds(folder) for entry in entries] == ["HANG", "HANG"]
    assert gone(pids(tmp_path, 4))


def test_a_pulse_that_another_machine_takes_away_meanwhile_is_no_hang(tmp_path: Path) -> None:
    (tmp_path / "pulse").mkdir()
    (tmp_path / "pulse" / "rank-0").write_text("steps 7\n")
    pulses = HeartbeatMonitor(tmp_path, 1)
    assert [pulses.look([0], 1) for _ in range(3)] == [{}, {}, {0: 7}]
    (tmp_path / "pulse" / "rank-9").symlink_to("gone")
    assert pulses.look([0], 1) == {}


def test_a_long_evaluation_is_no_hang_and_neither_is_a_first_step(tmp_path: Path) -> None:
    body = """
    with reported_rank(folder, rank), Heartbeat(folder, rank, 3) as pulse:
        time.sleep(3.5)
        pulse.beat(1)
        time.sleep(3.5)
        pulse.beat(2)
        time.sleep(0.1)
        pulse.beat(3)
        with pulse.during("evaluating"):
            if rank == 0:
                time.sleep(4)
        if rank == 1:
            time.sleep(4)
        pulse.beat(4)
    """
    LocalLauncher().run(job(tmp_path, STEPS + _dedented(body) + COMPLETE, stall_s=3))


@pytest.mark.covers("F4")
def test_a_job_that_is_stopped_saves_and_further_signals_do_not_cut_it_short(tmp_path: Path) -> None:
    """torchrun itself bears a second one, and leaves its processes alone at the third."""
    body = """
    with reported_rank(folder, rank):
        save_and_leave(1.5)
    """
    asked = job(tmp_path, SAVES + _dedented(body), restarts=3)
    process = agent(asked, "--max-restarts=3")
    for rank in (0, 1):
        await_file(tmp_path / "notes" / f"listens-{rank}")
    process.terminate()
    await_file(tmp_path / "notes" / "saves-1")
    for _ in range(3):
        process.terminate()
        time.sleep(0.3)
    assert process.wait(300) == 40
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.code, failure.retryable) == ("PREEMPTED", 40, True)
    assert len(pids(tmp_path, 2)) == 2


def test_a_job_that_is_stopped_while_it_waits_for_its_other_machines_ends_with_41(tmp_path: Path) -> None:
    asked, port = job(tmp_path, SLEEP), free_port()
    place = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
    process = agent(asked, *place, alone=False)
    await_listener(port)
    process.terminate()
    assert process.wait(300) == 41
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.code, failure.retryable) == ("PREEMPTED", 41, True)
    assert failure.what == "stopped by SIGTERM before its processes began"


LIVES = """
first = not (notes / "resumed").exists()
(notes / f"place-{rank}").write_text(os.environ["TORCHELASTIC_ERROR_FILE"])
with reported_rank(folder, rank):
    if first:
        save_and_leave(600)
    if rank == 1:
        raise ValueError("no such carrier: 'ZZ'")
    await_file(folder / "errors" / "round-1" / "rank-1.json")
    raise RuntimeError("connection closed by peer")
"""


def test_resumed_agent_reports_its_own_error_not_the_signal_that_suspended_the_job(tmp_path: Path) -> None:
    """The attempt's folder is the same, and so are the ranks; only the agent and its processes are new.

    torchrun's own error file says the same.
    """
    asked = job(tmp_path, SAVES + LIVES, grace_s=2)
    suspended = agent(asked)
    for rank in (0, 1):
        await_file(tmp_path / "notes" / f"listens-{rank}")
    suspended.terminate()
    assert suspended.wait(300) == 41
    assert Failure.read(asked.folder).kind == "PREEMPTED"

    (tmp_path / "notes" / "resumed").touch()
    assert agent(asked, f"--log-dir={tmp_path / 'logs'}").wait(300) == 70
    message = json.loads(Path((tmp_path / "notes" / "place-1").read_text()).read_text())["message"]
    assert message["message"].endswith("ValueError: no such carrier: 'ZZ'")
    for place in (asked.folder, asked.folder / "errors" / "round-1"):
        failure = Failure.read(place)
        assert (failure.kind, failure.code, failure.rank) == ("USER_EXCEPTION", 70, 1)
        assert (failure.retryable, failure.what) == (False, "ValueError: no such carrier: 'ZZ'")
        assert any("program.py" in line for line in failure.evidence), "its place"
    left = read_report(asked.folder)
    assert left is not None
    assert left.failure.kind == "USER_EXCEPTION"


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_agents_of_a_resumed_job_agree_on_the_round_although_one_begins_much_later(
    tmp_path: Path, backend: str
) -> None:
    """The ranks have left errors in an earlier round, and torchrun counts its restarts from 0 again."""
    asked = job(tmp_path, LIVES, processes=1, grace_s=2)
    assert begin_round(asked.folder) == 0
    for rank in (0, 1):
        RankError.of(PreemptedUnsaved("stopped by SIGTERM"), rank).save(asked.folder)
    (tmp_path / "notes" / "resumed").touch()
    port = free_port()

    def start(node: int) -> "subprocess.Popen[bytes]":
        common = ("--nnodes=2", "--max-restarts=1")
        if backend == "static":
            place = (f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}")
        else:
            place = (
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}",
                f"--rdzv-conf=is_host={1 - node}",
            )
        return agent(asked, *common, *place, alone=False)

    early = start(0)
    await_listener(port)
    time.sleep(2)
    late = start(1)
    assert (early.wait(300), late.wait(300)) == (70, 70)
    found = rounds(asked.folder)
    assert [entry.kind for entry in found[0]] == ["PREEMPTED", "PREEMPTED"]
    assert len(found) == 2, "both took part in one and the same round"
    assert (found[1][0].kind, found[1][0].what) == ("USER_EXCEPTION", "ValueError: no such carrier: 'ZZ'")
    assert Failure.read(asked.folder).kind == "USER_EXCEPTION"


def test_resumed_agents_that_do_not_meet_say_so_and_not_what_ended_the_job_before(tmp_path: Path) -> None:
    asked, port = job(tmp_path, SLEEP), free_port()
    assert begin_round(asked.folder) == 0
    RankError.of(PreemptedUnsaved("stopped by SIGTERM"), 0).save(asked.folder)
    place = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
    process = agent(asked, *place, "--rdzv-conf=join_timeout=2", alone=False)
    assert process.wait(300) == 21
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.code, failure.retryable) == ("INFRASTRUCTURE", 21, True)
    assert failure.what.startswith("the machines of the job did not find one another: RendezvousTimeout")
    left = read_report(asked.folder)
    assert left is not None
    assert (left.failure.kind, left.failure.code) == ("INFRASTRUCTURE", 21)


def test_agent_that_waits_for_a_round_is_not_blamed_while_that_round_goes_on(tmp_path: Path) -> None:
    """A replaced elastic pod, told to stop with the others, knows less of the end than their processes do."""
    assert begin_round(tmp_path) == 0
    assert upcoming_round(tmp_path) == 0
    RankError.of(PreemptedUnsaved("stopped before its processes began"), None, witnessed=True).save(tmp_path)
    RankError.of(ValueError("no such carrier"), 1).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    assert first.rank == 1
    assert upcoming_round(tmp_path) == 1, "round 0 is over"


def test_agent_that_waited_while_a_round_failed_keeps_the_cause_of_that_round(tmp_path: Path) -> None:
    """torchrun closes the rendezvous when a rank fails for good: a waiting pod sees only that."""
    assert begin_round(tmp_path) == 0
    waiting = Agent(tmp_path, ProcessMonitor(tmp_path, 1), 1)
    RankError.of(ValueError("no such carrier: 'ZZ'"), 1).save(tmp_path)
    assert waiting._fail(DependencyError("the rendezvous is closed")) == 70
    left = read_report(tmp_path)
    assert left is not None
    assert (left.failure.kind, left.failure.rank, left.failure.retryable) == ("USER_EXCEPTION", 1, False)
    assert Failure.read(tmp_path).what == "ValueError: no such carrier: 'ZZ'"


def test_the_launcher_tells_that_the_job_that_it_stopped_had_saved(tmp_path: Path) -> None:
    """tests/train/test_stopping.py has a job that could not."""
    body = f"""
    with reported_rank(folder, rank):
        if rank == 0:
            await_file(notes / "listens-1")
            os.kill({os.getpid()}, signal.SIGTERM)
        save_and_leave(0.5)
    """
    with pytest.raises(Preempted, match="stopped by SIGTERM"):
        LocalLauncher().run(job(tmp_path, SAVES + _dedented(body), grace_s=120))
    assert gone(pids(tmp_path))
    failure = Failure.read(tmp_path / "attempt-1")
    assert (failure.kind, failure.code) == ("PREEMPTED", 40)
    assert not failure.what.startswith("stopped by SIGTERM before the step was finished")


@pytest.mark.covers("F2")
def test_what_the_dead_left_in_the_store_is_never_found_by_those_that_follow(tmp_path: Path) -> None:
    """With torchrun's own store, which outlives the processes, it is: TORCH_DISABLE_SHARE_RDZV_TCP_STORE."""
    body = """
    from torch.distributed import TCPStore
    import datetime
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosts = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    store = TCPStore(*place, is_master=hosts, wait_for_workers=False, timeout=datetime.timedelta(seconds=300))
    with reported_rank(folder, rank):
        (notes / f"found-{number}").write_text(str(store.check(["gloo/address-of-rank-0"])))
        store.set("gloo/address-of-rank-0", "127.0.0.1:1")
        if number == 0:
            os.kill(os.getpid(), 9)
    """
    LocalLauncher().run(job(tmp_path, _dedented(body) + COMPLETE, processes=1, restarts=1))
    assert (tmp_path / "notes" / "found-1").read_text() == "False"


def test_a_pod_is_told_how_long_it_may_take_to_stop_and_how_often_to_start_again(tmp_path: Path) -> None:
    asked = job(tmp_path, "", grace_s=25, stall_s=90.0, restarts=2, claim="team", mount=str(tmp_path))
    pod = manifests.make_manifest(asked, "pytorchjob")["spec"]["pytorchReplicaSpecs"]["Master"]["template"][
        "spec"
    ]
    command = pod["containers"][0]["command"]
    split = command.index("--")
    assert command[4:split] == ["--grace-s=25", "--stall-s=90"]
    assert command[split + 1] == "--max-restarts=2"
    assert pod["terminationGracePeriodSeconds"] == 30


def test_a_job_on_gpus_has_nccls_watchdog_and_its_records_on_and_another_has_not(tmp_path: Path) -> None:
    watched = job(tmp_path, "", gpus=2).environment
    assert watched["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == watched["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert watched["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert watched["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "300"
    assert not [name for name in job(tmp_path, "").environment if "NCCL" in name]


def _pid(root: Path, rank: int) -> int:
    (path,) = (root / "notes").glob(f"pid-{rank}-*")
    return int(path.name.rsplit("-", 1)[1])


def _dedented(body: str) -> str:
    lines = body.splitlines()
    return "\n".join(line[4:] if line.startswith("    ") else line for line in lines) + "\n"


def test_what_a_failed_attempt_left_is_there_for_the_next_one_and_gone_after_success(tmp_path: Path) -> None:
    home = tmp_path / ".model.job-1"

    def fail() -> None:
        with locked_attempt(home) as folder:
            (folder.parent.parent / "checkpoint").write_text("step 100")
            raise Diverged("the loss is not finite")

    with pytest.raises(Diverged):
        fail()
    with locked_attempt(home) as folder:
        assert folder == home / "attempts" / "0002"
        assert list(folder.iterdir()) == []
        assert (home / "checkpoint").read_text() == "step 100"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.covers("F20")
def test_two_launchers_are_never_at_the_same_job(tmp_path: Path) -> None:
    home = tmp_path / ".model.job-1"
    with (
        locked_attempt(home),
        pytest.raises(DependencyError, match="another process is at this very job"),
        locked_attempt(home),
    ):
        pass
    with locked_attempt(home) as folder:
        assert folder.name == "0001"


KILLED = """
import os, signal, sys
from pathlib import Path
from trainwright.launch.job_directory import locked_attempt
with locked_attempt(Path(sys.argv[1])) as folder:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_launcher_leaves_its_home_unlocked(tmp_path: Path) -> None:
    home = tmp_path / ".model.job-1"
    done = subprocess.run([sys.executable, "-c", KILLED, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    with locked_attempt(home) as folder:
        assert folder.name == "0002"


def test_of_many_at_once_no_two_get_the_same_attempt(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_attempt(tmp_path), range(40)))
    assert sorted(path.name for path in folders) == [f"{number:04}" for number in range(1, 41)]


def test_attempts_are_counted_as_numbers(tmp_path: Path) -> None:
    for name in ("0009", "9999", "10000", ".hidden", "notes"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    newest = newest_attempt(tmp_path)
    assert newest is not None
    assert newest.name == "10000"
    assert create_attempt(tmp_path).name == "10001"
    assert newest_attempt(tmp_path / "nowhere") is None


def test_success_removes_the_homes_of_other_jobs_for_the_output_but_for_that_of_a_living_launcher(
    tmp_path: Path,
) -> None:
    homes = {name: tmp_path / f".model.job-{name}" for name in ("dead", "living", "mine")}
    other_output = tmp_path / ".predictions.job-dead"
    for path in (homes["dead"], other_output):
        path.mkdir()
    with locked_attempt(homes["living"]):
        with locked_attempt(homes["mine"]):
            assert sibling_directories(homes["mine"]) == [homes["dead"], homes["living"]]
        assert sorted(tmp_path.iterdir()) == sorted([homes["living"], other_output])


def test_what_is_pinned_outlives_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for step in (1, 2):
        folder = home / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    (home / "checkpoints" / "step-2" / "pinned-by-ada.json").touch()
    (home / "attempts" / "0001").mkdir(parents=True)
    (home / "history.jsonl").touch()
    remove_job_directory(home)
    left = [str(path.relative_to(home)) for path in sorted(home.rglob("*"))]
    kept = "checkpoints/step-2"
    assert left == ["checkpoints", kept, f"{kept}/manifest.json", f"{kept}/pinned-by-ada.json"]
    shutil.rmtree(home)
    remove_job_directory(home)


def test_a_copy_that_others_may_be_reading_is_never_replaced(tmp_path: Path) -> None:
    source, target = tmp_path / "set", tmp_path / "volume" / "digest"
    source.mkdir()
    (source / "rows").write_text("1")
    publish(source, target, keep=True)
    with (target / "rows").open() as reader:
        publish(source, target, keep=True)
        assert os.path.samestat(os.fstat(reader.fileno()), (target / "rows").stat())
    assert [path.name for path in target.parent.iterdir()] == ["digest"]
    assert (source / "rows").exists()


LIMIT = 2 * 1024**3
"""The kernel kills the largest process, which must be the one that fills the memory.

The agent takes 290 MB beside 230 MB of mapped files with a CUDA build of torch: at a limit of 700 MB, it is
the largest.
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, below this process's own; skips where none can be made."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path.lstrip("/") for _, controllers, path in own if "memory" in controllers.split(",")]
    group = Path("/sys/fs/cgroup/memory", *paths, f"trainwright-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError as error:
        remove(group)
        pytest.skip(f"no control group of version 1 can be made here: {error}")
    yield group
    remove(group)


def remove(group: Path, within_s: float = 60) -> None:
    """Remove a control group, and what a failed test left running in it."""
    end = time.monotonic() + within_s
    while group.exists():
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            group.rmdir()
        except OSError as error:
            # A killed process counts until the kernel has taken it apart.
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_a_group_is_removed_with_the_processes_in_it(small_group: Path) -> None:
    enters = f"open({str(small_group / 'cgroup.procs')!r}, 'w').write('0'); print(flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", f"{enters}import time; time.sleep(600)"], stdout=subprocess.PIPE
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()
        with pytest.raises(OSError, match="busy"):
            small_group.rmdir()
        remove(small_group)
    assert left.returncode == -signal.SIGKILL
    assert not small_group.exists()


@pytest.mark.covers("F10")
def test_a_process_that_the_kernel_killed_for_memory_is_told_from_any_other_and_not_repeated(
    small_group: Path, tmp_path: Path
) -> None:
    body = """
    with reported_rank(folder, rank):
        if rank == 1:
            eaten = b"x" * (4 * 1024**3)
        await_end(1)
    """
    asked = job(tmp_path, body, restarts=3)
    enters = f"import os; open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
    runs = "import sys; from tests.launch.programs import agent; from pathlib import Path; "
    process = subprocess.run(
        [sys.executable, "-c", enters + runs + _AGAIN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT) + os.pathsep + os.pathsep.join(sys.path)},
        check=False,
        timeout=600,
    )
    assert process.returncode == 10
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.rank, failure.retryable) == ("HOST_OOM", 1, False)
    assert "was killed by the kernel" in failure.what
    assert len(pids(tmp_path, 2)) == 2


_AGAIN = """
import json
from trainwright.launch.job import Job
root = Path(sys.argv[1])
asked = Job(run="r", task="train", image="i", folder=root / "attempt-1", processes=2, restarts=3,
            program=(str(root / "program.py"), "{folder}", str(root / "notes")))
sys.exit(agent(asked, "--max-restarts=3").wait(500))
"""


@pytest.mark.parametrize(
    ("groups", "path", "text"),
    [
        ("0::/kubepods/pod1\n", "kubepods/pod1/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/\n", "memory.events", "oom_kill 3\noom_group_kill 0\n"),
        (
            "8:pids:/a\n4:cpu,memory:/a/b\n0::/\n",
            "memory/a/b/memory.oom_control",
            "under_oom 0\noom_kill 3\n",
        ),
    ],
)
def test_the_kernels_count_is_found_in_both_versions_of_control_groups(
    tmp_path: Path, groups: str, path: str, text: str
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    assert process_monitor.oom_kills(tmp_path / "proc", tmp_path / "group") is None
    (tmp_path / "group" / path).parent.mkdir(parents=True)
    (tmp_path / "group" / path).write_text(text)
    assert process_monitor.oom_kills(tmp_path / "proc", tmp_path / "group") == 3
