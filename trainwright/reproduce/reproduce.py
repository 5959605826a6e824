"""Repeat a recorded run: its library, its data, its steps without a cache; then compare."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts import PinnedSource, Record
from trainwright.authoring.environments import LIBRARY, python
from trainwright.command import run_package, stopped_together
from trainwright.documents import Document, canonical, flatten
from trainwright.errors import ERRORS, DataRefused, InputError, InternalError, ModelRefused
from trainwright.local.run_folder import Task, Tasks, record_of
from trainwright.reproduce.library import Library, library_of
from trainwright.reproduce.recorded_run import RecordedRun, from_evidence, read_metrics

IDENTICAL, EQUAL, DIFFERENT = "identical", "equal within tolerance", "different"

_NOT_COMPARED = frozenset({"configuration", "listing", "registration", "study", "trial"})
"""Outputs that contain locations or times."""

_LOCATIONS = frozenset({"source", "pinned", "files", "repository", "store", "remember", "baseline"}) | {
    *("tracking_uri", "audit", "signing_key", "trust", "author", "page", "retry_s", "commit"),
    *("statistics_store", "protections", "launched_by"),
}
"""Keys of configurations that a reproduction sets itself, and that change no result."""


@dataclass(frozen=True, kw_only=True)
class ComparedStep:
    """One step of both runs.

    Attributes:
        step: Its name.
        verdict: ``identical``, ``equal within tolerance`` or ``different``.
        outputs: Digests that differ, by name: the recorded one and the one of the repetition.
        difference: Numbers that were compared, in words; empty for an identical step.
        reason: Cause of a difference.
    """

    step: str
    verdict: str
    outputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    difference: str = ""
    reason: str = ""


def compare_steps(
    run: RecordedRun,
    tasks: Mapping[str, Task],
    tolerance: float,
    largest: Callable[[Path, Path], float | None],
) -> Iterator[ComparedStep]:
    """Yield the comparison of each recorded step that has a comparable output.

    Args:
        run: The recorded run.
        tasks: Steps of the repetition, by name.
        tolerance: Largest accepted difference of a prediction and of a metric.
        largest: Returns the largest difference of two predictions; None if they are of different rows.
    """
    for name, record in run.records.items():
        if not record.outputs.keys() - _NOT_COMPARED:
            continue
        task = tasks.get(name) or next((one for one in tasks.values() if one.verb == record.step), None)
        repeated = record_of(task.outputs) if task else None
        if task is None or repeated is None:
            state = f"it was {task.state}" if task else "it did not run"
            yield ComparedStep(step=name, verdict=DIFFERENT, reason=f"{state} in the repetition")
            continue
        evaluated = next((one for one in tasks.values() if one.verb == "evaluate"), None)
        numbers = partial(_numbers, run, record.step, task, evaluated, largest)
        yield _compare(name, record, repeated, numbers, tolerance)


def _compare(
    name: str,
    record: Record,
    repeated: Record,
    numbers: Callable[[], tuple[str, float | None]],
    tolerance: float,
) -> ComparedStep:
    outputs = {
        key: (record.outputs.get(key, ""), repeated.outputs.get(key, ""))
        for key in sorted((record.outputs.keys() | repeated.outputs.keys()) - _NOT_COMPARED)
        if record.outputs.get(key) != repeated.outputs.get(key)
    }
    if not outputs and record.decision == repeated.decision:
        return ComparedStep(step=name, verdict=IDENTICAL)
    words, apart = numbers()
    alike = apart is not None and apart <= tolerance and record.decision == repeated.decision
    verdict, reason = (EQUAL if alike else DIFFERENT), "; ".join(_causes(record, repeated))
    return ComparedStep(step=name, verdict=verdict, outputs=outputs, difference=words, reason=reason)


def _numbers(
    run: RecordedRun,
    verb: str,
    task: Task,
    evaluated: Task | None,
    largest: Callable[[Path, Path], float | None],
) -> tuple[str, float | None]:
    """Compare the numbers of a step: in words, and the largest difference, None where there is no tolerance.

    MLflow stores no predictions: there, the metrics of the evaluation decide about the model, too.
    """
    if verb in run.predictions:
        apart = largest(run.predictions[verb], Path(task.outputs["predictions"].uri))
        return "predictions of other rows" if apart is None else f"predictions differ by {apart:.3g}", apart
    if verb in {"train", "evaluate"} and evaluated and "verdict" in evaluated.outputs:
        return _metrics_apart(run.metrics, read_metrics(Path(evaluated.outputs["verdict"].uri)))
    return "", None


def _metrics_apart(expected: Mapping[str, float], found: Mapping[str, float]) -> tuple[str, float | None]:
    if expected.keys() != found.keys() or not expected:
        return f"{len(expected)} metrics, now {len(found)}", None
    name = max(expected, key=lambda one: abs(expected[one] - found[one]))
    apart = abs(expected[name] - found[name])
    return f"metrics differ by {apart:.3g} ({name} {expected[name]:.6g}, now {found[name]:.6g})", apart


def _causes(record: Record, repeated: Record) -> Iterator[str]:
    """Yield what else differs: inputs, configuration, environment; a sentence if nothing does."""
    parts: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "input": (_inputs(record), _inputs(repeated)),
        "configuration": (_settings(record), _settings(repeated)),
        "environment": (asdict(record.environment), asdict(repeated.environment)),
    }
    differs = False
    for part, (expected, found) in parts.items():
        for key in sorted(expected.keys() | found.keys()):
            if canonical(expected.get(key)) != canonical(found.get(key)):
                differs = True
                yield f"{part} {key} was {_short(expected.get(key))}, now {_short(found.get(key))}"
    if not differs:
        yield (
            "inputs, configuration and environment are those of the record: the step is not deterministic on "
            "this hardware, or its record was changed"
        )


def _inputs(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.inputs.items() if not key.startswith("file ")}


def _settings(record: Record) -> dict[str, Any]:
    flat = flatten(record.config)
    return {key: value for key, value in flat.items() if not _LOCATIONS.intersection(key.split("."))}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else canonical(value)
    return text if len(text) <= 40 else f"{text[:12]}…"  # noqa: PLR2004 - a version in full, a digest in short


_COMPARABLE = frozenset({0, DataRefused.code, ModelRefused.code})
"""Exit codes of a run that came to an end, if only to the decision of a gate."""

_REMOVED = (
    *("data.source", "data.store", "data.remember", "validation.statistics_store"),
    *("training.tracking.uri", "training.checkpoints.store", "training.feeding.cache"),
    *("tuning.study", "tuning.storage", "resources.placement", "run"),
    "data.quality.fresh_within_s",  # the age of the source was judged in its time; the copies are new
)
"""Arguments that would write outside of the repetition, resume the run, or send alerts."""


@dataclass(frozen=True, kw_only=True)
class Reproduction(Document):
    """The result of repeating a run.

    Attributes:
        of: The recorded run or version.
        verdict: ``identical``, ``equal within tolerance`` or ``different``.
        reason: The first step that differs, and why.
        run: Folder of the repetition.
        commit: Commit of the library; empty for an installed one.
        library: Digest of its source.
        tolerance: Largest difference of a prediction or metric that counts as equal.
        seconds: Time for the library with its environments, the data, and the steps.
    """

    FILE: ClassVar[str] = "reproduction.json"
    of: str
    verdict: str
    reason: str
    run: str
    commit: str
    library: str
    tolerance: float
    seconds: dict[str, float]
    steps: tuple[ComparedStep, ...]


def read_version(name: str, registry: str, which: str, folder: Path) -> RecordedRun:
    """Read a registered version from MLflow.

    Args:
        name: Name of the registered model.
        registry: Section ``registry`` with it, as JSON.
        which: Number or alias of the version.
        folder: Folder for its evidence.
    """
    folder.mkdir(parents=True)
    found = json.loads(run_package(python("mlflow"), "registry", "evidence", registry, which, str(folder)))
    return from_evidence(f"{name}/{found['version']}", registry, folder / "evidence", found["tags"])


def reproduce(
    run: RecordedRun,
    output: Path,
    *,
    cache: Path,
    roots: Sequence[Path] = (),
    tolerance: float,
    quiet: bool = False,
) -> Reproduction:
    """Repeat a run in a folder of its own, and compare the results step by step.

    Nothing outside is written: neither the registry nor the audit, stores or caches of the run.

    Args:
        run: The recorded run.
        output: Folder for copies of the data, the repetition and ``reproduction.json``.
        cache: Folder of worktrees of the library.
        roots: Folders that may hold local files of the run, beside their recorded place and the library.
        tolerance: Largest difference of a prediction or metric that counts as equal.
        quiet: Write the progress to ``run.log`` instead of the screen.

    Raises:
        InputError: The library or bytes of the data are gone or changed.
        TrainwrightError: A step of the repetition failed.
    """
    began = time.monotonic()
    library = library_of(run, cache)
    prepared = time.monotonic()
    places = [*roots, *filter(None, [library.root, LIBRARY.parent])]
    moved = _restore(run.sources, output / "data", [str(place.resolve()) for place in places])
    arguments = _arguments(run, output, moved)
    if run.production:
        _copy_production(run, output)
    fetched = time.monotonic()
    folder, code = _run(run.pipeline, arguments, library, output, quiet=quiet)
    tasks = {task.step: task for task in Tasks.read(folder).tasks}
    _require_finished(run, folder, tasks, code)
    steps = tuple(compare_steps(run, tasks, tolerance, _largest_difference))
    made = Reproduction(
        of=run.name,
        verdict=_worst(steps),
        reason=_reason(steps),
        run=str(folder),
        commit=library.commit,
        library=run.library[1],
        tolerance=tolerance,
        seconds={
            "library": round(prepared - began, 1),
            "data": round(fetched - prepared, 1),
            "steps": round(time.monotonic() - fetched, 1),
        },
        steps=steps,
    )
    made.write(output)
    return made


def _worst(steps: Sequence[ComparedStep]) -> str:
    found = {step.verdict for step in steps}
    return next((verdict for verdict in (DIFFERENT, EQUAL) if verdict in found), IDENTICAL)


def _reason(steps: Sequence[ComparedStep]) -> str:
    first = next((step for step in steps if step.verdict == DIFFERENT), None)
    return f"different at {first.step}: {first.reason}" if first else ""


def _restore(sources: Mapping[str, PinnedSource], folder: Path, roots: Sequence[str]) -> dict[str, Any]:
    """Copy the pinned bytes, and return where each source is; of features, what moved."""
    folder.mkdir(parents=True)
    moved: dict[str, Any] = {}
    for name, source in sources.items():
        request = folder / f"{name}.json"
        request.write_text(json.dumps(replace(source, roots=tuple(roots)).to_json()))
        # Definitions of features name paths of their own, so the repository is used where it is.
        words = (
            ["locate", str(request)] if name == "features" else ["restore", str(request), str(folder / name)]
        )
        try:
            moved[name] = json.loads(run_package(python("ingest"), "resolve", *words))
        except InputError as error:
            raise InputError(f"{name}: {error.what}", where=error.where, hint=error.hint) from None
    return moved


def _arguments(run: RecordedRun, output: Path, moved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the repetition: those of the run, with what it reads and writes moved."""
    made: dict[str, Any] = json.loads(json.dumps(run.arguments))
    for path in _REMOVED:
        *parents, last = path.split(".")
        section = made
        for name in parents:
            section = section.get(name) or {}
        section.pop(last, None)
    validation, features = (made.setdefault(name, {}) for name in ("validation", "features"))
    made["source"] = moved["source"]
    made["schema"] = moved.get("schema") or (
        str(output / "data" / "schema.pbtxt") if made.get("schema") else ""
    )
    if "baseline" in moved:
        validation["baseline"] = moved["baseline"]
    if "serving" in moved:
        validation["serving_log"]["source"] = moved["serving"]
    if "features" in moved:
        old, new = moved["features"]
        for key in ("repository", "source"):
            features[key] = new + features[key].removeprefix(old) if old else features[key]
    registry = {key: made["registry"][key] for key in ("model", "override") if made["registry"].get(key)}
    made["registry"] = registry | {"tracking_uri": f"sqlite:///{output / 'mlflow.db'}"}
    resources = made.get("resources", {})
    nodes = resources.get("nodes", 1)
    sizes = {key: nodes * resources[key] for key in ("processes", "gpus") if key in resources}
    made["resources"] = resources | sizes | {"launcher": "local", "nodes": 1}
    return made | {"date": run.date}


