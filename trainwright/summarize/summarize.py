"""The run on one page, and in a few lines of Markdown."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup, escape

from trainwright.artifacts import Record, RunCost
from trainwright.errors import clean
from trainwright.experiment import RunSettings
from trainwright.lineage import HEADER, SHOWN, rows
from trainwright.report import markdown
from trainwright.report.page import (
    Block,
    Figure,
    Paragraph,
    ReportPage,
    ReportSection,
    Table,
    link,
    write_page,
)
from trainwright.report.svg import WIDTH, drawing, duration, element, label
from trainwright.summarize.alerts import announce
from trainwright.summarize.cost import check_shared, cost_line, cost_of, cost_section, low_gpu_use
from trainwright.summarize.run import (
    OWN,
    FinalStatus,
    Run,
    RunStep,
    decision_of,
    gates_of,
    headline,
    outcome,
    read_run,
    registration_of,
    short_commit,
    versions_in,
)
from trainwright.summarize.run_log import log_run
from trainwright.summarize.workflow import WorkflowReader
from trainwright.tracking import Stopwatch

_STATES = {
    "done": "done",
    "cached": "reused",
    "failed": "failed",
    "skipped": "not run",
    "running": "not ended",
}
_STEP_HEADER = ("step", "state", "time", "decision", "what it found", "environment")
_REPORT = 3
"""Place of the column with the reports, which only the page has."""

_LINE = ("registration", "model", "training_set", "data", "source")
"""Names of the links from a registered model back to its source."""

_RUN = 8
"""Digits of a run's id that are shown."""


def summarize(
    run_root: str,
    ending: FinalStatus,
    page: Path,
    summary: Path,
    record: Path,
    cluster: WorkflowReader | None = None,
    folder: str = "",
    section: Mapping[str, Any] = MappingProxyType({}),
    registry: Mapping[str, Any] = MappingProxyType({}),
    scheduled: str = "",
) -> None:
    """Write the page, the summary and the record of a run, log the run in MLflow, and send its alerts.

    Never raises: that would hide the run's error.

    Args:
        run_root: Folder or URI of the run's artifacts.
        ending: Kubeflow's status of the run.
        page: HTML file.
        summary: Markdown file.
        record: Folder of the record.
        cluster: API that lists the run's tasks; None for a local run.
        folder: Folder or URI of the page, from which it links to the reports. Default: that of this step.
        section: The section ``run``.
        registry: The section ``registry``, with the address of MLflow.
        scheduled: Time for which the run was scheduled, ISO 8601.
    """
    text = f"**{ending.state}** {ending.job}\n"
    watch = Stopwatch()
    run: Run | None = None
    cost: RunCost | None = None
    try:
        record.mkdir(parents=True, exist_ok=True)
        run = read_run(run_root, ending, cluster)
        watch.record(record, OWN, headline(run), parents=run.records)
        started = started_by(section)
        run, cost, notes = _priced(run, section, registry)
        if cost:
            cost.write(record)
        text = "\n".join(filter(None, (draw_summary(run, cost, notes), markdown.escape(started))))
        write_page(draw_page(run, folder or f"{run_root}/{OWN}", cost, notes, started), page)
    except Exception as error:
        text += f"\nThe page of the run could not be drawn: {markdown.escape(error)}\n"
        _write(page, f"<!doctype html><meta charset=utf-8><pre>{markdown.escape(text)}</pre>")
    known = run or Run(ending.job.rpartition("/")[2], run_root, ending, [], [], [])
    for problem in announce(known, section, str(page), cluster, scheduled, cost):
        print(f"not sent: {problem}")  # noqa: T201
        text += f"- not sent: {markdown.escape(problem)}\n"
    _write(summary, text)
    if run and (line := log_run(run, section, registry, record, cost)):
        print(line)  # noqa: T201
        _write(summary, f"{text}\n{markdown.escape(line)}\n")


def _priced(
    run: Run, section: Mapping[str, Any], registry: Mapping[str, Any]
) -> tuple[Run, RunCost | None, list[str]]:
    """Return the run with what is not known of its cost, the cost, and notes on GPUs of little use."""
    cost, notes = None, list[str]()
    try:
        settings = RunSettings.parse(section, "run")
        notes = list(low_gpu_use(run, settings))
        cost = cost_of(run, settings)
        if cost:
            cost = check_shared(run, cost, settings, str(registry.get("tracking_uri") or ""))
    except Exception as error:
        problem = f"the {'soft limits' if cost else 'cost'}: {clean(getattr(error, 'what', error), 300)}"
        run = replace(run, problems=[*run.problems, problem])
    return run, cost, notes


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        print(f"{path} could not be written: {error}")  # noqa: T201 - the log is all that is left


