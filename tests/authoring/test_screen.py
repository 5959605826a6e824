"""What stands on the screen is what design.md shows, and a program gets one JSON line an event."""

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from trainwright import errors
from trainwright.authoring import terminal
from trainwright.authoring.submission.screen import ClusterScreen
from trainwright.command import Stream
from trainwright.local import console
from trainwright.local.run_folder import Output, Task
from trainwright.local.runner import Outcome, Plan

STEPS = {"ingest": "tabular", "validate": "tfdv", "evaluate": "tabular", "register": "mlflow"}


def plan(folder: Path) -> Plan:
    return Plan(id="0192f3", folder=folder, pipeline="train_and_register", steps=STEPS)


def task(step: str, state: str = "done", **fields: Any) -> Task:
    return Task(step=step, state=state, environment=STEPS[step], **fields)


def outcome(folder: Path, state: str, tasks: list[Task], **fields: Any) -> Outcome:
    values = {"exit_code": 0, "seconds": 72.4, "held_by": "", "error": {}} | fields
    return Outcome(
        id="0192f3", folder=folder, pipeline="train_and_register", state=state, tasks=tuple(tasks), **values
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "0192f3"


def shown(folder: Path, ended: Outcome, restart: str = "") -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    listener = console.Screen(out, err, "trainwright run train_and_register", restart)
    listener.started(plan(folder))
    for one in ended.tasks:
        if one.state != "skipped":
            listener.task_started(one.step, one.environment)
            listener.task_ended(one)
    listener.ended(ended)
    return out.getvalue(), err.getvalue()


INGEST = {"seconds": 4.1, "headline": "336,776 rows, 19 columns, data 3f9a1c"}


def test_held_run_shows_the_fact_the_report_and_the_command_to_go_on(folder: Path) -> None:
    page = Output(type="system.HTML", uri=str(folder / "evaluate" / "report.html"))
    tasks = [
        task("ingest", **INGEST),
        task("validate", "cached", headline="0 of 19 columns moved"),
        task(
            "evaluate",
            seconds=72.4,
            headline="recall gap 0.081 > 0.050",
            decision="HOLD",
            outputs={"report": page},
        ),
        task("register", "skipped"),
    ]
    out, err = shown(folder, outcome(folder, "held", tasks, exit_code=12, held_by="evaluate"))
    assert err == ""
    assert out == (
        "train_and_register   4 steps   runs/0192f3\n"
        "\n"
        "  ingest    tabular      4.1 s   336,776 rows, 19 columns, data 3f9a1c\n"
        "  validate  tfdv        cached   0 of 19 columns moved\n"
        "  evaluate  tabular   1 m 12 s   HOLD: recall gap 0.081 > 0.050\n"
        "  register  mlflow           -   not run\n"
        "\n"
        "Held by evaluate.\n"
        "  report   runs/0192f3/evaluate/report.html\n"
        "  again    trainwright run train_and_register --run 0192f3 --from evaluate\n"
    )


def test_run_that_is_done_says_where_its_reports_are(folder: Path) -> None:
    page = Output(type="system.HTML", uri=str(folder / "validate" / "report.html"))
    out, err = shown(folder, outcome(folder, "done", [task("validate", outputs={"report": page})]))
    assert err == ""
    assert out.endswith("\nDone in 1 m 12 s.\n  validate  runs/0192f3/validate/report.html\n")


def test_failed_step_says_what_where_and_what_next_on_standard_error(folder: Path) -> None:
    error = {
        "error": "InputError",
        "code": 10,
        "component": "ingest",
        "what": "column dep_hour is missing\n  known are a, b",
        "where": "flights.parquet",
        "hint": "Add it.",
        "retryable": False,
    }
    tasks = [task("ingest", "failed", seconds=1.25, error=error), task("validate", "skipped")]
    out, err = shown(folder, outcome(folder, "failed", tasks, exit_code=10, error=error))
    assert "  ingest    tabular      1.2 s   failed: column dep_hour is missing\n" in out
    assert err == (
        "\n"
        "InputError: column dep_hour is missing\n"
        "  known are a, b\n"
        "  at    flights.parquet\n"
        "  next  Add it.\n"
        "  log   runs/0192f3/ingest/log.txt\n"
        "  again trainwright run train_and_register --run 0192f3\n"
    )


STEERING = {
    "colour": "\x1b[31mred",
    "screen": "\x1b[2J\x1b[Hred",
    "title": "\x1b]0;title\x07red",
    "link": "\x1b]8;;https://evil.example\x1b\\red\x1b]8;;\x1b\\",
    "unfinished link": "\x1b]8;;red",
    "bell": "r\x07e\x08d",
    "C1": "\x9b31mred",
    "overwritten line": "all is well\rred",
    "bidi": "\u202ered\u2066",
    "zero width": "r\u200bed",
    "a lone surrogate": "\ud800red",
}
ALLOWED = {"\n", "\t"}


@pytest.mark.covers("A21")
@pytest.mark.parametrize("kind", STEERING)
def test_text_of_others_does_not_steer_the_terminal(folder: Path, kind: str) -> None:
    text = STEERING[kind]
    error = {"error": "InputError", "code": 10, "what": text, "where": text, "hint": text}
    ingest = task("ingest", "done", headline=f"{text} {text}", decision=text)
    tasks = [ingest, task("validate", "failed", error=error)]
    shown_texts = shown(folder, outcome(folder, "failed", tasks, exit_code=10, error=error))
    err = io.StringIO()
    cluster = ClusterScreen(err, err, None)
    cluster.warned(text)
    cluster.blocked(text, text)
    stream = Stream(io.BytesIO(), encoding="utf-8")
    stream.write(f"{text}\n")
    stream.flush()
    everything = [*shown_texts, err.getvalue(), stream.buffer.getvalue().decode(), errors.clean(text)]  # type: ignore[attr-defined]
    for printed in everything:
        assert [letter for letter in printed if not letter.isprintable() and letter not in ALLOWED] == []
        assert "red" in printed


def test_styles_of_the_screen_itself_pass_through_the_stream() -> None:
    stream = Stream(io.BytesIO(), encoding="utf-8")
    stream.isatty = lambda: True  # type: ignore[method-assign]
    screen = console.Screen(stream, stream, "")
    screen.warned("\x1b[2Jnote")
    stream.flush()
    printed = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "\x1b[33m  note: note\x1b[0m" in printed


def test_json_lines_hold_every_text_as_it_is_in_ascii(folder: Path) -> None:
    out = io.StringIO()
    console.Lines(out).warned("\u202e\x9b\x1b[2J")
    assert out.getvalue().isascii()
    assert json.loads(out.getvalue())["text"] == "\u202e\x9b\x1b[2J"


RESTART = "trainwright run train_and_register --config mine.yaml --param epochs=3"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        ({"error": "InputError", "code": 10}, RESTART),
        ({"error": "DataRefused", "code": 11}, RESTART),
        ({"error": "Hang", "code": 31}, "trainwright run train_and_register --run 0192f3"),
    ],
)
def test_bad_input_and_refused_data_repeat_the_command_with_its_file_and_other_failures_resume(
    folder: Path, error: dict[str, Any], again: str
) -> None:
    error |= {"what": "x", "where": "", "hint": ""}
    failed = outcome(
        folder, "failed", [task("ingest", "failed", error=error)], exit_code=error["code"], error=error
    )
    assert shown(folder, failed, RESTART)[1].endswith(f"  again {again}\n")


