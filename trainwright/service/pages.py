"""The pages, rendered by the server: runs, models, lineage. They need no script, and no other host."""

import hmac
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import trainwright
from trainwright import report
from trainwright.artifacts import Progress
from trainwright.artifacts.cost import GROUPS, sum_waste
from trainwright.documents import flatten
from trainwright.errors import InputError, PermissionRefused, TrainwrightError, as_ours, as_record
from trainwright.experiment import PromotionRequest
from trainwright.lineage import VERSIONS
from trainwright.local.processes import tail
from trainwright.local.run_folder import LOG, Task, record_of, require_run
from trainwright.local.run_index import Difference
from trainwright.registry.history import read_history
from trainwright.registry.listing import VersionSummary
from trainwright.registry.names import AUDITED, CANDIDATE, STAGES
from trainwright.registry.promote import reasons
from trainwright.report.svg import duration
from trainwright.service import cluster, models, routes, runs
from trainwright.service.access import Reader, access_of
from trainwright.service.graph import GraphNode, draw_graph
from trainwright.service.problems import status_of
from trainwright.service.routes import Configured, ModelName, RunId, Version
from trainwright.service.runs import LineageNode, RunDetail, VersionLineage, index_of
from trainwright.service.settings import Settings
from trainwright.tracking.run_log import start_of_month
from trainwright.verdicts import DECISIONS

STATES = ("running", "done", "held", "failed", "cancelled", "killed")
"""States of a run."""

_GLYPHS = {
    "done": "✓", "cached": "↺", "failed": "✕", "held": "‖", "running": "▸", "killed": "✕", "cancelled": "■",
    "stopped": "■", "skipped": "-", "waiting": "…",
}  # fmt: skip

_HERE = Path(__file__).parent
_LOG_BYTES, _TAIL_BYTES, _TAIL_LINES = 1 << 18, 1 << 13, 25
_VALUE = 2000
"""Characters of a value that a table shows."""

_ROWS, _BOXES, _ROW_BOXES = 200, 60, 6
"""Most rows of a table of a lineage, most boxes of its graph, and most of them beside each other."""

_PAGE = 50
"""Runs of one page."""

_ASSET = {"Cache-Control": "max-age=86400"}


class PageRoute(APIRoute):
    """A route that answers errors with a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a page for each error that a user can act on."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except HTTPException as error:
                return _problem(request, InputError(str(error.detail)), error.status_code)
            except RequestValidationError as error:
                what = str(error.errors()[0]["msg"])
                return _problem(request, InputError(what, where=request.url.path), 422)
            except (TrainwrightError, OSError) as error:
                ours = as_ours(error) or error
                return _problem(request, ours, status_of(ours))

        return answer


def _sign_in(request: Request, identity: Reader) -> None:
    request.state.user = identity


router = APIRouter(include_in_schema=False)
_pages = APIRouter(route_class=PageRoute, dependencies=[Depends(_sign_in)])


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


def _root(request: Request) -> str:
    """Return the path below which a proxy serves the pages; usually empty."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _render(request: Request, page: str, area: str, title: str, status: int = 200, **values: Any) -> Response:
    user = getattr(request.state, "user", "")
    template = _environment().get_template(f"{page}.html")
    text = template.render(root=_root(request), area=area, title=title, user=user, **values)
    return HTMLResponse(text, status)


def _problem(request: Request, error: Exception, status: int) -> Response:
    title = {401: "Sign in", 404: "Not found"}.get(status, "This page cannot be shown")
    return _render(request, "message", "", title, status, error=_error(as_record(error, "")))


def _error(known: Mapping[str, Any], step: str = "", again: str = "") -> dict[str, str]:
    texts = {name: str(known.get(name, "")) for name in ("what", "where", "hint")}
    return texts | {"step": step, "again": again}


@router.get("/style.css")
def style() -> Response:
    """Return the style sheet: that of the reports, and the service's own."""
    sheets = (_environment().get_template(name).render() for name in ("page.css", "service.css"))
    return Response("".join(sheets), media_type="text/css", headers=_ASSET)


@router.get("/live.js")
def live_script() -> Response:
    """Return the script that refreshes a running run."""
    text = (_HERE / "templates" / "live.js").read_text()
    return Response(text, media_type="text/javascript", headers=_ASSET)


