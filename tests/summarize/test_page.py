import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainwright.artifacts import Environment, Record
from trainwright.documents import digest_text
from trainwright.report.page import draw_page as draw_html
from trainwright.summarize.run import FinalStatus, Run, RunStep, headline, outcome, read_run
from trainwright.summarize.summarize import draw_page, lineage_line, summarize

DONE = FinalStatus("SUCCEEDED", "train-and-register-0192f3", "exit-handler-1")


def record(step: str, minute: int, decision: str = "", parents: tuple[Record, ...] = ()) -> Record:
    made = {"ingest": "data", "join": "training_set", "train": "model", "register": "registration"}
    return Record(
        step=step,
        headline=f"{step} found <what> it | looked for",
        started=f"2026-11-20T10:{minute:02d}:00+00:00",
        seconds=30.0,
        decision=decision,
        config={"commit": "abc123"} if step == "register" else {},
        inputs={"source": digest_text("source")} if step == "ingest" else {},
        outputs={made.get(step, "verdict"): digest_text(step)},
        environment=Environment(
            name="tabular",
            lock_sha256="12" * 32,
            library="0.1.0",
            library_sha256="34" * 32,
            python="3.11.7",
            platform="linux-x86_64",
        ),
        parents=parents,
    )


def chain() -> dict[str, Record]:
    """The records of a whole run, each with what it was made from."""
    ingest = record("ingest", 0)
    validate = record("validate", 1, "HOLD", (ingest,))
    join = record("join", 2, "", (ingest,))
    train = record("train", 3, "", (join,))
    evaluate = record("evaluate", 5, "PASS", (train,))
    steps = [ingest, validate, join, train, evaluate, record("register", 6, "", (train, validate, evaluate))]
    return {step.step: step for step in steps}


def put(root: Path, records: dict[str, Record], *names: str) -> Path:
    for name in names or records:
        records[name].write(root / name / "main" / "record.json")
    return root


def tasks(root: Path, records: dict[str, Record], **states: object) -> None:
    """The runner's own list of tasks: ``state`` or ``(state, error)`` by step."""
    entries = []
    for step, told in states.items():
        state, error = told if isinstance(told, tuple) else (told, {})
        headline = records[step].headline if step in records and state in {"done", "cached"} else ""
        verb = records[step].step if step in records else step
        outputs = {"main": {"uri": str(root / step / "main"), "type": "system.Artifact"}}
        entry = {"step": step, "state": state, "verb": verb, "headline": headline, "error": error}
        entries.append(entry | {"seconds": 31.0, "outputs": outputs})
    (root / "tasks.json").write_text(json.dumps({"schema_version": 1, "run": "0192f3", "tasks": entries}))