def test_held_run_with_a_file_repeats_the_command_with_it(folder: Path) -> None:
    held = outcome(folder, "held", [task("evaluate", decision="HOLD")], exit_code=12, held_by="evaluate")
    assert shown(folder, held, RESTART)[0].endswith(f"  again    {RESTART}\n")


def test_stopped_run_says_how_to_go_on(folder: Path) -> None:
    tasks = [task("ingest", **INGEST), task("validate", "stopped", seconds=2), task("register", "skipped")]
    out, _ = shown(folder, outcome(folder, "cancelled", tasks, exit_code=40))
    assert "  validate  tfdv         2.0 s   stopped\n" in out
    assert out.endswith(
        "\nStopped; 1 of 3 steps are finished and kept.\n"
        "  again    trainwright run train_and_register --run 0192f3\n"
    )


def test_terminal_shows_the_newest_line_of_each_trial_while_tune_runs(folder: Path) -> None:
    stream = Stream(io.BytesIO(), encoding="utf-8")
    stream.isatty = lambda: True  # type: ignore[method-assign]
    log = folder / "tune" / "log.txt"
    log.parent.mkdir(parents=True)
    many = "".join(f"trial {number:<4} complete   0.{number}\n" for number in range(20, 28))
    log.write_text(
        f"trial 1    running    a 1\nnoise\ntrial 2    running    a 2\n{many}trial 1    pruned     0.7\n"
        "trial 2    complete   0.6 \x1b[2J(best 0.6)\n"
    )
    screen = console.Screen(stream, stream, "")
    screen.started(plan(folder))
    screen.task_started("tune", "tune")
    end, printed = time.monotonic() + 20, ""
    while "trial" not in printed and time.monotonic() < end:  # it refreshes twice a second
        time.sleep(0.05)
        printed = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    screen.task_ended(Task(step="tune", state="done", environment="tune"))
    assert "    trial 27   complete   0.27" in printed
    assert "    trial 1    pruned     0.7" in printed
    assert "    trial 2    complete   0.6 (best 0.6)" in printed
    assert "running" not in printed


def test_nothing_but_a_terminal_gets_colour(folder: Path) -> None:
    error = {"error": "InputError", "what": "x", "where": "", "hint": ""}
    failed = [task("ingest", "failed", error=error)]
    out, err = shown(folder, outcome(folder, "failed", failed, error=error))
    assert "\x1b" not in out + err


def test_every_event_is_one_json_line(folder: Path) -> None:
    out = io.StringIO()
    listener = console.Lines(out)
    listener.started(plan(folder))
    listener.task_ended(task("ingest", **INGEST))
    listener.warned("something")
    listener.ended(outcome(folder, "done", [task("ingest", **INGEST)]))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["run_started", "task_finished", "warning", "run_finished"]
    assert events[0]["steps"] == list(STEPS)
    assert events[1]["headline"] == INGEST["headline"]
    assert (events[3]["state"], events[3]["exit_code"], events[3]["tasks"]) == ("done", 0, {"ingest": "done"})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.14, "4.1 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (72.4, "1 m 12 s"),
        (3599.6, "1 h 00 m"),
        (7500, "2 h 05 m"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert terminal.duration(seconds) == text