@_pages.get("/")
def home(request: Request) -> Response:
    """Lead to the runs."""
    return RedirectResponse(f"{_root(request)}/runs")


@_pages.get("/runs")
def list_page(
    request: Request,
    settings: Configured,
    pipeline: str = "",
    state: str = "",
    version: str = "",
    owner: str = "",
    where: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    after: str = "",
    source: cluster.Source = "",
) -> Response:
    """Show runs, the newest first."""
    texts = {"pipeline": pipeline, "state": state, "version": version, "owner": owner}
    query: dict[str, Any] = {name: text.strip() for name, text in texts.items()}
    query["where"] = [text.strip() for text in where if text.strip()]
    found = routes.list_runs(settings, **query, after=after, limit=_PAGE, source=source)
    searched = any(query.values())
    chosen = {name: value for name, value in query.items() if value}
    sources = cluster.sources_of(settings)
    source = source or sources[0]
    chosen |= {"source": source} if len(sources) > 1 else {}
    return _render(
        request, "runs", "Runs", "Runs", runs=found.runs, query=query, searched=searched, source=source,
        sources=sources, folder=settings.runs,
        owners=found.owners,
        total=index_of(settings.runs_folder).count() if source == "folder" else None,
        newest=f"?{urlencode(chosen, doseq=True)}" if after else "",
        older=f"?{urlencode(chosen | {'after': found.next}, doseq=True)}" if found.next else "",
    )  # fmt: skip


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
    progress: Progress | None = None
    error: dict[str, str] | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    log: bool = False
    tail: str = ""

    @property
    def open(self) -> bool:
        """True for what a reader looks for first."""
        return self.state in {"failed", "running"}


@_pages.get("/runs/{run}")
def run_page(request: Request, settings: Configured, run: RunId) -> Response:
    """Show a run: its state, steps, reports, metrics and arguments."""
    detail = routes.get_run(settings, run)
    one, here = detail.summary, detail.source == "folder"
    steps = list(_steps(detail, require_run(settings.runs_folder, run) if here else None))
    failed = next((task for task in detail.tasks if task.state == "failed"), None)
    again = f"trainwright run {one.pipeline} --runs {settings.runs} --run {one.run}" if here else ""
    return _render(
        request, "run", "Runs", f"Run {run} {one.state}", one=one, live=one.state == "running", detail=detail,
        error=_error(failed.error, failed.step, again) if failed else _error({}),
        owner=str(flatten(detail.arguments).get(runs.OWNER, "")),
        start=one.version("model") or one.version("data"), steps=steps, graph=_step_graph(detail, steps),
        files=f"{_root(request)}/api/v1/runs/{run}/files",
        traced={digest for made in one.derivations for digest in (made.inputs | made.outputs).values()},
        metrics=[(name, _text(value)) for name, value in one.metrics.items()],
        arguments=[(key, _text(value)) for key, value in flatten(detail.arguments).items()],
        environments=sorted(_environments(detail)),
    )  # fmt: skip


def _steps(detail: RunDetail, folder: Path | None) -> Iterator[_StepView]:
    """Yield the steps that began in order, then those to come; without those that the run did not need."""
    for task in detail.tasks:
        yield _begun(task, folder)
    reached = {task.step.partition(".")[0] for task in detail.tasks}
    if detail.summary.state not in {"running", "killed"}:
        return
    for name in detail.steps:
        if name not in reached:
            log = folder / name / LOG if folder else None
            if log is None or not log.exists():
                yield _StepView(name=name, state="waiting", fact="")
                continue
            progress = detail.progress.get(name)
            shown = _StepView(name=name, state=detail.summary.state, fact=str(progress or ""), log=True)
            shown.progress, shown.tail = progress, _tail(log)
            yield shown


def _begun(task: Task, folder: Path | None) -> _StepView:
    record = record_of(task.outputs) if task.finished else None
    log = folder / task.step / LOG if folder else None
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
        reports=[str(path) for path in _reports(task, folder)] if folder else [],
        log=log is not None and log.exists(),
        tail=_tail(log) if log and log.exists() and task.state in {"failed", "stopped"} else "",
    )