def _copy_production(run: RecordedRun, output: Path) -> None:
    """Give the registry of the repetition the version that was in production, to score with."""
    target = f"sqlite:///{output / 'mlflow.db'}"
    words = ("registry", "copy", run.registry, run.production, str(output / "production"), target)
    run_package(python("mlflow"), *words)


def _run(
    pipeline: str, arguments: Mapping[str, Any], library: Library, output: Path, *, quiet: bool
) -> tuple[Path, int]:
    """Run the steps, and return the folder of the run and its exit code."""
    runs = output / "runs"
    words = [
        word
        for name, value in arguments.items()
        for word in ("--param", f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    ]
    command, variables = library.call("run", pipeline, "--no-cache", "--runs", str(runs), *words)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((output / "run.log").open("w")) if quiet else None
        process = stack.enter_context(subprocess.Popen(command, env=variables, stdout=log))  # noqa: S603
        with stopped_together(process) as received:
            code = process.wait()
        if received:
            raise KeyboardInterrupt
    made = sorted(runs.glob(f"*/{Tasks.FILE}"))
    if not made:
        kind = ERRORS.get(code, InternalError)
        raise kind("the repetition did not start", where=str(output), hint="The lines above say why.")
    return made[-1].parent, code


def _require_finished(run: RecordedRun, folder: Path, tasks: Mapping[str, Task], code: int) -> None:
    """Raise the error of a step that failed in the repetition, and not in the run."""
    if code not in _COMPARABLE and all(task.state != "failed" for task in tasks.values()):
        kind = ERRORS.get(code, InternalError)
        raise kind("the repetition failed", where=str(folder), hint="The lines above say why.")
    for name, task in tasks.items():
        if task.state == "failed" and name in run.records:
            kind = ERRORS.get(task.error["code"], InternalError)
            raise kind(
                f"{name} failed in the repetition: {task.error['what']}",
                where=task.error["where"] or str(folder),
                hint=task.error["hint"],
            )


def _largest_difference(first: Path, second: Path) -> float | None:
    words = ("evaluate", "difference", str(first), str(second))
    found: float | None = json.loads(run_package(python("tabular"), *words))
    return found
