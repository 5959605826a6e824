"""How a run ends: errors, gates, retries, limits, each with its exit code."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes

from tests.authoring.steps import (
    close,
    fail,
    gate,
    hold,
    red,
    resumed,
    say,
    says_once,
    says_so,
    sleepy,
    types,
)
from trainwright import errors
from trainwright.errors import DependencyError, InputError
from trainwright.local.runner import Outcome

Run = Callable[..., Outcome]
States = Callable[[Outcome], dict[str, str]]


def parameters(outcome: Outcome, step: str) -> dict[str, object]:
    return next(task.parameters for task in outcome.tasks if task.step == step)


def test_line_a_failing_step_prints_becomes_the_error_and_the_exit_code(
    run: Run, tmp_path: Path, states: States
) -> None:
    def pipeline(marks: str) -> None:
        failed = fail(code=10, marks=marks).set_retry(3, backoff_duration="900s")
        say(text=failed.output)

    start = time.monotonic()
    outcome = run(pipeline, {"marks": str(tmp_path / "marks")})
    assert time.monotonic() - start < 600, "kfp would have waited for 900 s, and bad input stays bad"
    assert (tmp_path / "marks").read_text() == "x"
    assert (outcome.state, outcome.exit_code) == ("failed", 10)
    assert outcome.error["what"] == "column dep_hour is missing"
    assert (outcome.error["where"], outcome.error["hint"]) == ("flights.parquet", "Add it.")
    assert states(outcome) == {"fail": "failed", "say": "skipped"}


@pytest.mark.parametrize(("code", "attempts"), [(20, 3), (21, 3), (41, 3), (10, 1), (11, 1), (1, 1)])
def test_only_what_may_pass_is_retried_as_often_as_the_pipeline_says(
    run: Run, tmp_path: Path, told: object, code: int, attempts: int
) -> None:
    def pipeline(code: int, marks: str) -> None:
        fail(code=code, marks=marks).set_retry(2, backoff_duration="0s")

    outcome = run(pipeline, {"code": code, "marks": str(tmp_path / "marks")})
    assert len((tmp_path / "marks").read_text()) == outcome.tasks[0].attempts == attempts
    assert outcome.exit_code == (errors.InternalError.code if code == 1 else code)


def line(**changes: Any) -> str:
    record = {"error": "InputError", "code": 10, "component": "x", "what": "bad", "where": "", "hint": ""}
    return errors.MARK + json.dumps(record | {"retryable": False} | changes)


FORGED_LINES = {
    "success": line(code=0),
    "success and nothing else": errors.MARK + '{"code":0}',
    "nothing": errors.MARK + "{}",
    "a list": errors.MARK + "[]",
    "another failure": line(),
    "an unknown code": line(code=3),
    "a code that is true": line(code=True),
    "a code that is text": line(code="11"),
    "a retry": line(code=20, retryable=True),
    "no text": line(code=11, what=None),
    "another field": line(code=11, more=1),
    "deep nesting": errors.MARK + "[" * 50_000,
}


@pytest.mark.covers("A18")
@pytest.mark.parametrize("forgery", FORGED_LINES)
def test_line_that_a_step_prints_never_decides_its_exit_code(run: Run, states: States, forgery: str) -> None:
    def pipeline(line: str) -> None:
        say(text=says_so(line=line, code=11).output)

    first, second = (run(pipeline, {"line": FORGED_LINES[forgery]}) for _ in range(2))
    for outcome in (first, second):
        assert (outcome.state, outcome.exit_code) == ("failed", 11)
        assert outcome.error["error"] == "DataRefused"
        assert "ended with exit code 11" in outcome.error["what"]
        assert states(outcome) == {"says-so": "failed", "say": "skipped"}


def test_line_of_an_earlier_attempt_explains_no_later_one(run: Run, tmp_path: Path) -> None:
    def pipeline(line: str, marks: str) -> None:
        says_once(line=line, code=20, marks=marks).set_retry(1, backoff_duration="0s")

    forged = line(code=20, error="TransientError", what="the server of the first attempt is down")
    outcome = run(pipeline, {"line": forged, "marks": str(tmp_path / "marks")})
    assert (outcome.exit_code, outcome.tasks[0].attempts) == (20, 2)
    assert "its last line: second attempt" in outcome.error["what"]


def test_line_with_the_code_of_the_process_explains_without_escapes_and_secrets(run: Run) -> None:
    def pipeline(line: str) -> None:
        says_so(line=line, code=11)

    secret = "hf_" + "xQwErTyUiOpAsDfGhJkLzXcVbNmQwErTyU"
    forged = line(code=11, error="DataRefused", what=f"\x1b]0;title\x07bad\u202e {secret} " + "x" * 20_000)
    outcome = run(pipeline, {"line": forged.replace(secret, "TOKEN")})  # the secret is no valid argument
    assert outcome.exit_code == 11
    assert outcome.error["what"].startswith("bad TOKEN xxx")
    assert len(outcome.error["what"]) <= errors.MAX_TEXT
    found = errors.last_record(forged)
    assert found is not None
    assert found["what"].startswith("bad *** xxx")


def test_traceback_ends_with_70_and_names_its_last_line(run: Run, tmp_path: Path) -> None:
    def pipeline(marks: str) -> None:
        fail(code=1, marks=marks)

    outcome = run(pipeline, {"marks": str(tmp_path / "marks")})
    assert outcome.exit_code == 70
    assert "ValueError: boom" in outcome.error["what"]


def test_step_that_is_killed_says_that_cache_may_be_the_reason(run: Run, tmp_path: Path) -> None:
    def pipeline(marks: str) -> None:
        fail(code=-9, marks=marks)

    outcome = run(pipeline, {"marks": str(tmp_path / "marks")})
    assert outcome.exit_code == 41
    assert "memory" in outcome.error["hint"]


def test_step_is_stopped_after_its_compiled_limit(run: Run) -> None:
    def pipeline() -> None:
        kubernetes.set_timeout(sleepy(), 1)

    outcome = run(pipeline)
    assert outcome.exit_code == 31
    assert "limit of 1 s" in outcome.error["what"]


def test_exit_handler_runs_after_a_failure_and_does_not_change_the_exit_code(
    run: Run, tmp_path: Path, states: States
) -> None:
    def pipeline(marks: str) -> None:
        with dsl.ExitHandler(close(root=dsl.PIPELINE_ROOT_PLACEHOLDER, job=dsl.PIPELINE_JOB_ID_PLACEHOLDER)):
            say(text=fail(code=10, marks=marks).output)

    outcome = run(pipeline, {"marks": str(tmp_path / "marks")})
    assert (outcome.state, outcome.exit_code) == ("failed", 10)
    assert states(outcome) == {"fail": "failed", "close": "done", "say": "skipped"}
    assert parameters(outcome, "close")["Output"] == "FAILED exit-handler-1 1"
    log = (outcome.folder / "close" / "log.txt").read_text()
    assert f"closing FAILED {outcome.folder} {outcome.id}" in log


@pytest.mark.parametrize(("verb", "code"), [("evaluate", 12), ("validate", 11)])
def test_gate_that_holds_ends_the_run_with_its_own_code(
    run: Run, states: States, verb: str, code: int
) -> None:
    def pipeline(verb: str) -> None:
        judged = gate(decision="HOLD", verb=verb)
        with dsl.If(judged.outputs["Output"] == "PASS"):
            say(text="registered")

    outcome = run(pipeline, {"verb": verb})
    assert (outcome.state, outcome.exit_code, outcome.held_by) == ("held", code, "gate")
    assert states(outcome) == {"gate": "done", "say": "skipped"}
    assert outcome.tasks[0].headline == "recall gap 0.081 > 0.050"
    assert [page.name for page in outcome.tasks[0].pages()] == ["report.html"]


def test_gate_that_nothing_follows_still_says_no(run: Run) -> None:
    def pipeline() -> None:
        with dsl.ExitHandler(close(root="", job="")):
            gate(decision="INCONCLUSIVE")

    assert run(pipeline).exit_code == 12


def test_hold_that_the_pipeline_goes_on_with_does_not_stop_the_run(run: Run) -> None:
    def pipeline() -> None:
        judged = gate(decision="HOLD", verb="validate")
        with dsl.If(judged.outputs["Output"] != "FAIL"):
            say(text="trained all the same")

    outcome = run(pipeline)
    assert (outcome.state, outcome.exit_code, outcome.held_by) == ("done", 0, "")


@pytest.mark.parametrize(("decision", "code", "after"), [("FAIL", 11, "hold"), ("HOLD", 0, "say")])
def test_branch_that_says_why_a_gate_held_is_taken_only_where_it_held(
    run: Run, states: States, decision: str, code: int, after: str
) -> None:
    def pipeline(decision: str) -> None:
        judged = gate(decision=decision, verb="validate")
        with dsl.If(judged.outputs["Output"] != "FAIL"):
            say(text="trained all the same")
        with dsl.If(judged.outputs["Output"] == "FAIL"):
            hold(gate="gate")

    outcome = run(pipeline, {"decision": decision})
    assert (outcome.exit_code, outcome.held_by) == (code, "gate" if code else "")
    found = states(outcome)
    assert found[after] == "done"
    assert ("hold" in found) == (after == "hold"), "where nothing was held, nothing is missing"


def test_text_that_could_turn_a_condition_is_rejected(run: Run, states: States) -> None:
    def pipeline(text: str) -> None:
        with dsl.If(say(text=text).output == "PASS"):
            say(text="never")

    outcome = run(pipeline, {"text": "x' or 'b' == 'b"})
    assert outcome.exit_code == 10
    assert "not a plain word" in outcome.error["what"]
    assert states(outcome) == {"say": "failed", "say-2": "skipped"}


@pytest.mark.covers("B11")
def test_text_that_kfp_would_expand_is_rejected_when_a_step_returns_it(run: Run) -> None:
    @red
    def template() -> str:
        return "{" + "{$.inputs.parameters['x']}}"

    def pipeline() -> None:
        say(text=template().output)

    outcome = run(pipeline)
    assert outcome.exit_code == 10
    assert "{{$" in outcome.error["what"]


def test_parameters_that_are_too_long_together_name_the_longest(run: Run) -> None:
    def pipeline(one: str, two: str) -> None:
        types(numbers=[one, two], table={}, ratio=1.0, count=1)
        say(text=one)

    outcome = run(pipeline, {"one": "a" * 70_000, "two": "b" * 70_000})
    assert outcome.exit_code == 10
    assert "parameter numbers" in outcome.error["where"]


@pytest.mark.covers("B4")
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_number_that_kubeflow_could_not_read_is_rejected_here_too(run: Run, number: str) -> None:
    @red
    def measure(text: str, metrics: dsl.Output[dsl.Metrics]) -> str:
        metrics.log_metric("loss", float(text))
        return text

    def pipeline(number: str) -> None:
        measure(text=number)

    outcome = run(pipeline, {"number": number})
    assert outcome.exit_code == 10
    assert "an output or a metric is not what Kubeflow reads: not JSON: " in outcome.error["what"]


def test_bug_of_ours_in_a_step_leaves_its_traceback_in_the_log(run: Run, machine: Any) -> None:
    class Wrong:
        names = ("red", "blue")
        python = staticmethod(machine.python)

        def lock_digest(self, toolchain: str) -> str:
            raise ZeroDivisionError(toolchain)

        def library_digest(self) -> str:
            return "the library"

    def pipeline() -> None:
        say(text="a")

    outcome = run(pipeline, machine=Wrong())
    assert outcome.exit_code == 70
    assert "the traceback is in the log" in outcome.error["hint"]
    log = (outcome.folder / "say" / "log.txt").read_text()
    assert log.startswith("Traceback")
    assert "ZeroDivisionError: red" in log


def test_what_the_system_says_of_the_disk_is_no_bug_of_ours(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".cache").write_text("a file")

    def pipeline() -> None:
        say(text="a")

    outcome = run(pipeline)
    assert outcome.exit_code == 21
    assert "Not a directory" in outcome.error["what"]


def test_environment_that_is_missing_is_named_before_anything_runs(
    run: Run, tmp_path: Path, machine: object
) -> None:
    class Bare:
        names = ("red", "blue")

        def python(self, toolchain: str) -> Path:
            raise DependencyError(f"the environment of {toolchain} has not been made", hint="Run: make it")

        def lock_digest(self, toolchain: str) -> str:
            return toolchain

        def library_digest(self) -> str:
            return "the library"

    def pipeline() -> None:
        say(text="a")

    with pytest.raises(DependencyError, match="environment of red"):
        run(pipeline, machine=Bare())
    assert not (tmp_path / "runs").exists()


def test_run_of_another_pipeline_cannot_be_continued(run: Run) -> None:
    def one() -> None:
        say(text="a")

    def two() -> None:
        say(text="a")

    outcome = run(one)
    with pytest.raises(InputError, match="is a run of one, not of two"):
        run(two, run_id=outcome.id)
    with pytest.raises(InputError, match="there is no run 'nope'"):
        run(one, run_id="nope")


def test_what_a_job_keeps_beside_its_output_is_there_at_the_next_try_and_in_the_next_run_but_no_output(
    run: Run, states: States
) -> None:
    """As a volume would keep it; a training that was killed goes on from there."""

    def pipeline(lives: int) -> None:
        resumed(lives=lives).set_retry(1, backoff_duration="0s").set_caching_options(enable_caching=False)

    first = run(pipeline, {"lives": 4})
    assert (first.exit_code, first.tasks[0].attempts) == (41, 2)
    again = run(pipeline, {"lives": 4}, run_id=first.id)
    assert (again.exit_code, again.tasks[0].attempts) == (0, 2)
    assert parameters(again, "resumed") == {"Output": "4"}
    assert not list(first.folder.glob(".resumed.*"))
