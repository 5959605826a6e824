"""The deadline of the one retry policy."""

import time
from collections.abc import Callable

import pytest

from trainwright.retries import Backoff, GaveUp, RetryPolicy, retry


def failing(times: int, *, work_s: float = 0.0) -> tuple[Callable[[], str], list[float]]:
    """Return a call that works for a while and then fails so many times, and the times of its attempts."""
    attempts: list[float] = []

    def call() -> str:
        attempts.append(time.monotonic())
        if len(attempts) <= times:
            time.sleep(work_s)
            raise ConnectionError("away")
        return "done"

    return call, attempts


def test_attempt_that_worked_longer_than_the_deadline_before_it_failed_is_retried() -> None:
    call, attempts = failing(1, work_s=1.0)
    assert retry(call, lambda _: True, "a call", deadline_s=0.8) == "done"
    assert len(attempts) == 2


def test_no_attempt_starts_after_the_deadline_when_the_server_asks_for_a_wait() -> None:
    call, attempts = failing(100)
    with pytest.raises(GaveUp) as ended:
        retry(call, lambda _: True, "a call", deadline_s=1.0, wait_s=lambda _: 0.7)
    assert len(attempts) == ended.value.attempts == 2
    assert attempts[-1] - attempts[0] < 1.5


def test_jitter_on_top_of_the_wait_of_the_server_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainwright.retries.FIRST_S", 1000.0)
    monkeypatch.setattr("trainwright.retries.LONGEST_S", 1000.0)
    call, attempts = failing(1)
    assert retry(call, lambda _: True, "a call", deadline_s=2.0, wait_s=lambda _: 1.5) == "done"
    assert 1.5 <= attempts[1] - attempts[0] < 3.0


def test_call_without_a_deadline_left_has_one_attempt() -> None:
    call, attempts = failing(1)
    with pytest.raises(GaveUp):
        retry(call, lambda _: True, "a call", deadline_s=0)
    assert len(attempts) == 1


def test_outage_is_reported_once_before_the_quiet_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainwright.retries.PATIENT_S", 0.05)
    backoff = Backoff(RetryPolicy(outage_s=60, first_s=0.05, longest_s=0.05))
    for _ in range(6):
        backoff.wait(ConnectionRefusedError("connection refused"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("connection refused; for 0 s now, retrying for 60 s more")


def test_pauses_double_up_to_the_longest_and_are_at_least_half_as_long() -> None:
    backoff = Backoff(RetryPolicy(outage_s=600, first_s=1, longest_s=5))
    for longest in (1, 2, 4, 5, 5):
        _, pause = backoff.next_pause(ConnectionError("away"))
        assert longest / 2 <= pause <= longest
    assert backoff.next_pause(ConnectionError("away"), least_s=3)[1] >= 3 + 2.5
    backoff.reset()
    assert backoff.next_pause(ConnectionError("away"))[1] <= 1
