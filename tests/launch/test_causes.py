"""What an error of a process amounts to, and which of several is the cause."""

import errno
from pathlib import Path

import pytest

from trainwright.errors import DataRefused, DependencyError, Diverged, Hang, InputError, TransientError
from trainwright.launch.agent.rank_errors import RankError, begin_round, classify, first_error, rounds
from trainwright.launch.failure import FAILURE_KINDS

GLOO_LATE = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation"
GLOO_LOST = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:30163"
NCCL_LATE = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"


class OutOfMemoryError(RuntimeError):
    """Is called as torch's is; this environment has no torch."""


@pytest.mark.parametrize(
    ("error", "kind", "code", "follows"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "CUDA_OOM", 10, False),
        (MemoryError("Unable to allocate 8.00 TiB for an array"), "HOST_OOM", 10, False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "HOST_OOM", 10, False),
        (RuntimeError(GLOO_LATE), "NCCL_TIMEOUT", 31, True),
        (RuntimeError(NCCL_LATE), "NCCL_TIMEOUT", 31, True),
        (RuntimeError(GLOO_LOST), "INFRASTRUCTURE", 20, True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "NODE_GPU", 20, False),
        (OSError(errno.ENOSPC, "No space left on device"), "INFRASTRUCTURE", 21, False),
        (Diverged("the loss ran away by step 7"), "DIVERGED", 30, False),
        (Hang("no step for 600 s"), "HANG", 31, False),
        (InputError("batch_size 7"), "CONFIG", 10, False),
        (DataRefused("no rows"), "USER_EXCEPTION", 11, False),
        (KeyError("tail_number"), "USER_EXCEPTION", 70, False),
    ],
)
def test_every_error_has_a_class_and_a_code(error: Exception, kind: str, code: int, *, follows: bool) -> None:
    cause, entry = classify(error), RankError.of(error, 0)
    assert (cause.kind, cause.follows) == (kind, follows)
    assert (entry.kind, entry.code, entry.follows) == (kind, code, follows)
    assert entry.kind in FAILURE_KINDS


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (RuntimeError(GLOO_LOST), True),
        (Hang("no step"), True),
        (DependencyError("the disk is full"), True),
        (KeyError("x"), False),
        (Diverged("not finite"), False),
        (InputError("wrong"), False),
        (MemoryError(), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, *, passing: bool) -> None:
    assert RankError.of(error, 0).passing is passing


def test_of_a_killed_process_and_those_that_lost_it_the_killed_one_is_the_cause(tmp_path: Path) -> None:
    RankError.of(RuntimeError(GLOO_LOST), 0).save(tmp_path)
    killed = TransientError("rank 1 was killed by SIGKILL")
    RankError.of(killed, 1, witnessed=True, kind="UNKNOWN").save(tmp_path)
    RankError.of(RuntimeError("something the loss of a peer brought about"), 2).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    assert (first.rank, first.what) == (1, "rank 1 was killed by SIGKILL")


def test_of_an_error_in_the_program_and_a_peer_that_waited_the_program_is_the_cause(tmp_path: Path) -> None:
    RankError.of(RuntimeError(GLOO_LATE), 0).save(tmp_path)
    RankError.of(KeyError("tail_number"), 1).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    assert first.rank == 1


def test_a_round_that_has_begun_has_no_error_yet_whatever_ended_the_one_before(tmp_path: Path) -> None:
    assert begin_round(tmp_path) == 0
    RankError.of(Hang("no step"), 0).save(tmp_path)
    assert first_error(tmp_path) is not None
    for number in range(1, 11):
        assert begin_round(tmp_path) == number
    assert first_error(tmp_path) is None
    RankError.of(Diverged("not finite"), 1, number=10).save(tmp_path)
    first = first_error(tmp_path)
    assert first is not None
    assert first.what == "not finite", "round 10 comes after round 9"
    assert [len(entries) for entries in rounds(tmp_path)] == [1, *[0] * 9, 1]