def _reports(task: Task, folder: Path) -> Iterator[Path]:
    """Yield the reports of a step that lie in the folder of its run, relative to it."""
    for path in task.pages():
        if path.resolve().is_relative_to(folder.resolve()) and path.is_file():
            yield path.resolve().relative_to(folder.resolve())


def _tail(log: Path) -> str:
    return "\n".join(tail(log, _TAIL_BYTES).splitlines()[-_TAIL_LINES:])


def _step_graph(detail: RunDetail, steps: Sequence[_StepView]) -> str:
    """Draw the steps; nothing for a run that did not record what its steps wait for."""
    if not detail.steps:
        return ""
    nodes = [
        GraphNode(
            key=step.name,
            title=step.name,
            fact=" ".join(filter(None, (step.state, step.decision))),
            href=f"#step-{step.name}",
            kind=step.decision or step.state,
        )
        for step in steps
    ]
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


@_pages.get("/runs/{run}/log/{step}")
def log_page(request: Request, settings: Configured, run: RunId, step: str) -> Response:
    """Show the end of the log of a step."""
    with routes.named_in_path():
        path = runs.find_file(settings.runs_folder, run, f"{step}/{LOG}")
    return _render(
        request, "log", "Runs", f"Log of {step} in {run}", run=run, step=step, path=str(path),
        text=tail(path, _LOG_BYTES), cut=path.stat().st_size > _LOG_BYTES, limit=_LOG_BYTES,
        whole=f"{_root(request)}/api/v1/runs/{run}/files/{quote(step)}/{LOG}",
    )  # fmt: skip


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}…"


