"""Log a run in MLflow: make the log from what the run left, and send it in a process of its own.

The log is written before it is sent and removed afterwards, so nothing is lost when MLflow is away or this
step is killed: the next run in the same folder sends it, or ``trainwright runs upload``.
"""

import fcntl
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.artifacts import RunCost
from trainwright.artifacts.record import SOURCE_PATCH
from trainwright.documents import canonical, flatten
from trainwright.errors import InputError, TrainwrightError, clean, last_record
from trainwright.experiment import RunSettings
from trainwright.lineage import VERSIONS
from trainwright.redaction import redacted
from trainwright.storage import read_bytes
from trainwright.summarize.cost import values_of
from trainwright.summarize.run import (
    Run,
    RunStep,
    decision_of,
    headline,
    outcome,
    registration_of,
    span,
    state_of,
    versions_in,
)
from trainwright.tracking.history import kfp_destination
from trainwright.tracking.run_log import PREFIX, WASTE, RunEntry, RunLog, SentRun, write_log
from trainwright.tracking.server import open_client, persist

DEADLINE_S, RETRY_S = 60.0, 5.0
"""For the process that sends, and for an outage of MLflow: somebody waits for the end of the run."""

_LOCK = ".mlflow-log.lock"
_AGAIN = "The log is kept: the next run sends it, or `trainwright runs upload`."
_STATUS = {"done": "FINISHED", "held": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_STEP_STATUS = {"done": "FINISHED", "cached": "FINISHED", "stopped": "KILLED"}
_EXPERIMENT = "trainwright"


def log_run(
    run: Run,
    section: Mapping[str, Any],
    registry: Mapping[str, Any],
    record: Path,
    cost: RunCost | None = None,
) -> str:
    """Log a run in MLflow; return a line that says where it is, or why it is not. Never raises.

    Args:
        run: The run.
        section: The section ``run``.
        registry: The section ``registry`` with MLflow's address.
        record: Folder of this step's artifact, for the log of a run on a cluster.
        cost: Its cost, if it is known.
    """
    uri = str(registry.get("tracking_uri") or "")
    try:
        settings = RunSettings.parse(section, "parameter section")
        if not (settings.mlflow and uri):
            return ""
        folder = Path(run.root) if run.is_local else record
        make_log(run, settings, uri, folder, cost).write(folder)
        return _send_apart([folder, *_waiting(folder)] if run.is_local else [folder])
    except Exception as error:
        return f"Not logged in MLflow: {clean(getattr(error, 'what', error), 300)}. {_AGAIN}"


def _waiting(folder: Path) -> list[Path]:
    """Return earlier runs beside this one that MLflow has not taken."""
    return [path.parent for path in folder.parent.glob(f"*/{RunLog.FILE}") if path.parent != folder]


def _send_apart(folders: Sequence[Path]) -> str:
    command = [sys.executable, "-m", "trainwright.summarize", str(RETRY_S), *map(str, folders)]
    try:
        done = subprocess.run(command, timeout=DEADLINE_S, capture_output=True, text=True, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"Not logged in MLflow: it did not answer in {DEADLINE_S:g} s. {_AGAIN}"
    sys.stderr.write(done.stderr)
    if done.stdout:  # the line of this run comes first
        return done.stdout.splitlines()[0]
    error = last_record(done.stderr, done.returncode) or {"what": f"exit code {done.returncode}"}
    return f"Not logged in MLflow: {error['what']}. {_AGAIN}"


def send(places: Sequence[str], retry_s: float) -> Iterator[str]:
    """Send logs and remove them; yield a line for each.

    Args:
        places: Folders of logs; or URIs of logs, which are not removed.
        retry_s: Longest outage of MLflow.

    Raises:
        DependencyError: MLflow was away; the rest was not tried.
    """
    for place in places:
        try:
            yield _send(place, retry_s)
        except TrainwrightError as error:
            if error.retryable:
                raise
            yield f"{place} is not logged in MLflow: {error.what}"


def _send(place: str, retry_s: float) -> str:
    if "://" in place:
        return _write(RunLog.parse(read_bytes(place), place), retry_s)[1]
    folder = Path(place)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"{place} is being sent by another process"
        if not (folder / RunLog.FILE).exists():
            return f"{place} was sent by another process"
        sent, line = _write(RunLog.read(folder), retry_s)
        sent.write(folder / SentRun.FILE)
        (folder / RunLog.FILE).unlink()
    return line


def _write(log: RunLog, retry_s: float) -> tuple[SentRun, str]:
    info = persist(lambda: write_log(log, open_client(log.uri)), log.uri, retry_s, hint=_AGAIN).info
    sent = SentRun(key=log.run.key, uri=log.uri, experiment=info.experiment_id, run=info.run_id)
    return sent, f"MLflow run {info.run_id} ({log.uri}) is {log.run.name}"


def make_log(run: Run, settings: RunSettings, uri: str, folder: Path, cost: RunCost | None = None) -> RunLog:
    """Return the log of a run.

    Args:
        run: The run.
        settings: The section ``run``.
        uri: Address of MLflow.
        folder: Folder that keeps the log and the key of a local run.
        cost: Its cost, if it is known.
    """
    destination = kfp_destination()
    key = _key(folder) if run.is_local else run.id
    costs = {step.step: step.cost for step in cost.steps} if cost else {}
    steps = [_step_entry(step, key, costs) for step in run.executed]
    ended = max((entry.ended_ms for entry in steps), default=_ms(datetime.now(UTC)))
    tracking = flatten(run.arguments).get("training.tracking.experiment")
    patch = Path(run.root) / SOURCE_PATCH
    return RunLog(
        uri=destination.uri if destination else uri,
        experiment=str(tracking or _EXPERIMENT),
        joined=destination.run if destination else "",
        run=RunEntry(
            key=key,
            name=f"{run.pipeline} {run.id}" if run.is_local else run.name or run.id,
            status=_STATUS[state_of(run)],
            started_ms=min((entry.started_ms for entry in steps), default=ended),
            ended_ms=ended,
            params={name: text for name, value in flatten(run.arguments).items() if (text := _text(value))},
            metrics=_metrics(run, cost),
            tags=_tags(run, settings, cost),
        ),
        steps=tuple(steps),
        nested=tuple(run.histories),
        files={SOURCE_PATCH: patch.read_text()} if run.is_local and patch.exists() else {},
    )


def _key(folder: Path) -> str:
    """Return the key of a local run; ids of runs are unique on one machine only."""
    try:
        return SentRun.read(folder).key
    except InputError:
        made = SentRun(key=secrets.token_hex(8))
        made.write(folder)
        return made.key


def _step_entry(step: RunStep, key: str, costs: Mapping[str, float]) -> RunEntry:
    record, now = step.record, datetime.now(UTC).timestamp()
    started, ended = (
        (moment.timestamp() for moment in span(record)) if record else (now - (step.seconds or 0), now)
    )
    tags = {
        "step": record.step if record else step.name,
        "state": step.state,
        "image": step.image,
        **_error_tags(step),
    }
    config: dict[str, str] = {}
    if record:
        tags |= {
            "decision": record.decision,
            "headline": record.headline,
            "inputs": canonical(record.inputs),
            "outputs": canonical(record.outputs),
            "environment": record.environment.name,
            "environment_lock": record.environment.lock_sha256,
        }
        config = {name: text for name, value in flatten(record.config).items() if (text := _text(value))}
    return RunEntry(
        key=f"{key}/{step.name}",
        name=step.name,
        status=_STEP_STATUS.get(step.state, "FAILED"),
        started_ms=int(started * 1000),
        ended_ms=int(ended * 1000),
        params=config,
        metrics={"seconds": ended - started, **step.metrics, **_named(costs, step.name)},
        tags=_prefixed(tags),
    )


def _named(costs: Mapping[str, float], step: str) -> dict[str, float]:
    return {"cost": costs[step]} if step in costs else {}


def _metrics(run: Run, cost: RunCost | None) -> dict[str, float]:
    """Return the metrics of the training and of the whole evaluation, time and cost of all steps."""
    found = {name: value for step in run.steps for name, value in step.metrics.items()}
    whole = {name: value for name, value in found.items() if not name.startswith("slice/")}
    costs = (
        {f"{WASTE}{name}": lost for name, lost in cost.waste.items()} | {"cost": cost.cost} if cost else {}
    )
    return whole | {"seconds": run.seconds} | costs


def _tags(run: Run, settings: RunSettings, cost: RunCost | None) -> dict[str, str]:
    commit, made = str(run.arguments.get("commit") or ""), versions_in(run.lineage)
    failed = next((step for step in run.steps if step.state == "failed"), None)
    registered = registration_of(run)
    tags = {
        **values_of(run, settings),
        "run": run.id,
        "state": state_of(run),
        "decision": decision_of(run),
        "headline": headline(run),
        **{f"{name}_digest": made.get(name, "") for name in VERSIONS},
        "registered": registered.headline.partition(",")[0].partition(" (")[0] if registered else "",
        "git_sha": commit,
        "cost": f"{cost.cost:g}" if cost else "",
        "currency": cost.currency if cost else "",
        "prices": cost.prices if cost else "",
        "kfp_url": f"{settings.page.rstrip('/')}/#/runs/details/{run.id}"
        if settings.page and not run.is_local
        else "",
        **(_error_tags(failed) if failed else {}),
    }
    shown = {
        "mlflow.note.content": outcome(run),
        "mlflow.source.name": run.pipeline,
        "mlflow.source.git.commit": commit.partition("-")[0] if commit != "none" else "",
        "mlflow.user": settings.owner,
    }
    return _prefixed(tags) | {name: value for name, value in shown.items() if value}


def _error_tags(step: RunStep) -> dict[str, str]:
    error = step.error
    named = {"error": "error", "error_code": "code", "error_text": "what", "error_hint": "hint"}
    return {tag: clean(error[key]) for tag, key in named.items() if error.get(key)}


def _prefixed(tags: Mapping[str, str]) -> dict[str, str]:
    return {f"{PREFIX}{name}": value for name, value in tags.items() if value}


def _text(value: Any) -> str:
    """Return a value as text; empty for one that is absent."""
    if value is None or value in ("", []):
        return ""
    return redacted(value if isinstance(value, str) else canonical(value))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
