"""What is read out of a log: torchrun's root cause, the first telling line, and an end worth showing."""

import pytest

from tests.launch.objects import Object, at, count_interruptions, ended, job, losses_of, pod, seen
from tests.launch.recordings import load
from trainwright.launch import logs
from trainwright.launch.diagnosis.diagnosis import diagnose
from trainwright.launch.diagnosis.incidents import find_incidents
from trainwright.launch.failure import Failure

# What torch 2.13 writes when a rank under @record raises; paths and frames are cut.
RECORDED = """\
step 1
E1120 16:10:54.001000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) \
local_rank: 1 (pid: 13262) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/lib/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper
    return f(*args, **kwargs)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
t.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_08:00:41
  host      : tw-worker-0
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 13261)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 13261
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_08:00:40
  host      : tw-worker-0
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 13262)
  error_file: /tmp/torchelastic/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "/app/t.py", line 6, in main
      raise ValueError("bad batch: 7 at https://u:hunter2@host/x")
  ValueError: bad batch: 7 at https://u:hunter2@host/x

============================================================
"""
TWO_RANKS = """\
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/app/t.py", line 5, in <module>
[rank1]:   File "/app/t.py", line 9, in <module>
[rank0]: RuntimeError: [pair.cc:537] Connection reset by peer
[rank1]: KeyError: 'tail_number'
"""


def test_the_root_cause_of_torchrun_is_read_with_its_traceback() -> None:
    root = logs.parse_log(RECORDED).root
    assert root is not None
    assert (root.rank, root.exit_code) == (3, 1)
    assert root.said.splitlines()[-1].strip() == "ValueError: bad batch: 7 at https://u:hunter2@host/x"


def test_a_root_cause_is_told_with_its_rank_and_time_and_without_its_secrets() -> None:
    body = pod(state=ended(1, second=43), phase="Failed")
    observed = seen(body, job("Failed:it failed"), log=RECORDED)
    outcome = diagnose(observed)
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.rank, outcome.reason) == ("USER_EXCEPTION", 3, "ValueError")
    assert "bad batch: 7" in outcome.what
    assert "hunter2" not in str(outcome.to_json())
    (found,) = find_incidents(observed)
    assert found.at_s == find_incidents(seen(pod(state=ended(1, second=40), phase="Failed")))[0].at_s


def test_the_first_error_that_is_not_a_lost_connection_is_the_clue() -> None:
    clue = logs.parse_log(TWO_RANKS).clue
    assert clue is not None
    assert (clue.kind, clue.line, clue.rank, clue.weak) == (
        "USER_EXCEPTION",
        "KeyError: 'tail_number'",
        1,
        False,
    )


@pytest.mark.parametrize("decorate", ["2026-11-20T08:00:40.123456789Z {}", "\x1b[31m{}\x1b[0m"])
def test_times_and_colours_in_front_of_lines_change_nothing(decorate: str) -> None:
    decorated = "".join(f"{decorate.format(line)}\n" for line in (RECORDED + TWO_RANKS).splitlines())
    assert logs.parse_log(decorated) == logs.parse_log(RECORDED + TWO_RANKS)


def test_the_end_of_a_log_leaves_out_what_torchrun_says_of_it() -> None:
    assert logs.parse_log(RECORDED).tail == ("step 1",)


def test_an_empty_log_says_nothing() -> None:
    assert logs.parse_log("") == logs.LogFindings()
    assert logs.parse_log("\n \n") == logs.LogFindings()


@pytest.mark.parametrize(
    ("scenario", "name"),
    [("pod-deleted-elastic-exitcode", "el-worker-1"), ("pod-deleted-elastic", "el-worker-1")],
)
def test_an_agent_that_was_told_to_stop_is_no_error_of_the_program(scenario: str, name: str) -> None:
    recording = load(scenario)
    uid = next(
        event.body["metadata"]["uid"] for event in recording.of("Pod") if name in str(event.body["metadata"])
    )
    story = logs.parse_log(recording.logs[uid])
    assert story.told_to_stop
    assert story.clue is None


@pytest.mark.parametrize(
    ("text", "kind", "weak"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "CUDA_OOM", False),
        (
            "DistBackendError: NCCL watchdog: ran for 600060 milliseconds before timing out.",
            "NCCL_TIMEOUT",
            False,
        ),
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", "NODE_GPU", False),
        ("MemoryError: ", "HOST_OOM", False),
        ("RuntimeError: Connection closed by peer [10.0.0.1]:1", "INFRASTRUCTURE", True),
        ("ValueError: bad batch: 7", None, False),
    ],
)
def test_the_message_of_one_error_tells_its_class(text: str, kind: str | None, weak: bool) -> None:
    clue = logs.find_clue(text)
    assert (clue.kind if clue else None, bool(clue and clue.weak)) == (kind, weak)


def test_what_a_log_tells_of_memory_that_was_overcome_is_not_believed_against_an_exit_code_of_ours() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate; trying a smaller batch\n"
    found = find_incidents(seen(pod(state=ended(30), phase="Failed"), log=text))
    assert [entry.failure.kind for entry in found] == ["DIVERGED"]


def other_container(name: str, place: str, code: int) -> Object:
    body = pod()
    entry = {"name": name, "restartCount": 0, "lastState": {}, "state": ended(code, second=9)}
    body["status"].setdefault(place, []).append(entry)
    return body


def test_a_sidecar_that_ends_badly_is_nobodys_failure() -> None:
    assert find_incidents(seen(other_container("istio-proxy", "containerStatuses", 1))) == ()


def test_a_container_that_runs_before_the_program_and_fails_is_one() -> None:
    (found,) = find_incidents(seen(other_container("init-pytorch", "initContainerStatuses", 1)))
    assert (found.failure.kind, found.recovered) == ("INFRASTRUCTURE", True)


def test_a_running_pod_that_is_gone_from_a_list_was_taken_away() -> None:
    observed = seen(job("Running"))
    observed.replace_pods([pod("tw-master-0"), pod()])
    assert find_incidents(observed) == ()
    observed.replace_pods([pod("tw-master-0")])
    (found,) = find_incidents(observed)
    assert (found.failure.kind, found.failure.reason, found.pod.name) == (
        "PREEMPTED",
        "PodVanished",
        "tw-worker-0",
    )
    assert count_interruptions(losses_of([found])) == {"preemption": 1}


def test_pods_that_are_gone_all_at_once_were_not_taken_away() -> None:
    observed = seen(job("Running"))
    observed.replace_pods([pod("tw-master-0"), pod()])
    observed.replace_pods([])
    assert find_incidents(observed) == ()


def test_a_pod_of_an_older_job_of_that_name_is_passed_over() -> None:
    old = pod(state=ended(1), phase="Failed", metadata={"uid": "old", "ownerReferences": [{"uid": "job-0"}]})
    assert len(find_incidents(seen(old))) == 1
    assert find_incidents(seen(old, job("Running"))) == ()


def test_a_container_that_was_restarted_in_place_has_recovered() -> None:
    first = pod(state=ended(1, second=20))
    again = pod(state={"running": {"startedAt": at(25)}})
    again["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": ended(1, second=20)}
    assert [entry.recovered for entry in find_incidents(seen(first))] == [False]
    assert [entry.recovered for entry in find_incidents(seen(first, again))] == [True]
    assert [entry.recovered for entry in find_incidents(seen(again))] == [True]