def started_by(section: Mapping[str, Any]) -> str:
    """Return which trigger started a run and why; empty if none did."""
    by = section.get("started_by")
    return f"Started by trigger {by['trigger']} for {by['date']}: {by['reason']}" if by else ""


def draw_page(
    run: Run, folder: str = "", cost: RunCost | None = None, notes: Sequence[str] = (), started: str = ""
) -> ReportPage:
    """Return the page of a run, which lies in ``folder``; ``started`` says what started it."""
    flagged = [
        index
        for index, step in enumerate(run.steps)
        if step.state == "failed" or (step.record and step.record.decision not in {"", "PASS"})
    ]
    cells = [
        [*row[:_REPORT], _report_links(step, folder), *row[_REPORT:]]
        for row, step in zip(_step_rows(run), run.steps, strict=True)
    ]
    header = [*_STEP_HEADER[:_REPORT], "report", *_STEP_HEADER[_REPORT:]]
    steps = Table(header, cells, numeric=(2,), flagged=flagged)
    lineage: list[Block] = [Paragraph("No step left a record, so nothing leads back.")]
    if run.lineage:
        drawn = draw_lineage(run.lineage)
        lineage = [Figure(drawn, "Each arrow is the step that made what follows.")] if drawn else []
        lineage.append(Table(HEADER, list(rows(run.lineage))))
    sections = [
        ReportSection("Where it stopped", _stop(run)) if _stop(run) else None,
        ReportSection("What ran", [steps]),
        cost_section(cost) if cost else None,
        ReportSection("Low use of GPUs", [Paragraph(note) for note in notes]) if notes else None,
        ReportSection("From the result back to the source", lineage, intro=lineage_line(run.lineage)),
        ReportSection("Not found", [Paragraph(problem) for problem in run.problems])
        if run.problems
        else None,
    ]
    return ReportPage(
        title=f"Run {run.name}" if run.name else "Run",
        subtitle=outcome(run),
        decision=decision_of(run),
        facts=[
            *_facts(run),
            *([("cost", f"{cost.cost:,.4g} {cost.currency}")] if cost else []),
            *([("started by", started.removeprefix("Started by "))] if started else []),
        ],
        sections=[section for section in sections if section],
    )


def _report_links(step: RunStep, folder: str) -> object:
    """Link to the pages of a step: by relative paths, so that a copy of the run's folder keeps them."""
    links = []
    for uri in step.reports:
        name = posixpath.basename(uri).removesuffix(".html") or "report"
        bucket = uri.removeprefix("gs://")
        if urlsplit(uri).scheme == urlsplit(folder).scheme:
            links.append(link(name, posixpath.relpath(uri, folder)))
        elif bucket != uri:
            links.append(link(name, f"https://storage.cloud.google.com/{bucket}"))
        else:
            links.append(escape(uri))
    return Markup(", ").join(links)


def draw_summary(run: Run, cost: RunCost | None = None, notes: Sequence[str] = ()) -> str:
    """Return the same in Markdown."""
    parts = [f"**{markdown.escape(outcome(run))}**\n"]
    parts += [f"{markdown.escape(block.text)}\n" for block in _stop(run) if isinstance(block, Paragraph)]
    parts.append(markdown.table(_STEP_HEADER, list(_step_rows(run)), (2,)))
    parts += [f"{markdown.escape(lineage_line(run.lineage))}\n"] if run.lineage else []
    parts += [f"Cost: {markdown.escape(cost_line(cost))}\n"] if cost else []
    parts += [f"- {markdown.escape(said)}\n" for said in [*(cost.over_budget if cost else ()), *notes]]
    parts += [f"- not found: {markdown.escape(problem)}\n" for problem in run.problems]
    return "\n".join(parts)


def lineage_line(lineage: Sequence[Record]) -> str:
    """Return the digests from the result back to the source in one line."""
    made = versions_in(lineage)
    return " from ".join(f"{name} {made[name][:SHOWN]}" for name in _LINE if name in made)


def _facts(run: Run) -> Iterator[tuple[str, object]]:
    if run.ending.state:
        yield "state", run.ending.state.lower()
    if new := [step.record for step in run.steps if step.record and step.state != "cached"]:
        began = datetime.fromisoformat(min(record.started for record in new))
        yield "began", f"{began:%Y-%m-%d %H:%M} UTC"
        yield "took", duration(run.seconds)
    for gate in gates_of(run):
        yield f"{gate.step} decided", gate.decision
    for record in run.records:
        if record.step == "register":
            yield "registered", record.headline
            yield "commit", short_commit(record)


