"""The pages, rendered by the server: runs, models, lineage. They need no script, and no other host."""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import trainwright
from trainwright import report
from trainwright.documents import read_json
from trainwright.errors import InputError, TrainwrightError, as_ours, as_record
from trainwright.local.processes import tail
from trainwright.local.run_folder import LOG, Task, newest_progress, record_of, require_run
from trainwright.local.run_index import VERSIONS, Difference, RunFilter, count_runs, flatten
from trainwright.report.svg import duration
from trainwright.service import runs
from trainwright.service.graph import GraphNode, draw_graph
from trainwright.service.problems import STATUSES, NotFound
from trainwright.service.routes import settings_of
from trainwright.service.runs import LineageNode, RunDetail, VersionLineage
from trainwright.verdicts import DECISIONS

STATES = ("running", "done", "held", "failed", "cancelled", "killed")
"""States of a run."""

_GLYPHS = {
    "done": "✓", "cached": "↺", "failed": "✕", "held": "‖", "running": "▸", "killed": "✕", "cancelled": "■",
    "stopped": "■", "skipped": "–", "waiting": "…",
}  # fmt: skip

_HERE = Path(__file__).parent
_LOG_BYTES, _TAIL_BYTES, _TAIL_LINES = 1 << 18, 1 << 13, 25
_VALUE = 2000
"""Characters of a value that a table shows."""

_ROWS, _BOXES, _ROW_BOXES = 200, 60, 6
"""Most rows of a table of a lineage, most boxes of its graph, and most of them beside each other."""

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
_REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
_ASSET = {"Cache-Control": "max-age=86400"}


class PageRoute(APIRoute):
    """A route that answers errors with a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a page for each error that a user can act on."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except NotFound as error:
                return _problem(request, error.error, 404)
            except RequestValidationError as error:
                return _problem(request, InputError(str(error.errors()[0]["msg"]), where="request"), 422)
            except (TrainwrightError, OSError) as error:
                ours = as_ours(error) or error
                return _problem(request, ours, STATUSES[as_record(ours, "service")["code"]])

        return answer


router = APIRouter(include_in_schema=False, route_class=PageRoute, default_response_class=HTMLResponse)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([_HERE / "templates", _HERE, Path(report.__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"utc": _utc, "duration": duration}
    environment.globals |= {
        "version": trainwright.__version__,
        "decisions": DECISIONS,
        "glyphs": _GLYPHS,
        "states": STATES,
        "versions": VERSIONS,
    }
    return environment


def _utc(iso: str) -> str:
    """Return a time in UTC, to the minute; a text that is no time as it is."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return iso


def _render(request: Request, template: str, area: str, title: str, status: int = 200, **values: Any) -> Response:
    root = str(request.scope.get("root_path", "")).rstrip("/")
    text = _environment().get_template(template).render(root=root, area=area, title=title, **values)
    return HTMLResponse(text, status, headers={"Content-Security-Policy": _POLICY, **_HEADERS})


def _problem(request: Request, error: Exception, status: int) -> Response:
    title = "Not found" if status == 404 else "This page cannot be shown"  # noqa: PLR2004
    known = as_record(error, "")
    return _render(request, "message.html", "", title, status, error=_error(known))


def _error(known: Mapping[str, Any], step: str = "", again: str = "") -> dict[str, str]:
    return {name: str(known.get(name, "")) for name in ("what", "where", "hint")} | {"step": step, "again": again}


@router.get("/style.css")
def style() -> Response:
    """Return the style sheet: that of the reports, and the service's own."""
    loader = _environment().get_template
    text = loader("page.css").render() + loader("service.css").render()
    return Response(text, media_type="text/css", headers=_ASSET)


@router.get("/live.js")
def live_script() -> Response:
    """Return the script that refreshes a running run."""
    return Response((_HERE / "templates" / "live.js").read_text(), media_type="text/javascript", headers=_ASSET)


