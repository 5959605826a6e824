"""Failures as a document, a card and an error, and the causes of foreign errors."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import redaction
from trainwright.errors import DataRefused, DependencyError, Diverged, Hang, InputError, TransientError
from trainwright.launch.agent.rank_errors import RankError, begin_round, classify, first_error, rounds
from trainwright.launch.failure import ADVICE, BUDGETS, FAILURE_CLASSES, FAILURE_KINDS, Failure

SECRETS = [
    "password=hunter2hunter2",
    "DB_PASSWORD: 'hunter2hunter2'",
    '"api_key": "hunter2hunter2"',
    "AWS_SECRET_ACCESS_KEY=hunter2hunter2",
    "Authorization: Bearer hunter2hunter2",
    "curl -H 'Authorization: Basic hunter2hunter2'",
    "postgresql://user:hunter2hunter2@db/x",
    "https://bucket/x?X-Goog-Signature=hunter2hunter2&a=1",
    "token: hunter2hunter2",
    "MLFLOW_TRACKING_TOKEN=hunter2hunter2",
    "hf_hunter2hunter2hunter2",
    "ghp_hunter2hunter2hunter2hunter2",
    "eyJhunter2hunter2.eyJhunter2hunter2.hunter2",
    "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
]
HARMLESS = [
    "tokens/s 41,200",
    "ValueError: bad batch: 7",
    "KeyError: 'secret_santa'",
    "step 3 of 9, loss 0.31",
    'secret "absent" not found',
    "max_tokens 2048",
    "invalid continue token: continue key is not valid",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_in_a_log_is_not_shown(text: str) -> None:
    shown = redaction.redact(f"before {text} after")
    assert "hunter2" not in shown
    assert shown.startswith("before ")
    assert "***" in shown


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redaction.redact(text) == text


@pytest.mark.parametrize("piece", ["a-", "token", "token=", "eyJ-", "://a:", "'x'=", '"', "-----BEGIN "])
def test_a_log_that_is_one_long_line_is_cleaned_at_once(piece: str) -> None:
    """Each of these takes minutes with a pattern that looks for a secret's name anywhere in a word."""
    assert len(redaction.redact(piece * 30_000)) <= 4_100


@given(st.lists(st.text(max_size=300).map(lambda text: text * 10), max_size=20))
def test_evidence_is_bounded_and_its_first_entries_are_kept(entries: list[str]) -> None:
    kept = redaction.bounded_evidence(entries)
    assert sum(map(len, kept)) <= redaction.MAX_EVIDENCE
    assert all(len(entry) <= redaction.MAX_ENTRY for entry in kept)
    assert len(set(kept)) == len(kept)
    first = next((entry for entry in entries if redaction.redact(entry).strip()), None)
    assert (first is None) == (kept == ())


def test_all_evidence_together_is_bounded() -> None:
    kept = redaction.bounded_evidence([f"{index} {'x' * 1500}" for index in range(20)])
    assert redaction.MAX_EVIDENCE - redaction.MAX_ENTRY < sum(map(len, kept)) <= redaction.MAX_EVIDENCE
    assert kept[0].startswith("0 ")


def test_a_long_entry_keeps_its_begin_and_its_end() -> None:
    (kept,) = redaction.bounded_evidence(["begin" + "x" * 3000 + "\n" + "y" * 3000 + "end"])
    assert kept.startswith("begin")
    assert kept.endswith("end")


def test_error_of_a_rank_that_stands_for_success_is_rejected(tmp_path: Path) -> None:
    """A program of a user may write this file, and the agent ends with its code."""
    entry = RankError.of(Diverged("the loss is nan"), 0)
    entry.save(tmp_path)
    path = next(tmp_path.rglob("rank-0.json"))
    path.write_text(path.read_text().replace('"code": 30', '"code": 0'))
    with pytest.raises(InputError, match="code 0 is none of"):
        RankError.read(path)


def test_a_failure_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    failure = Failure.of(
        "CUDA_OOM", "no memory", pod="p-0", rank=3, exit_code=1, evidence=["a", "b"], lost_gpu_s=4
    )
    failure.write(tmp_path)
    assert (tmp_path / "failure.json").exists()
    assert Failure.read(tmp_path) == failure


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "OOPS"}, "kind 'OOPS' is not one of"),
        ({"budget": "mine"}, "budget 'mine' is not one of"),
        ({"code": 1}, "code 1 is not one of"),
        ({"lost_gpu_s": -1.0}, "lost_gpu_s is -1.0"),
    ],
)
def test_a_failure_that_there_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    body = Failure.of("UNKNOWN", "what").to_json() | {"evidence": []} | changes
    with pytest.raises(InputError, match=said):
        Failure.from_json(body)


def test_failure_with_a_loss_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(InputError, match="lost_gpu_s is nan"):
        Failure.of("UNKNOWN", "what", lost_gpu_s=float("nan"))


def test_every_class_has_a_budget_a_code_and_advice() -> None:
    assert {kind.budget for kind in FAILURE_CLASSES.values()} == set(BUDGETS)
    for name, kind in FAILURE_CLASSES.items():
        assert ADVICE[name].endswith("."), name
        assert kind.meaning, name


def test_out_of_memory_is_never_repeated_unchanged() -> None:
    assert not FAILURE_CLASSES["HOST_OOM"].retryable
    assert not FAILURE_CLASSES["CUDA_OOM"].retryable


def test_the_error_says_the_class_the_place_and_what_next() -> None:
    error = Failure.of("NAN_LOSS", "the loss is nan at step 7", pod="p-worker-0", rank=1).to_error()
    assert type(error) is Diverged
    assert error.what == "NAN_LOSS: the loss is nan at step 7"
    assert error.where == "pod p-worker-0, rank 1"
    assert error.hint == ADVICE["NAN_LOSS"]


def test_the_card_shows_everything_and_nothing_in_it_becomes_markup() -> None:
    failure = Failure.of(
        "USER_EXCEPTION",
        "ValueError: <b>|bold|</b> *x*",
        pod="p-worker-0",
        rank=1,
        exit_code=1,
        reason="ValueError",
        evidence=["# no heading", "line one\nline two\n\n# <b>no heading"],
        lost_gpu_s=1234.4,
    )
    card = failure.card()
    assert card.startswith("### USER\\_EXCEPTION: the job ended with an error of the program\n")
    assert "ValueError: &lt;b>\\|bold\\|&lt;/b> \\*x\\*" in card
    assert "| where | pod p-worker-0, rank 1 |" in card
    assert "| tried again | no, user budget |" in card
    assert "| lost | 1,234 GPU seconds |" in card
    assert "- \\# no heading\n- line one\n\n      line two\n      # <b>no heading\n\nNext: " in card.replace(
        "\n\n\n", "\n\n"
    )
    assert card.rstrip().endswith(f"Next: {failure.advice}")


def test_a_card_without_evidence_has_no_empty_list() -> None:
    card = Failure.of("DEADLINE", "did not end within 60 s").card()
    assert "What shows it" not in card
    assert "GPU seconds" not in card


def test_the_page_about_failures_says_what_the_classes_do() -> None:
    text = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {cells[0].strip(" `"): [cell.strip() for cell in cells[3:]] for cells in rows if len(cells) == 6}
    again = {True: "yes", False: "no"}
    assert told == {
        name: [again[kind.retryable], kind.budget, str(kind.code)] for name, kind in FAILURE_CLASSES.items()
    }


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
    assert RankError.of(error, 0).retryable is passing


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