@_pages.get("/compare")
def compare_page(
    request: Request,
    settings: Configured,
    run: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Show the differences of two runs."""
    names = [name.strip() for name in run if name.strip()]
    if len(names) > 2:  # noqa: PLR2004
        raise InputError(f"{len(names)} runs are ticked", hint="Go back and tick two.")
    both, differences = [], None
    if len(names) == 2:  # noqa: PLR2004
        found = routes.diff_runs(settings, *names)
        both = [routes.get_run(settings, name).summary for name in names]
        differences = {part: [_difference(part, row) for row in rows] for part, rows in found.items()}
    names = [*names, "", ""][:2]
    return _render(
        request, "compare", "Compare", "Compare two runs", names=names, both=both, differences=differences
    )


def _difference(part: str, row: Difference) -> tuple[str, ...]:
    cells = (row.key, _text(row.first), _text(row.second))
    if part != "metrics":
        return cells
    both = row.first is not None and row.second is not None
    return (*cells, f"{row.second - row.first:+.4g}" if both else "-")


@_pages.get("/cost")
def cost_page(
    request: Request,
    settings: Configured,
    by: Literal["owner", "cost_centre", "pipeline", "model"] = "owner",
    since: str = "",
) -> Response:
    """Show the cost of runs, and what of it was lost."""
    try:
        first = date.fromisoformat(since) if since else start_of_month().date()
    except ValueError:
        raise InputError(f"expected a date, found {since!r:.80}", where="since") from None
    groups = routes.get_cost(settings, by, first)
    return _render(
        request, "cost", "Cost", f"Cost by {by}", groups=groups, names=GROUPS, by=by, since=first.isoformat(),
        reasons=list(sum_waste(group.waste for group in groups)),
    )  # fmt: skip


@_pages.get("/lineage")
def lineage_page(request: Request, settings: Configured, of: str = "") -> Response:
    """Show what a version was made from, and what was made from it."""
    of = of.strip()
    if not of:
        return _render(request, "lineage", "Lineage", "Lineage", of=of, node=None)
    found = routes.get_lineage(settings, of)
    boxes = _nearest(found)
    nodes = [_version_box(_root(request), one) for one in boxes]
    return _render(
        request, "lineage", "Lineage", f"Lineage of {found.version.name}", of=of, node=found.version,
        up=found.made_from, down=found.made_into, most=_ROWS,
        graph=draw_graph(nodes, found.edges, "Lineage, from the source at the top"),
        hidden=len(found.made_from) + len(found.made_into) + 1 - len(boxes),
    )  # fmt: skip


def _nearest(found: VersionLineage) -> list[LineageNode]:
    """Return the version with the nearest ones in both directions, few enough for a graph."""
    chosen = [LineageNode(depth=0, node=found.version)]
    for side in (found.made_from, found.made_into):
        used: Counter[int] = Counter()
        for one in sorted(side, key=lambda near: near.depth):
            if used[one.depth] < _ROW_BOXES and used.total() < _BOXES:
                used[one.depth] += 1
                chosen.append(one)
    return chosen


def _version_box(root: str, one: LineageNode) -> GraphNode:
    node = one.node
    return GraphNode(
        key=node.digest,
        title=node.name.replace("_", " "),
        fact=", ".join(node.labels)
        or f"{node.digest[:8]} {f'by {node.step}' if node.step else 'from outside'}",
        href=f"{root}/lineage?of={quote(node.digest)}",
        kind=node.name if one.depth else f"{node.name} here",
    )


@_pages.get("/models")
def models_page(request: Request, settings: Configured) -> Response:
    """Show the registered models."""
    found = models.list_models(settings) if settings.registry else []
    used = {alias for one in found for alias in one.aliases}
    known = [name for name in (*reversed(AUDITED), CANDIDATE) if name in used]
    return _render(
        request, "models", "Models", "Models", models=found, aliases=[*known, *sorted(used - set(known))],
        configured=bool(settings.registry),
    )  # fmt: skip


@_pages.get("/models/{name}")
def model_page(request: Request, settings: Configured, name: ModelName) -> Response:
    """Show the versions of a model, and the changes of their stages."""
    found = routes.list_versions(settings, name)
    return _render(
        request, "model", "Models", name, name=name, found=[(one, _tags(one)) for one in found],
        **_history(settings, name, ""),
    )  # fmt: skip


def _tags(one: VersionSummary) -> defaultdict[str, str]:
    """Return the tags of a version; empty for one that another tool did not set."""
    return defaultdict(str, one.tags)


def _history(settings: Settings, name: str, version: str) -> dict[str, Any]:
    """Return the changes of stages by the audit, the newest first, or why it cannot be read."""
    try:
        history = read_history(settings.registry_of(name))
    except TrainwrightError as error:
        return {"changes": [], "warning": "", "unread": error.what}
    changes = [one for one in reversed(history.state.events) if not version or version in one.intent.stages]
    return {"changes": changes, "warning": history.warning, "unread": history.unknown}


@_pages.get("/models/{name}/{version}")
def version_page(request: Request, settings: Configured, name: ModelName, version: Version) -> Response:
    """Show a version with its evidence, and a form that asks for another stage."""
    return _version(request, settings, name, version, None)


def _version(
    request: Request, settings: Settings, name: str, version: str, answer: models.PromotionAnswer | None
) -> Response:
    one = routes.get_version(settings, name, version)
    user = request.state.user
    return _render(
        request, "version", "Models", f"{name} version {one.version}", name=name, one=one, tags=_tags(one),
        answer=answer, reasons=list(reasons(answer.verdict)) if answer else [],
        csrf=access_of(request).csrf(user), stages=STAGES[1:],
        metrics=[(key, _text(value)) for key, value in one.metrics.items()],
        **_history(settings, name, one.version),
    )  # fmt: skip


async def _form(request: Request, identity: Reader) -> dict[str, str]:
    """Return the fields of a form of ours; reject one that a foreign page sends."""
    fields = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
    expected = access_of(request).csrf(identity)
    if not hmac.compare_digest(fields.pop("csrf", "").encode(), expected.encode()):
        hint = "Reload the page and send the form again."
        raise PermissionRefused("the form is not from this session", hint=hint)
    return fields


@_pages.post("/models/{name}/{version}")
def promote_page(
    request: Request,
    settings: Configured,
    name: ModelName,
    version: Version,
    form: Annotated[dict[str, str], Depends(_form)],
) -> Response:
    """Ask for another stage as the API does, and show the decision with its reasons."""
    number = routes.get_version(settings, name, version).version
    asked = {key: form.get(key, "") for key in ("to", "by", "reason")}
    asked |= {"version": number, "approver": request.state.user}
    answer = models.promote_version(settings, name, PromotionRequest.check(asked, "form"))
    return _version(request, settings, name, number, answer)


router.include_router(_pages)