def _step_rows(run: Run) -> Iterator[tuple[str, str, str, str, str, str]]:
    for step in run.steps:
        record = step.record
        if record is None:
            yield step.name, _state(step), "-", "", str(step.error.get("what", "")) or "-", "-"
            continue
        place = record.environment
        environment = f"{place.name}, lock {place.lock_sha256[:SHOWN] or 'unknown'}"
        seconds = record.seconds if step.seconds is None else step.seconds
        # A reused step took its time in an earlier run, which is no time of this one.
        took = "-" if step.state == "cached" else duration(seconds)
        yield step.name, _state(step), took, record.decision, record.headline, environment


def _state(step: RunStep) -> str:
    state = _STATES.get(step.state, step.state)
    return f"{state} from run {step.origin[:_RUN]}" if step.origin else state


def _stop(run: Run) -> list[Block]:
    """Return where the run stopped, why, and what to do."""
    blocks: list[Block] = []
    for step in run.steps:
        if step.state == "failed":
            parts = [str(step.error[name]) for name in ("what", "where", "hint") if step.error.get(name)]
            text = [f"{one.rstrip('.')}." for at, one in enumerate(parts) if one not in "".join(parts[:at])]
            text += [f"Its log: {step.error['log']}"] if step.error.get("log") else []
            blocks.append(Paragraph(f"{step.name}: {' '.join(text) or 'it left no reason; see its log'}"))
    if run.ending.state not in {"SUCCEEDED", ""}:
        code = f" (code {run.ending.error_code})" if run.ending.error_code else ""
        reason = run.ending.error or "no reason given"
        blocks.append(
            Paragraph(f"Kubeflow says of {run.ending.task or 'the run'}: {run.ending.state}{code}, {reason}")
        )
    registered = registration_of(run)
    for gate in gates_of(run):
        if gate.decision != "PASS" and not registered:
            reason = gate.headline.removeprefix(f"{gate.decision}: ")
            blocks.append(Paragraph(f"{gate.step} decided {gate.decision}: {reason}. Its report says why."))
    return blocks


_LINKS = (
    ("source", "source", "resolve"),
    ("data", "snapshot", "ingest"),
    ("training_set", "training set", "join"),
    ("model", "model", "train"),
    ("registration", "version", "register"),
)
"""Name of each digest in a record, its title, and the step that makes it."""

_HEIGHT, _GAP, _EDGE, _TITLE = 46.0, 24.0, 1.0, 110.0


@dataclass(frozen=True)
class _Node:
    title: str
    name: str
    step: str
    fact: str


def draw_lineage(lineage: Sequence[Record]) -> Markup | None:
    """Draw a box for each known link, the source first; None where fewer than two are known.

    Args:
        lineage: Records from the result back to the source, the latest first.
    """
    nodes = list(_nodes(lineage))
    if len(nodes) < 2:  # noqa: PLR2004 - nothing leads anywhere
        return None
    marks: list[Markup] = []
    for index, node in enumerate(nodes):
        top = _EDGE + index * (_HEIGHT + _GAP)
        if index:
            marks += _arrow(top, node.step)
        box = {"x": _EDGE, "y": top, "width": WIDTH - 2 * _EDGE, "height": _HEIGHT, "rx": 6}
        marks += [
            element("rect", **box, class_="box"),
            label(14, top + 19, node.title, class_="bold", width=_TITLE),
            label(14 + _TITLE, top + 19, node.name, width=WIDTH - _TITLE - 28),
            label(14, top + 37, node.fact, class_="muted", width=WIDTH - 28),
        ]
    names = " to ".join(node.title for node in nodes)
    return drawing(len(nodes) * (_HEIGHT + _GAP) - _GAP + 2 * _EDGE, "Lineage", f"From {names}.", marks)


def _arrow(top: float, step: str) -> list[Markup]:
    middle, start, tip = 34.0, top - _GAP, top - 2
    head = f"M{middle - 4:.0f} {tip - 5:.0f}L{middle:.0f} {tip:.0f}L{middle + 4:.0f} {tip - 5:.0f}"
    return [
        element("path", d=f"M{middle:.0f} {start:.0f}V{tip:.0f}{head}", class_="arrow"),
        label(middle + 12, top - _GAP / 2 + 4, step, class_="muted"),
    ]


def _nodes(lineage: Sequence[Record]) -> list[_Node]:
    found = []
    for name, title, step in _LINKS:
        makers = [record for record in lineage if name in record.outputs]
        users = [record for record in lineage if name in record.inputs]
        if not (makers or users):
            continue
        digest = makers[0].outputs[name] if makers else users[0].inputs[name]
        fact = makers[0].headline if makers else ""
        named = digest[:SHOWN]
        if name == "registration":  # a version has a name, by which it is found
            named, _, fact = fact.partition(", ")
        found.append(_Node(title, named, makers[0].step if makers else step, fact))
    return found