class Cells(HTMLParser):
    """The text of every table cell, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - the parser calls it so
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self._inside = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data.strip()


def test_a_finished_run_shows_every_step_and_the_line_back_to_the_source(tmp_path: Path) -> None:
    root = put(tmp_path / "run", chain())
    summarize(str(root), DONE, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    page, text = (tmp_path / "page.html").read_text(), (tmp_path / "summary.md").read_text()
    rows = [row for row in Cells(page).rows if row[1:2] == ["done"]]
    rows[1][0] = rows[1][0].removeprefix("flagged:")  # read aloud, not shown
    assert [row[0] for row in rows] == ["ingest", "validate", "join", "train", "evaluate", "register"]
    assert rows[1][2:] == [
        "30.0 s",
        "",
        "HOLD",
        "validate found <what> it | looked for",
        "tabular, lock 121212121212",
    ]
    line = " from ".join(
        f"{name} {digest_text(step)[:12]}"
        for name, step in (
            ("registration", "register"),
            ("model", "train"),
            ("training_set", "join"),
            ("data", "ingest"),
            ("source", "source"),
        )
    )
    assert line in page
    assert line.replace("_", r"\_") in text
    assert "Registered: register found" in text
    assert "abc123" in page


def test_the_time_it_took_goes_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    run = read_run(str(put(tmp_path, chain())), DONE)
    assert run.seconds == 6 * 60 + 30


def test_a_run_without_gate_and_registration_says_what_its_last_step_found(tmp_path: Path) -> None:
    records = {name: record for name, record in chain().items() if name in {"ingest", "join"}}
    run = read_run(str(put(tmp_path, records, "ingest", "join")), DONE)
    assert outcome(run) == "Finished: join found <what> it | looked for"


def test_a_held_run_names_the_gate_that_held_it(tmp_path: Path) -> None:
    records = chain()
    records["evaluate"] = replace(records["evaluate"], decision="HOLD")
    root = put(tmp_path, records, "ingest", "validate", "join", "train", "evaluate")
    run = read_run(str(root), DONE)
    assert outcome(run).startswith("Held by evaluate: evaluate found")
    assert [step.step for step in run.lineage] == ["evaluate", "train", "join", "ingest"]


@pytest.mark.parametrize(
    ("state", "decided"), [("COMPLETE", "PASS"), ("CACHED", "PASS"), ("RUNNING", "HOLD")]
)
def test_a_cluster_calls_success_complete_and_a_run_that_a_gate_stopped_running(
    tmp_path: Path, state: str, decided: str
) -> None:
    records = chain()
    records["validate"] = replace(records["validate"], decision="PASS")
    records["evaluate"] = replace(records["evaluate"], decision=decided)
    steps = ["ingest", "validate", "join", "train", "evaluate", *(["register"] if decided == "PASS" else [])]
    run = read_run(str(put(tmp_path, records, *steps)), FinalStatus(state))
    assert outcome(run).startswith("Registered" if decided == "PASS" else "Held by evaluate")
    assert draw_page(run).decision == decided


def test_a_failed_step_is_named_with_its_reason_and_what_follows_is_not_run(tmp_path: Path) -> None:
    records = chain()
    root = put(tmp_path / "run", records, "ingest", "validate", "join")
    error = {"what": "the loss is not finite at step 40", "hint": "Lower the learning rate."}
    tasks(
        root,
        records,
        ingest="cached",
        validate="done",
        join="done",
        train=("failed", error),
        register="skipped",
    )
    failed = FinalStatus("FAILED", "job", "exit-handler-1", 1, "Task exit-handler-1 failed.")
    summarize(str(root), failed, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    text = (tmp_path / "summary.md").read_text()
    assert "**Failed in train: the loss is not finite at step 40**" in text
    assert "Lower the learning rate." in text
    assert "Run 0192f3" in (tmp_path / "page.html").read_text()
    states = {row[0]: row[1] for row in Cells((tmp_path / "page.html").read_text()).rows if len(row) == 7}
    assert states["ingest"] == "reused"
    assert (states["flagged:train"], states["register"]) == ("failed", "not run")


def test_the_error_of_a_failed_step_is_written_in_sentences_that_say_each_thing_once(tmp_path: Path) -> None:
    records = chain()
    root = put(tmp_path / "run", records, "ingest")
    where = "minio://team/gone.parquet"
    error = {"what": f"no such file: {where}", "where": where, "hint": "Look there.", "log": f"{root}/log-0"}
    tasks(root, records, ingest="done", validate=("failed", error))
    failed = FinalStatus("FAILED", "job", "exit-handler-1", 1, "")
    summarize(str(root), failed, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    said = f"validate: no such file: {where}. Look there. Its log: {root}/log-0"
    assert said in (tmp_path / "page.html").read_text()


def test_on_a_cluster_the_reason_is_what_kubeflow_says(tmp_path: Path) -> None:
    root = put(tmp_path, chain(), "ingest")
    failed = FinalStatus("FAILED", "job", "train", 9, "The DAG failed: OOMKilled")
    run = read_run(str(root), failed)
    assert outcome(run) == "Failed: The DAG failed: OOMKilled"


@pytest.mark.parametrize("root", ["nothing/here", "gs://bucket/run", "minio://bucket/run", "", "\0"])
def test_a_root_that_cannot_be_read_still_gives_a_page_that_says_so(tmp_path: Path, root: str) -> None:
    summarize(root, DONE, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    assert "not found:" in (tmp_path / "summary.md").read_text()
    assert "<html" in (tmp_path / "page.html").read_text()


def test_a_broken_record_and_a_broken_list_of_tasks_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    root = put(tmp_path, chain(), "ingest", "join")
    (root / "join" / "main" / "record.json").write_text('{"schema_version": 99}')
    (root / "tasks.json").write_text("[]")
    run = read_run(str(root), DONE)
    assert [step.name for step in run.steps] == ["ingest"]
    assert len(run.problems) == 2
    assert "schema_version 99" in run.problems[0]


@pytest.mark.parametrize(
    "broken",
    [{"started": "yesterday"}, {"started": "2026-11-20T10:00:00"}, {"seconds": 1e308}],
    ids=["no time", "no zone", "no end"],
)
def test_a_record_whose_times_mean_nothing_is_named_and_the_page_is_drawn_without_it(
    tmp_path: Path, broken: dict[str, Any]
) -> None:
    records = chain()
    root = put(tmp_path, records, "ingest", "join")
    replace(records["join"], **broken).write(root / "join" / "main" / "record.json")
    summarize(str(root), DONE, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    text = (tmp_path / "summary.md").read_text()
    assert "could not be drawn" not in text
    assert "join/main/record.json cannot be read" in text
    assert "ingest | done" in text


def test_an_error_of_a_task_that_is_only_a_text_is_shown(tmp_path: Path) -> None:
    told = {"run": "r", "tasks": [{"step": "train", "state": "failed", "error": "no memory"}]}
    (tmp_path / "tasks.json").write_text(json.dumps(told))
    summarize(str(tmp_path), DONE, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    assert "train: no memory" in (tmp_path / "summary.md").read_text()


def test_the_line_on_the_screen_is_one_line_whatever_the_error_says(tmp_path: Path) -> None:
    error = {"what": "these columns cannot be joined\n  no column 'carier'"}
    run = Run("r", str(tmp_path), DONE, [RunStep("join", "failed", None, error)], [], [])
    assert headline(run) == "Failed in join: these columns cannot be joined; no column 'carier'"


def test_a_step_that_is_done_but_left_no_record_is_named(tmp_path: Path) -> None:
    records = chain()
    root = put(tmp_path, records, "ingest")
    tasks(root, records, ingest="done", notify="done", summarize="running")
    run = read_run(str(root), DONE)
    assert run.problems == ["notify is done, but left no record"]


def test_a_page_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    summarize(
        str(tmp_path),
        DONE,
        tmp_path / "file" / "page.html",
        tmp_path / "file" / "summary.md",
        tmp_path / "file" / "run",
    )
    assert "could not be written" in capsys.readouterr().out


def test_two_tasks_of_one_verb_are_two_steps(tmp_path: Path) -> None:
    first, second = record("resolve", 0), replace(record("resolve", 1), headline="two")
    for step, entry in (("resolve", first), ("resolve-2", second)):
        entry.write(tmp_path / step / "main" / "record.json")
    tasks(tmp_path, {"resolve": first, "resolve-2": second}, **{"resolve-2": "done", "resolve": "done"})
    run = read_run(str(tmp_path), DONE)
    assert [(step.name, step.record) for step in run.steps] == [("resolve-2", second), ("resolve", first)]


def test_task_with_a_hyphen_has_the_record_of_its_verb(tmp_path: Path) -> None:
    entry = record("smoke_test", 0)
    entry.write(tmp_path / "smoke-test" / "main" / "record.json")
    tasks(tmp_path, {"smoke-test": entry}, **{"smoke-test": "done"})
    assert [(step.name, step.record) for step in read_run(str(tmp_path), DONE).steps] == [
        ("smoke-test", entry)
    ]


def test_the_line_back_is_as_long_as_what_is_known() -> None:
    assert lineage_line([]) == ""
    assert re.fullmatch(r"data \w{12} from source \w{12}", lineage_line([record("ingest", 0)]))


def test_a_resumed_run_lists_each_step_once_with_its_own_time_and_none_for_reused_ones(
    tmp_path: Path,
) -> None:
    """`register` ran twice: the runner keeps the files of the first attempt below its own folder."""
    records = chain()
    root = put(tmp_path, records)
    first = replace(records["register"], headline="flight-delay version 2, alias candidate")
    first.write(root / "finished" / "ab" / "registration" / "record.json")
    tasks(root, records, ingest="cached", train="cached", register="done")
    summarize(str(root), DONE, tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run")
    rows = [row for row in Cells((tmp_path / "page.html").read_text()).rows if len(row) == 7][1:]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("ingest", "reused", "-"),
        ("train", "reused", "-"),
        ("register", "done", "31.0 s"),
    ]
    assert read_run(str(root), DONE).seconds == 30.0


def test_reports_are_linked_by_paths_relative_to_the_page(tmp_path: Path) -> None:
    uri = f"{tmp_path}/validate/report.html"
    run = Run("r", str(tmp_path), DONE, [RunStep("validate", "done", reports=(uri,))], [], [])
    page = draw_html(draw_page(run, f"{tmp_path}/summarize"))
    assert '<a href="../validate/report.html">report</a>' in page


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("s3://runs/job/validate/17/report", '<a href="../../validate/17/report">report</a>'),
        ("gs://b/validate/17/report", '<a href="https://storage.cloud.google.com/b/validate/17/report">'),
        ("minio://b/<x>", "<td>minio://b/&lt;x&gt;</td>"),
    ],
)
def test_reports_of_a_cluster_are_linked_within_the_store_or_named(uri: str, text: str) -> None:
    run = Run("r", "s3://runs/job", DONE, [RunStep("validate", "done", reports=(uri,))], [], [])
    assert text in draw_html(draw_page(run, "s3://runs/job/summarize/18"))


def test_lineage_is_drawn_from_the_source_to_the_version() -> None:
    records = chain()
    run = Run("r", "", DONE, [], [*reversed(records.values())], [])
    page = draw_html(draw_page(run))
    drawing = page.partition("<svg")[2].partition("</svg>")[0]
    places = [
        drawing.index(f">{name}<") for name in ("source", "snapshot", "training set", "model", "version")
    ]
    assert places == sorted(places)
    assert digest_text("ingest")[:12] in drawing
    assert "ingest found &lt;what&gt;" in drawing
    assert "<svg" not in draw_html(draw_page(Run("r", "", DONE, [], [], [])))
