"""Diagnosis of each class of failure, and the times in it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.objects import Object, at, ended, event, job, pod, seen
from tests.launch.recordings import Recording, Seen, load, refusals
from tests.launch.test_diagnosis_recordings import observed_events
from trainwright.errors import InputError, TrainwrightError, TransientError
from trainwright.launch.agent.rank_errors import RankError, begin_round, round_folder
from trainwright.launch.cluster.launcher import creation_failure
from trainwright.launch.cluster.responses import ApiCall, ApiConflict, ApiUnavailable, rejection
from trainwright.launch.diagnosis import state
from trainwright.launch.diagnosis.diagnosis import (
    ProcessReport,
    diagnose,
    limit_failure,
    read_report,
    report_of_rank,
)
from trainwright.launch.diagnosis.incidents import gpu_seconds
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.waiting import Waiting
from trainwright.launch.failure import FAILURE_CLASSES, FAILURE_KINDS, Failure

# What PyTorch, NCCL, CUDA and the kernel write; taken from reports in their issue trackers.
CUDA_OOM = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/train.py", line 88, in step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity \
of 23.65 GiB of which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB in use.
[rank1]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds.
"""
OLD_CUDA_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity)\n"
)
WATCHDOG = """\
step 1580 loss 0.31
[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) \
ran for 600060 milliseconds before timing out.
[rank0]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or \
timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.
terminate called after throwing an instance of 'c10::DistBackendError'
"""
ECC = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 41, in main
[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered
[rank1]: CUDA kernel errors might be asynchronously reported at some other API call
"""
XID = "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): {}, pid=1234, name=python, GPU has a fault\n"
PEER = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 5, in <module>
[rank1]: RuntimeError: [pair.cc:537] Read error [10.244.77.124]:21930: Connection reset by peer.
"""
ROOT = """\
E1120 08:50:24 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {0}) local_rank: 1
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_08:50:24
  host      : tw-worker-0
  rank      : 5 (local_rank: 1)
  exitcode  : {0} (pid: 12)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
STOPPED = (
    "W1120 08:50:24 1 torch/distributed/elastic/agent/api.py:738] Received Signals.SIGTERM death signal\n"
)

# Exit code and reason of the worker's container, its log, and what that is.
ENDS: dict[str, tuple[int, str, str, str]] = {
    "CUDA memory comes before the timeout of the ranks that wait": (1, "Error", CUDA_OOM, "CUDA_OOM"),
    "CUDA memory as torch 1 said it": (1, "Error", OLD_CUDA_OOM, "CUDA_OOM"),
    "NCCL's watchdog aborts the process": (134, "Error", WATCHDOG, "NCCL_TIMEOUT"),
    "NCCL's watchdog under torchrun": (1, "Error", WATCHDOG + ROOT.format(-6), "NCCL_TIMEOUT"),
    "memory errors of a GPU": (1, "Error", ECC, "NODE_GPU"),
    "a GPU that fell off the bus": (1, "Error", XID.format(79), "NODE_GPU"),
    "an Xid that programs cause": (1, "Error", XID.format(31), "USER_EXCEPTION"),
    "a peer went away and nothing says which": (1, "Error", PEER, "INFRASTRUCTURE"),
    "a crash in native code": (139, "Error", "step 1\n", "USER_EXCEPTION"),
    "shared memory is full": (135, "Error", "step 1\n", "USER_EXCEPTION"),
    "a kill without a trace": (137, "Error", "step 1\n", "UNKNOWN"),
    "a kill under torchrun without a trace": (1, "Error", ROOT.format(-9), "UNKNOWN"),
    "a stop without a trace": (143, "Error", "step 1\n", "UNKNOWN"),
    "the loss is not finite, under torchrun": (1, "Error", ROOT.format(86), "NAN_LOSS"),
    "an exit code of ours: diverged": (30, "Error", "", "DIVERGED"),
    "an exit code of ours: hang": (31, "Error", "", "HANG"),
    "an exit code of ours: input": (10, "Error", "", "CONFIG"),
    "an exit code of ours: data refused": (11, "Error", "", "USER_EXCEPTION"),
    "an exit code of ours: model refused": (12, "Error", "", "USER_EXCEPTION"),
    "an exit code of ours: transient": (20, "Error", "", "INFRASTRUCTURE"),
    "an exit code of ours: dependency": (21, "Error", "", "INFRASTRUCTURE"),
    "an exit code of ours: state saved": (40, "Error", "", "PREEMPTED"),
    "an exit code of ours: state lost": (41, "Error", "", "PREEMPTED"),
    "an exit code of ours: not allowed": (50, "Error", "", "CONFIG"),
    "an exit code of ours: our bug": (70, "Error", "", "USER_EXCEPTION"),
    "our state saved comes before a handled error": (40, "Error", OLD_CUDA_OOM, "PREEMPTED"),
    "our state lost comes before a handled error": (41, "Error", OLD_CUDA_OOM, "PREEMPTED"),
    "our refusal comes before a handled error": (50, "Error", OLD_CUDA_OOM, "CONFIG"),
    "an error in the log comes before a code that may follow it": (21, "Error", OLD_CUDA_OOM, "CUDA_OOM"),
    "torchrun was stopped and so was its process": (1, "Error", STOPPED + ROOT.format(-15), "PREEMPTED"),
    "a shell was stopped and says so": (143, "Error", STOPPED, "PREEMPTED"),
    "a program that is not there": (127, "Error", "", "CONFIG"),
    "a program that cannot be started": (128, "StartError", "", "CONFIG"),
    "a container that its node lost": (137, "ContainerStatusUnknown", "", "INFRASTRUCTURE"),
    "memory, as the allocator says it": (1, "Error", "MemoryError\n", "HOST_OOM"),
    "a full disk": (1, "Error", "OSError: [Errno 28] No space left on device: '/data/x'\n", "INFRASTRUCTURE"),
}

# Kubernetes' reason and message on a pod that was thrown out, and what that is.
THROWN: dict[str, tuple[str, str, str, bool]] = {
    "a node's disk is full": (
        "Evicted",
        "The node was low on resource: ephemeral-storage. Threshold quantity: 2146223340, available: 1883Ki. "
        "Container pytorch was using 10304Ki, request is 10Mi, has larger consumption of ephemeral-storage.",
        "EVICTED_DISK",
        True,
    ),
    "a node's disk is full, as the condition says": (
        "Evicted",
        "The node had condition: [DiskPressure]. ",
        "EVICTED_DISK",
        True,
    ),
    "its own limit of disk": (
        "Evicted",
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
        "EVICTED_DISK",
        False,
    ),
    "a volume's limit": (
        "Evicted",
        'Usage of EmptyDir volume "scratch" exceeds the limit "8053063680". ',
        "EVICTED_DISK",
        False,
    ),
    "a volume in memory is full": (
        "Evicted",
        'Usage of EmptyDir volume "shm" exceeds the limit "64Mi". ',
        "HOST_OOM",
        False,
    ),
    "a node is short of memory, and the pod is the cause": (
        "Evicted",
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 88Mi. Container pytorch "
        "was using 9Gi, request is 1Gi, has larger consumption of memory. ",
        "HOST_OOM",
        False,
    ),
    "a node is short of memory, and the pod is not": (
        "Evicted",
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 88Mi. ",
        "PREEMPTED",
        True,
    ),
    "a spot node shuts down": (
        "Terminated",
        "Pod was terminated in response to imminent node shutdown.",
        "PREEMPTED",
        True,
    ),
    "a node with broken GPUs": (
        "UnexpectedAdmissionError",
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy "
        "devices nvidia.com/gpu, which is unexpected",
        "NODE_GPU",
        True,
    ),
    "a node that is full after all": (
        "OutOfcpu",
        "Pod was rejected: Node didn't have enough resource: cpu",
        "INFRASTRUCTURE",
        True,
    ),
}
SHM = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "scratch", "emptyDir": {}}]


def failure(
    *bodies: Object, log: str = "", report: ProcessReport | None = None, gone: bool = False
) -> Failure:
    outcome = diagnose(seen(*bodies, log=log, gone=gone), report=report)
    assert isinstance(outcome, Failure)
    return outcome


@pytest.mark.parametrize(("code", "reason", "log", "kind"), ENDS.values(), ids=ENDS)
def test_the_end_of_a_container(code: int, reason: str, log: str, kind: str) -> None:
    found = failure(pod(state=ended(code, reason), phase="Failed"), job("Failed:it failed"), log=log)
    assert (found.kind, found.pod) == (kind, "tw-worker-0")
    assert found.to_error().code == found.code


def test_the_message_names_the_rank_the_code_and_what_torchrun_made_of_it() -> None:
    over, body = job("Failed:it failed"), pod(state=ended(1), phase="Failed")
    said = failure(
        body, over, log="[rank5]: Traceback (most recent call last):\n[rank5]: ValueError: bad batch\n"
    ).what
    assert said == "rank 5 in pod tw-worker-0: ValueError: bad batch"
    assert (
        failure(body, over, log="Traceback (most recent call last):\nValueError: bad batch\n").what
        == "pod tw-worker-0: ValueError: bad batch"
    )
    hidden = failure(body, over, log=ROOT.format(86)).what
    assert hidden == ("a process of pod tw-worker-0 ended with exit code 86, which torchrun turned into 1")
    plain = failure(pod(state=ended(31), phase="Failed"), over).what
    assert plain == "a process of pod tw-worker-0 ended with exit code 31"


@pytest.mark.parametrize(("code", "kept"), [(12, 12), (21, 21), (41, 41), (50, 50), (86, 30)])
def test_a_code_of_ours_is_the_code_of_the_step(code: int, kept: int) -> None:
    found = failure(pod(state=ended(code), phase="Failed"), job("Failed:it failed"))
    assert found.to_error().code == kept


def test_a_long_reason_to_wait_is_cut_in_its_middle() -> None:
    short, long = (
        Waiting("CONFIG", "rejected", "FailedCreate", text) for text in ("a" * 300, "a" * 900 + "end")
    )
    assert str(short) == f"rejected (FailedCreate: {'a' * 300})"
    assert str(long) == f"rejected (FailedCreate: {'a' * 150} ... {'a' * 147}end)"


@pytest.mark.parametrize(
    ("reason", "kind"), [("TerminationByKubelet", "EVICTED_DISK"), ("EvictionByEvictionAPI", "PREEMPTED")]
)
def test_only_the_kubelet_knows_that_its_node_was_short_of_disk(reason: str, kind: str) -> None:
    entry = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": at(40)}
    entry["message"] = "The node was low on resource: ephemeral-storage. "
    body = pod(state=ended(137), phase="Failed", conditions=[entry])
    assert failure(body, job("Failed:it failed")).kind == kind


@pytest.mark.parametrize(("reason", "message", "kind", "retryable"), THROWN.values(), ids=THROWN)
def test_a_pod_that_was_thrown_out(reason: str, message: str, kind: str, retryable: bool) -> None:
    body = pod(state=ended(137), phase="Failed", reason=reason, message=message, volumes=SHM)
    found = failure(body, job("Failed:it failed"))
    assert (found.kind, found.retryable) == (kind, retryable)
    assert message.strip() in " ".join(found.evidence)


@pytest.mark.parametrize(
    "reason", ["PreemptionByScheduler", "DeletionByPodGC", "EvictionByEvictionAPI", "TerminationByKubelet"]
)
@pytest.mark.parametrize("code", [0, 1, 137, 143])
def test_a_disrupted_pod_was_preempted_whatever_it_exits_with(reason: str, code: int) -> None:
    entry = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": at(40)}
    body = pod(state=ended(code), phase="Failed", conditions=[entry])
    found = failure(body, job("Failed:it failed"))
    assert (found.kind, found.budget, found.retryable, found.reason) == (
        "PREEMPTED",
        "preemption",
        True,
        reason,
    )


@pytest.mark.parametrize(("code", "log"), [(137, ""), (1, ROOT.format(-9))])
def test_a_kill_that_the_kernel_reports_is_for_memory(code: int, log: str) -> None:
    said = event(
        "OOMKilling", "Memory cgroup out of memory: Killed process 99", name="tw-worker-0", kind="Pod"
    )
    found = failure(pod(state=ended(code), phase="Failed"), said, job("Failed:it failed"), log=log)
    assert (found.kind, found.retryable) == ("HOST_OOM", False)


@pytest.mark.parametrize(
    ("node", "second", "kind"),
    [("n1", 40, "NODE_GPU"), ("n2", 40, "USER_EXCEPTION"), ("n1", 2, "USER_EXCEPTION")],
)
def test_what_a_node_reports_counts_for_the_pods_that_it_had_then(node: str, second: int, kind: str) -> None:
    said = event("XidError", XID.format(79).strip(), name=node, kind="Node", second=second)
    assert failure(pod(state=ended(1), phase="Failed"), said, job("Failed:it failed")).kind == kind


def test_exit_code_1_of_torchrun_is_unknown_without_its_log() -> None:
    body = pod(state=ended(1), phase="Failed", command=["torchrun", "train.py"])
    assert failure(body, job("Failed:it failed")).kind == "UNKNOWN"
    assert failure(body, job("Failed:it failed"), log=ROOT.format(86)).kind == "NAN_LOSS"


def test_an_attempt_that_torchrun_overcame_is_not_the_cause() -> None:
    second = "Traceback (most recent call last):\nValueError: bad batch: 7\n" + ROOT.format(1)
    log = CUDA_OOM + ROOT.format(1).splitlines()[0] + "\n" + second
    found = failure(pod(state=ended(1), phase="Failed"), job("Failed:it failed"), log=log)
    assert (found.kind, found.reason) == ("USER_EXCEPTION", "ValueError")


def test_the_pod_that_failed_first_is_the_cause_and_the_one_that_lost_it_is_not() -> None:
    lost = pod("tw-master-0", state=ended(1, second=40), phase="Failed")
    cause = pod(state=ended(1, second=41), phase="Failed")
    observed = seen(lost, cause, job("Failed:it failed"), log=CUDA_OOM)
    observed.add_log("uid-tw-master-0", PEER)
    found = diagnose(observed)
    assert isinstance(found, Failure)
    assert (found.kind, found.pod, found.rank) == ("CUDA_OOM", "tw-worker-0", 3)
    first = failure(pod("tw-master-0", state=ended(30, second=40), phase="Failed"), cause, job("Failed:f"))
    assert (first.kind, first.pod) == ("DIVERGED", "tw-master-0")


def test_a_job_that_says_both_had_ended_with_the_first_of_them() -> None:
    body = job("Succeeded", "Failed")
    body["status"]["conditions"][1]["lastTransitionTime"] = at(70)
    observed = seen(pod(gpus=1), body)
    assert observed.job is not None
    assert (observed.job.final, gpu_seconds(observed)) == ("Succeeded and Failed", 60 - 5)


def test_a_node_whose_clock_is_ahead_changes_nothing() -> None:
    cause = pod(state=ended(1, second=90), phase="Failed")
    cleaned = pod("tw-master-0", metadata={"deletionTimestamp": at(60)})
    found = failure(pod("tw-master-0"), cause, cleaned, job("Failed:it failed"), log="ValueError: x\n")
    assert (found.kind, found.pod) == ("USER_EXCEPTION", "tw-worker-0")


def test_a_list_that_shows_the_cause_and_the_cleaning_at_once_is_told_apart_by_time() -> None:
    cleaned = pod("tw-master-0", metadata={"deletionTimestamp": at(51)})
    observed = ObservedJob("tw")
    observed.replace_pods([cleaned, pod(state=ended(1), phase="Failed")])
    observed.update_job(job("Failed:it failed"))
    found = diagnose(observed)
    assert isinstance(found, Failure)
    assert (found.kind, found.pod) == ("USER_EXCEPTION", "tw-worker-0")


def test_a_job_that_reaches_its_deadline_while_a_pod_is_down_has_reached_its_deadline() -> None:
    over = "Failed:Job tw has failed because it was active longer than specified deadline"
    found = failure(pod(state=ended(1)), job(over), log="ValueError: bad batch\n")
    assert (found.kind, found.retryable) == ("DEADLINE", False)
    assert "the program of pod tw-worker-0 ended with exit code 1" in found.evidence


def test_a_pod_that_was_replaced_long_ago_does_not_explain_the_deletion_of_another() -> None:
    broken = pod(state=ended(137, second=15), phase="Failed")
    again = pod(metadata={"uid": "uid-again"}, state={"running": {"startedAt": at(20)}})
    taken = pod("tw-master-0", metadata={"deletionTimestamp": at(50)})
    found = failure(pod("tw-master-0"), broken, again, taken, job("Failed:it failed"))
    assert (found.kind, found.pod) == ("PREEMPTED", "tw-master-0")


@pytest.mark.covers("F28")
def test_a_job_that_is_gone_and_was_never_seen_is_deleted() -> None:
    observed = ObservedJob("tw")
    assert diagnose(observed) is None
    observed.mark_job_removed()
    found = diagnose(observed)
    assert isinstance(found, Failure)
    assert (found.kind, found.retryable, found.code) == ("DELETED", False, 21)


def test_nothing_that_explains_it_stays_unknown_and_says_what_was_seen() -> None:
    found = failure(pod(state=ended(0, "Completed"), phase="Succeeded"), job("Succeeded:all is well"))
    assert (found.kind, found.retryable) == ("UNKNOWN", False)
    assert "job: all is well" in found.evidence
    assert "pod tw-worker-0: Succeeded, pytorch ended with 0 (Completed)" in found.evidence


def rank_error(
    error: str, what: str, *, witnessed: bool = False, code: int = 70, kind: str = "", follows: bool = False
) -> RankError:
    return RankError(
        rank=4,
        time_ns=1,
        witnessed=witnessed,
        error=error,
        code=code,
        what=what,
        hint="Do this.",
        kind=kind,
        follows=follows,
    )


# What a process left, and what that is when its pod shows exit code 1 and nothing else.
REPORTS = {
    "not finite": (rank_error("Diverged", "the loss is not finite at step 7", code=30), "NAN_LOSS", 30),
    "not finite, by its own class": (
        rank_error("Diverged", "the loss is not finite at step 7", code=30, kind="DIVERGED"),
        "NAN_LOSS",
        30,
    ),
    "ran away": (
        rank_error("Diverged", "the loss is 12 deviations above its median", code=30),
        "DIVERGED",
        30,
    ),
    "hang": (rank_error("Hang", "no step for 600 s", code=31), "HANG", 31),
    "saved": (rank_error("Preempted", "stopped by SIGTERM", code=40), "PREEMPTED", 40),
    "input": (rank_error("InputError", "no column x", code=10), "CONFIG", 10),
    "refused": (rank_error("PermissionRefused", "may not read", code=50), "CONFIG", 50),
    "down": (rank_error("DependencyError", "the disk is full", code=21), "INFRASTRUCTURE", 21),
    "transient": (rank_error("TransientError", "429", code=20), "INFRASTRUCTURE", 20),
    "cuda": (rank_error("OutOfMemoryError", "OutOfMemoryError: CUDA out of memory. Tried"), "CUDA_OOM", 10),
    "theirs": (rank_error("ValueError", "ValueError: bad batch"), "USER_EXCEPTION", 70),
    "memory": (rank_error("MemoryError", "MemoryError: "), "HOST_OOM", 10),
    "killed": (
        rank_error("TransientError", "rank 4 was killed by SIGKILL", witnessed=True, code=20, kind="UNKNOWN"),
        "UNKNOWN",
        21,
    ),
    "killed for memory": (
        rank_error("InputError", "rank 4 was killed by SIGKILL", witnessed=True, code=10, kind="HOST_OOM"),
        "HOST_OOM",
        10,
    ),
    "waited": (
        rank_error("Hang", "waited in vain", code=31, kind="NCCL_TIMEOUT", follows=True),
        "NCCL_TIMEOUT",
        31,
    ),
}


@pytest.mark.parametrize(("error", "kind", "code"), REPORTS.values(), ids=REPORTS)
def test_what_a_process_tells_of_itself(error: RankError, kind: str, code: int) -> None:
    bare = failure(job("Failed:it failed"), report=report_of_rank(error))
    assert (bare.kind, bare.code, bare.rank) == (kind, code, 4)
    assert error.what in " ".join(bare.evidence)


@pytest.mark.parametrize("name", ["theirs", "hang", "saved", "killed", "transient"])
def test_what_the_pods_know_for_sure_comes_before_what_the_processes_felt_of_it(name: str) -> None:
    killed = pod("tw-master-0", state=ended(137, "OOMKilled"), phase="Failed")
    found = failure(killed, job("Failed:it failed"), report=report_of_rank(REPORTS[name][0]))
    assert (found.kind, found.pod) == ("HOST_OOM", "tw-master-0")
    assert REPORTS[name][0].what in " ".join(found.evidence)


@pytest.mark.parametrize("name", ["not finite", "input"])
def test_what_a_process_names_itself_comes_before_what_its_pods_show(name: str) -> None:
    found = failure(
        pod(state=ended(1), phase="Failed"), job("Failed:f"), report=report_of_rank(REPORTS[name][0])
    )
    assert (found.kind, found.pod) == (REPORTS[name][1], "tw-worker-0")


def test_processes_that_felt_the_end_of_their_job_do_not_explain_it() -> None:
    report = report_of_rank(REPORTS["saved"][0])
    over = "Failed:Job tw has failed because it was active longer than specified deadline"
    assert failure(pod(), job(over), report=report).kind == "DEADLINE"
    assert failure(pod(), job("Running"), report=report, gone=True).kind == "DELETED"
    named = failure(pod(), job("Running"), report=report_of_rank(REPORTS["not finite"][0]), gone=True)
    assert named.kind == "NAN_LOSS"


def test_a_rank_that_saved_its_state_makes_a_preemption_end_with_40() -> None:
    entry = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    body = pod(state=ended(0, "Completed"), phase="Succeeded", conditions=[entry])
    found = failure(body, job("Succeeded:fine"), report=report_of_rank(REPORTS["saved"][0]))
    assert (found.kind, found.code, found.pod) == ("PREEMPTED", 40, "tw-worker-0")


def test_read_report_returns_what_the_last_rounds_agents_wrote_else_its_ranks_error(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    RankError.of(InputError("no column x"), 2).save(tmp_path)
    rank = read_report(tmp_path)
    assert rank is not None
    assert (rank.failure.kind, rank.failure.rank, rank.named) == ("CONFIG", 2, True)
    Failure.of("CUDA_OOM", "no memory", rank=5).write(round_folder(tmp_path, 0))
    whole = read_report(tmp_path)
    assert whole is not None
    assert (whole.failure.kind, whole.failure.rank, whole.named) == ("CUDA_OOM", 5, True)


def test_read_report_ignores_the_failure_of_an_earlier_round(tmp_path: Path) -> None:
    begin_round(tmp_path)
    stopped = Failure.of("PREEMPTED", "stopped by SIGTERM")
    stopped.write(round_folder(tmp_path, 0))
    stopped.write(tmp_path)
    begin_round(tmp_path)
    assert read_report(tmp_path) is None
    RankError.of(ValueError("no such carrier"), 1, number=1).save(tmp_path)
    report = read_report(tmp_path)
    assert report is not None
    assert (report.failure.kind, report.failure.rank) == ("USER_EXCEPTION", 1)


@pytest.mark.parametrize("kind", ["DEADLINE", "STUCK"])
def test_a_job_that_the_launcher_ends_says_which_limit_it_reached(kind: str) -> None:
    found = limit_failure(seen(job(), pod(gpus=2), event("X", "Y", second=50)), kind, "no step within 600 s")
    assert (found.kind, found.what, found.code) == (kind, "no step within 600 s", 31)
    assert found.lost_gpu_s == 2 * (60 - 5) - 2 * (60 - 50)


def test_every_class_can_be_told_as_an_error_of_its_code() -> None:
    assert tuple(FAILURE_CLASSES) == FAILURE_KINDS
    for kind in FAILURE_KINDS:
        error = Failure.of(kind, "what").to_error()
        assert error.code == FAILURE_CLASSES[kind].code
        assert error.hint


def test_a_fact_of_another_pod_is_beside_what_a_witness_saw() -> None:
    report = report_of_rank(RankError.of(TransientError("rank 2 was killed by SIGKILL"), 2, witnessed=True))
    found: Any = failure(pod(state=ended(1, "OOMKilled"), phase="Failed"), job("Failed:f"), report=report)
    assert (found.kind, found.pod) == ("HOST_OOM", "tw-worker-0")
    assert any("killed by SIGKILL" in entry for entry in found.evidence)
    assert report.failure.exit_code == -9


def test_the_rank_of_a_pod_under_torchrun_is_not_that_of_its_process() -> None:
    alone = failure(pod(state=ended(31), phase="Failed"), job("Failed:it failed"))
    many = failure(pod(state=ended(31), phase="Failed", command=["torchrun", "a.py"]), job("Failed:f"))
    assert (alone.rank, many.rank) == (1, None)


# How long the phases of a recorded job took, in whole seconds as its objects tell them.
PHASES = {
    ("success-static", "st"): {"starting": 3, "running": 4, "ending": 2},
    ("success-elastic", "el"): {"starting": 1, "running": 40, "ending": 2},
    ("unschedulable", "un"): {"pending": 36},
    ("image-pull", "ip"): {"starting": 60},
    ("suspend-resume", "sr"): {"queued": 13, "starting": 3, "running": 12, "restarting": 2, "ending": 1},
    ("evicted-taint-exitcode", "tn"): {"pending": 1, "starting": 2, "running": 20, "restarting": 12},
    ("user-exception-onfailure", "ue"): {"starting": 3, "running": 4, "restarting": 18},
    ("worker-hang", "wh"): {"starting": 3, "running": 78},
    ("managed-by", "mb"): {},
}


def with_gpus(recording: Recording, count: int) -> Recording:
    """Give every pod of a recording GPUs; the cluster that it was made on had none."""
    events = []
    for change in recording.events:
        body = copy.deepcopy(change.body)
        if change.kind == "Pod":
            body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(count)}}
        events.append(Seen(change.kind, change.change, body))
    return Recording(recording.job, tuple(events), recording.logs)


def seconds(text: str) -> int:
    """An independent method: read the time of day by hand."""
    hours, minutes, rest = text.removesuffix("Z").partition("T")[2].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(rest)


def held_by_hand(recording: Recording) -> int:
    """Sum the seconds from a pod's PodScheduled to its container's last finishedAt, over finished pods."""
    spans = {}
    for change in recording.of("Pod"):
        status = change.body["status"]
        placed = [entry for entry in status.get("conditions", []) if entry["type"] == "PodScheduled"]
        ends = [entry["state"].get("terminated") for entry in status.get("containerStatuses", [])]
        if placed and ends and ends[0] and ends[0].get("finishedAt"):
            spans[change.body["metadata"]["uid"]] = (
                seconds(placed[0]["lastTransitionTime"]),
                seconds(ends[0]["finishedAt"]),
            )
    return sum(end - start for start, end in spans.values())


@pytest.mark.parametrize("scenario", ["oom-killed-never", "nan-exit", "torchrun-exit86", "oom-killed-child"])
def test_a_pod_holds_its_gpus_from_its_node_to_its_end(scenario: str) -> None:
    recording = with_gpus(load(scenario), 8)
    alone = [event for event in recording.events if "master" not in str(event.body["metadata"]["name"])]
    kept = recording if scenario.startswith("oom") else Recording(recording.job, tuple(alone), {})
    assert gpu_seconds(observed_events(kept, kept.events)) == 8 * held_by_hand(kept) > 0


def test_ten_pods_one_after_another_are_counted_each_although_all_are_gone() -> None:
    recording = with_gpus(load("oom-killed-exitcode"), 4)
    held = gpu_seconds(observed_events(recording, recording.events))
    assert 4 * held_by_hand(recording) <= held <= 4 * (held_by_hand(recording) + 2)
    assert held > 4 * 9 * 5


def test_what_was_done_before_the_last_checkpoint_is_not_lost() -> None:
    observed = seen(pod(gpus=2, state=ended(1, second=50), phase="Failed"), job("Failed:it failed"))
    assert gpu_seconds(observed) == 2 * (50 - 5)
    saved = at_s(40)
    assert gpu_seconds(observed, since_s=saved) == 2 * (50 - 40)
    assert gpu_seconds(observed, since_s=at_s(55)) == 0
    outcome = diagnose(observed, saved_s=saved)
    assert isinstance(outcome, Failure)
    assert outcome.lost_gpu_s == 20


def test_a_pod_that_never_had_a_node_held_nothing() -> None:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
    assert gpu_seconds(seen(job("Created"), pod(gpus=8, state={}, phase="Pending", scheduled=waits))) == 0


def test_what_runs_on_after_its_job_has_failed_is_counted_to_the_end_of_the_job() -> None:
    assert gpu_seconds(seen(pod(gpus=1), job("Failed:it failed"))) == 60 - 5


def at_s(second: int) -> float:
    found = state.parse_time(at(second))
    assert found is not None
    return found


def test_every_recorded_refusal_of_the_api_has_a_class_and_says_what_it_said() -> None:
    call = ApiCall(verb="create", resource="pytorchjobs", group="kubeflow.org", namespace="team")
    kinds: dict[str, set[int]] = {}
    for entry in refusals():
        answer = k8s.ApiException(status=entry["code"], reason="")
        answer.body = entry["body"] if isinstance(entry["body"], str) else json.dumps(entry["body"])
        error = rejection(answer, call)
        if isinstance(error, ApiConflict):
            continue
        told = error.error if isinstance(error, ApiUnavailable) else error
        assert isinstance(told, TrainwrightError)
        failure = creation_failure(told)
        kinds.setdefault(failure.kind, set()).add(entry["code"])
        said = entry["body"]["message"] if isinstance(entry["body"], dict) else entry["body"].strip()
        assert said in failure.what
        assert failure.retryable == (failure.kind == "INFRASTRUCTURE"), entry["case"]
        assert failure.code == told.code
    assert kinds == {
        "CONFIG": {400, 401, 403, 404, 415, 422},
        "QUOTA_WAIT": {403},
        "INFRASTRUCTURE": {500},
    }
