"""Compare the steps of a repeated run with those of the recorded one, by the digests of their outputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainwright.artifacts import Record
from trainwright.documents import canonical, flatten
from trainwright.local.run_folder import Task, record_of
from trainwright.reproduce.recorded_run import RecordedRun, read_metrics

TOLERANCE = 1e-3
"""Largest difference of a prediction and of a metric that counts as equal."""

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