@router.get("/")
def home(request: Request) -> Response:
    """Lead to the runs."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/runs")


@router.get("/runs")
def list_page(
    request: Request,
    pipeline: str = "",
    state: str = "",
    version: str = "",
    where: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    after: str = "",
) -> Response:
    """Show runs, the newest first."""
    folder = Path(settings_of(request).runs)
    where = [text for text in where if text.strip()]
    query = {"pipeline": pipeline.strip(), "state": state, "version": version.strip(), "where": where}
    conditions = RunFilter(
        pipeline=query["pipeline"], state=state, digest=query["version"], arguments=dict(map(_condition, where))
    )
    found = runs.list_runs(folder, conditions, after=after)
    kept = {name: value for name, value in query.items() if value}

    def address(**more: str) -> str:
        text = urlencode(kept | more, doseq=True)
        return "?" + text

    return _render(
        request, "runs.html", "Runs", "Runs", runs=found.runs, total=count_runs(folder), folder=str(folder),
        query=query, searched=bool(kept), newest=address() if after else "",
        older=address(after=found.next) if found.next else "",
    )  # fmt: skip


def _condition(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise InputError(f"{text!r} is not KEY=VALUE", where="parameter", hint="Such as training.epochs=3.")
    try:
        return key.strip(), read_json(value)
    except ValueError:
        return key.strip(), value.strip()


@dataclass
class _StepView:
    """A step as the page of a run shows it."""

    name: str
    state: str
    fact: str
    decision: str = ""
    seconds: float = 0.0
    environment: str = ""
    attempts: int = 0
    error: dict[str, str] | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    reports: list[tuple[str, str]] = field(default_factory=list)
    log: bool = False
    tail: str = ""

    @property
    def open(self) -> bool:
        """True for what a reader looks for first."""
        return self.state in {"failed", "running"}


@router.get("/runs/{run}")
def run_page(request: Request, run: str) -> Response:
    """Show a run: its state, steps, reports, metrics and arguments."""
    detail, folder = _detail(request, run)
    one, root = detail.summary, f"{request.scope.get('root_path', '')}/runs/{quote(run)}"
    steps = list(_steps(detail, folder, root))
    failed = next((task for task in detail.tasks if task.state == "failed"), None)
    again = f"trainwright run {one.pipeline} --run {one.run}"
    return _render(
        request, "run.html", "Runs", f"Run {run} {one.state}", one=one, live=one.state == "running",
        error=_error(failed.error, failed.step, again) if failed else _error({}),
        start=one.version("model") or one.version("data"), continues=detail.continues, steps=steps,
        graph=_step_graph(detail, steps), reports=[page for step in steps for page in step.reports],
        metrics=[(name, _text(value)) for name, value in one.metrics.items()],
        arguments=[(key, _text(value)) for key, value in flatten(detail.arguments).items()],
        environments=sorted(_environments(detail)),
    )  # fmt: skip


def _detail(request: Request, run: str) -> tuple[RunDetail, Path]:
    runs_folder = Path(settings_of(request).runs)
    return runs.get_run(runs_folder, run), require_run(runs_folder, run)


def _steps(detail: RunDetail, folder: Path, root: str) -> Iterator[_StepView]:
    """Yield the steps that ran in order, then those to come; those that a run did without are left out."""
    for task in detail.tasks:
        yield _ended(task, folder, root)
    reached = {task.step.partition(".")[0] for task in detail.tasks}
    if detail.summary.state not in {"running", "killed"}:
        return
    for name in detail.steps:
        if name not in reached:
            log = (folder / name / LOG).exists()
            state = ("running" if detail.summary.state == "running" else "killed") if log else "waiting"
            progress = newest_progress(folder / name) if log else None
            shown = _StepView(name=name, state=state, fact=str(progress or ""), log=log)
            shown.tail = _tail(folder / name / LOG) if log else ""
            yield shown


def _ended(task: Task, folder: Path, root: str) -> _StepView:
    record = record_of(task.outputs) if task.finished else None
    return _StepView(
        name=task.step,
        state=task.state,
        fact=task.headline or str(task.error.get("what", "")),
        decision=task.decision,
        seconds=task.seconds,
        environment=task.environment,
        attempts=task.attempts,
        error=_error(task.error) if task.error else None,
        inputs=record.inputs if record else {},
        outputs=record.outputs if record else {},
        reports=[(task.step, f"{root}/files/{quote(str(path))}") for path in _reports(task, folder)],
        log=(folder / task.step / LOG).exists(),
        tail=_tail(folder / task.step / LOG) if task.state in {"failed", "stopped"} else "",
    )


def _reports(task: Task, folder: Path) -> Iterator[Path]:
    """Yield the reports of a step that lie in the folder of its run, relative to it."""
    for path in task.pages():
        if path.resolve().is_relative_to(folder.resolve()) and path.is_file():
            yield path.resolve().relative_to(folder.resolve())


def _tail(log: Path) -> str:
    lines = tail(log, _TAIL_BYTES).splitlines() if log.exists() else []
    return "\n".join(lines[-_TAIL_LINES:])


def _step_graph(detail: RunDetail, steps: Sequence[_StepView]) -> str:
    """Draw the steps; nothing for a run that did not record what its steps wait for."""
    if not detail.steps:
        return ""
    nodes = [
        GraphNode(step.name, step.name, " ".join(filter(None, (step.state, step.decision))), f"#step-{step.name}",
                  step.decision or step.state)
        for step in steps
    ]  # fmt: skip
    edges = [
        (first.name, last.name)
        for last in steps
        for first in steps
        if first.name.partition(".")[0] in detail.steps.get(last.name.partition(".")[0], ())
    ]
    return draw_graph(nodes, edges, f"Steps of run {detail.summary.run}")


def _environments(detail: RunDetail) -> set[tuple[str, ...]]:
    records = (record_of(task.outputs) for task in detail.tasks if task.finished)
    return {
        (one.name, one.library, one.python, one.platform, one.lock_sha256[:12])
        for one in (record.environment for record in records if record)
    }


@router.get("/runs/{run}/log/{step}")
def log_page(request: Request, run: str, step: str) -> Response:
    """Show the end of the log of a step."""
    detail, folder = _detail(request, run)
    path = folder / step / LOG
    if step not in {*detail.steps, *(task.step for task in detail.tasks)} or not path.is_file():
        raise NotFound(InputError(f"run {run} has no log of a step {step!r}", where=str(folder)))
    return _render(
        request, "log.html", "Runs", f"Log of {step} in {run}", run=run, step=step, path=str(path),
        text=tail(path, _LOG_BYTES), cut=path.stat().st_size > _LOG_BYTES, limit=_LOG_BYTES,
    )  # fmt: skip


@router.get("/runs/{run}/files/{path:path}")
def report_file(request: Request, run: str, path: str) -> Response:
    """Return a report of a run, without rights: it may hold what its data holds."""
    detail, folder = _detail(request, run)
    for task in detail.tasks:
        if Path(path) in _reports(task, folder):
            headers = _HEADERS | {"Content-Security-Policy": _REPORT_POLICY}
            return HTMLResponse((folder / path).read_bytes(), headers=headers)
    raise NotFound(InputError(f"run {run} has no report {path!r}", where=str(folder)))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}…"


@router.get("/compare")
def compare_page(request: Request, run: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006
    """Show the differences of two runs."""
    names = [name.strip() for name in run if name.strip()]
    if len(names) > 2:  # noqa: PLR2004
        raise InputError(f"{len(names)} runs are ticked", hint="Go back and tick two.")
    both, differences = [], None
    if len(names) == 2:  # noqa: PLR2004
        both = [_detail(request, name)[0].summary for name in names]
        found = runs.diff_runs(Path(settings_of(request).runs), *names)
        differences = {part: [_row(part, one) for one in rows] for part, rows in found.items()}
    names = [*names, "", ""][:2]
    return _render(
        request, "compare.html", "Compare", "Compare two runs", names=names, both=both, differences=differences
    )


def _row(part: str, one: Difference) -> tuple[str, ...]:
    row = (one.key, _text(one.first), _text(one.second))
    if part != "metrics":
        return row
    both = one.first is not None and one.second is not None
    return (*row, f"{one.second - one.first:+.4g}" if both else "-")


@router.get("/lineage")
def lineage_page(request: Request, of: str = "") -> Response:
    """Show what a version was made from, and what was made from it."""
    of = of.strip()
    if not of:
        return _render(request, "lineage.html", "Lineage", "Lineage", of=of, node=None)
    found = runs.trace(Path(settings_of(request).runs), of)
    boxes = _nearest(found)
    root = request.scope.get("root_path", "")
    nodes = [_version_box(root, one, here=one.depth == 0) for one in boxes]
    return _render(
        request, "lineage.html", "Lineage", f"Lineage of {found.version.name}", of=of, node=found.version,
        up=found.made_from, down=found.made_into, most=_ROWS,
        graph=draw_graph(nodes, found.edges, "Lineage, from the source at the top"),
        hidden=len(found.made_from) + len(found.made_into) + 1 - len(boxes),
    )  # fmt: skip


def _nearest(found: VersionLineage) -> list[LineageNode]:
    """Return the version with the nearest ones in both directions, few enough for a graph."""
    chosen = [LineageNode(depth=0, node=found.version)]
    for side in (found.made_from, found.made_into):
        used: dict[int, int] = {}
        for one in sorted(side, key=lambda near: near.depth):
            used[one.depth] = used.get(one.depth, 0) + 1
            if used[one.depth] <= _ROW_BOXES and sum(used.values()) <= _BOXES:
                chosen.append(one)
    return chosen


def _version_box(root: str, one: LineageNode, *, here: bool) -> GraphNode:
    node = one.node
    fact = ", ".join(node.labels) or f"{node.digest[:8]} {f'by {node.step}' if node.step else 'from outside'}"
    return GraphNode(node.digest, node.name.replace("_", " "), fact, f"{root}/lineage?of={quote(node.digest)}", f"{node.name} here" if here else node.name)
