"""Find runs on this machine: list and search them, compare two, and trace what was made from what.

Each run's folder holds a summary of about two kilobytes, so that ten thousand runs are listed in a second.
There is no index besides: a run that is deleted or copied is found where it is.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from trainwright.artifacts.cost import RunCost, Spending
from trainwright.documents import Document, canonical, flatten, read_json
from trainwright.errors import InputError
from trainwright.lineage import VERSIONS, Derivation, derivation_of
from trainwright.local.run_folder import Request, Task, Tasks, is_held, record_of

_MAIN_METRICS = ("auc", "accuracy", "rmse", "perplexity")
_SHORT = 6


@dataclass(frozen=True, kw_only=True)
class RunSummary(Document):
    """A run in short.

    Attributes:
        state: ``running``, ``done``, ``held`` by a gate, ``failed`` or ``cancelled``; ``killed`` if its
            process ended without a word.
        seconds: Time of its steps together; a resumed run counts those of all its starts.
        headline: The result in one line: of a failed run its error, of a held one the gate's decision.
        registered: The model and its version, such as ``flight-delay/3``; empty if it is not registered.
        metrics: Metrics of the whole evaluation by name, without those of slices.
        derivations: What each step made from what.
        cost: In ``currency``; None without prices.
        currency: That of the price table.
        waste: Lost parts of the cost by reason.
    """

    FILE: ClassVar[str] = "summary.json"
    run: str
    pipeline: str
    created: str
    state: str
    seconds: float = 0.0
    headline: str = ""
    registered: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    derivations: tuple[Derivation, ...] = ()
    cost: float | None = None
    currency: str = ""
    waste: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, tasks: Tasks) -> "RunSummary":
        """Summarize a run from its request and its steps."""
        finished = {task.verb: task for task in tasks.tasks if task.finished}
        registered, configured = finished.get("register"), finished.get("configure")
        settings = configured.parameters if configured else request.arguments
        model = str(settings.get("registry", {}).get("model", ""))
        return cls(
            run=request.run,
            pipeline=request.pipeline,
            created=request.created,
            state=tasks.state,
            seconds=round(sum(task.seconds for task in tasks.tasks), 3),
            headline=_headline(tasks),
            registered=f"{model}/{registered.parameters.get('Output', '')}" if registered else "",
            metrics=_metrics(finished.get("evaluate")),
            derivations=tuple(_derivations(tasks.tasks)),
            **_cost(tasks.tasks),
        )

    @property
    def price(self) -> str:
        """Cost with its currency; empty without prices."""
        return "" if self.cost is None else f"{self.cost:,.4g} {self.currency}"

    def version(self, name: str) -> str:
        """Return the digest of one of :data:`VERSIONS`; empty if the run did not make it."""
        return next((made.outputs[name] for made in self.derivations if name in made.outputs), "")

    @property
    def main_metric(self) -> str:
        """The metric that a list shows, such as ``auc 0.711``."""
        name = next((name for name in _MAIN_METRICS if name in self.metrics), "")
        return f"{name} {self.metrics[name]:.4g}" if name else ""


def _headline(tasks: Tasks) -> str:
    """Return the line of the step that decided how the run ended."""
    for task in tasks.tasks:
        if task.state == "failed":
            return f"{task.step}: {task.error.get('what', task.headline)}".splitlines()[0]
    judged = [task for task in tasks.tasks if task.decision]
    if tasks.state == "held":
        judged = [task for task in judged if task.decision != "PASS"]
    if not judged:
        return ""
    decision = judged[-1].decision
    return f"{decision} {judged[-1].headline.removeprefix(f'{decision}: ')}"


def _metrics(evaluated: Task | None) -> dict[str, float]:
    output = evaluated.outputs.get("metrics") if evaluated else None
    known = output.metadata if output else {}
    return {name: float(value) for name, value in known.items() if isinstance(value, int | float)}


def _cost(tasks: Iterable[Task]) -> dict[str, Any]:
    """Return the fields of the summary that the exit handler's document of the cost has."""
    for task in tasks:
        for output in task.outputs.values():
            path = Path(output.uri) / RunCost.FILE
            if task.verb == "summarize" and path.is_file():
                with contextlib.suppress(InputError):
                    made = RunCost.read(path.parent)
                    return {"cost": made.cost, "currency": made.currency, "waste": made.waste}
    return {}


def _derivations(tasks: Iterable[Task]) -> Iterator[Derivation]:
    for task in tasks:
        record = record_of(task.outputs) if task.finished else None
        if record and (made := derivation_of(record, task.step)):
            yield made


def read_run(folder: Path) -> RunSummary:
    """Read the summary of a run; of one that has not ended, make it from the documents of its steps.

    Raises:
        InputError: The folder holds no run, or a document of it cannot be read.
    """
    path = folder / RunSummary.FILE
    with contextlib.suppress(FileNotFoundError):
        return _load(path)
    request = Request.read(folder)
    tasks = Tasks(run=request.run, state="running", tasks=())
    if (folder / Tasks.FILE).exists():
        tasks = Tasks.read(folder)
    if tasks.state == "running" and not is_held(folder):
        tasks = replace(tasks, state="killed")
    return RunSummary.of(request, tasks)


def _load(path: Path) -> RunSummary:
    """Read a summary quickly: its runner wrote it, so only one that does not fit is validated, to say why."""
    try:
        data = json.loads(path.read_bytes())
        if data.pop("schema_version") == RunSummary.SCHEMA_VERSION:
            derivations = tuple(Derivation(**one) for one in data.pop("derivations"))
            return RunSummary(**data, derivations=derivations)
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        pass
    return RunSummary.parse(path, str(path))


def count_runs(runs: Path) -> int:
    """Count the runs below a folder."""
    return sum(1 for _ in runs.glob(f"*/{Request.FILE}"))


def read_runs(runs: Path) -> Iterator[RunSummary | InputError]:
    """Yield the runs below a folder, the newest first; of one that cannot be read, the error."""
    for path in sorted(runs.glob(f"*/{Request.FILE}"), reverse=True):  # ids sort by time
        try:
            yield read_run(path.parent)
        except InputError as error:
            yield error


def condition(text: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE``, a condition on an argument, into its key and value.

    Raises:
        InputError: The text has no ``=``.
    """
    key, separator, value = text.partition("=")
    if not separator:
        raise InputError(f"{text!r} is not KEY=VALUE", where="where", hint="Such as training.epochs=3.")
    try:
        return key, read_json(value)
    except ValueError:
        return key, value


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs to list; empty values match all.

    Attributes:
        pipeline: Name of the pipeline.
        state: State of the run.
        digest: Beginning of a digest that the run read or made: data, model, source.
        arguments: Values by key, such as ``training.learning_rate``; the key's default does not match.
    """

    pipeline: str = ""
    state: str = ""
    digest: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, runs: Path, one: RunSummary) -> bool:
        """Tell whether a run fulfils all conditions."""
        return self.matches_summary(one) and (
            not self.arguments or self.has_arguments(read_arguments(runs / one.run))
        )

    def matches_summary(self, one: RunSummary) -> bool:
        """Tell whether a run fulfils the conditions that are not about its arguments."""
        return (
            self.pipeline in {"", one.pipeline}
            and self.state in {"", one.state}
            and (not self.digest or any(digest.startswith(self.digest) for digest in _digests(one)))
        )

    def has_arguments(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether the arguments of a run, by dotted keys, have all values."""
        missing = object()
        return all(arguments.get(key, missing) == value for key, value in self.arguments.items())


def spending_of(one: RunSummary, arguments: Mapping[str, Any]) -> Spending:
    """Return what a run spent, with the arguments that name whose it is."""
    model = arguments.get("model_name") or arguments.get("registry.model") or ""
    values = {name: str(arguments.get(f"run.{name}", "")) for name in ("owner", "cost_centre")}
    values |= {"pipeline": one.pipeline, "model": str(model)}
    return Spending(run=one.run, values=values, currency=one.currency, cost=one.cost or 0.0, waste=one.waste)


def read_arguments(folder: Path) -> dict[str, Any]:
    """Return the arguments of a run by dotted keys; its runner wrote them, so they are not validated."""
    return flatten(json.loads((folder / Request.FILE).read_bytes())["arguments"])


def _digests(one: RunSummary) -> Iterator[str]:
    for made in one.derivations:
        yield from made.inputs.values()
        yield from made.outputs.values()


@dataclass(frozen=True)
class Difference:
    """A key with its value in each of two runs; None where a run lacks it."""

    key: str
    first: Any
    second: Any


def compare_runs(
    first: RunSummary, second: RunSummary, arguments: Sequence[Mapping[str, Any]]
) -> dict[str, list[Difference]]:
    """Return the differences of two runs: their ``arguments``, by dotted keys, versions and metrics."""
    versions = [{name: one.version(name)[:12] for name in VERSIONS} for one in (first, second)]
    return {
        "arguments": _differences(*arguments),
        "versions": _differences(*versions),
        "metrics": _differences(first.metrics, second.metrics),
    }


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    found = [Difference(key, first.get(key), second.get(key)) for key in sorted(first.keys() | second.keys())]
    return [one for one in found if canonical(one.first) != canonical(one.second)]


@dataclass(frozen=True)
class Node:
    """A version in a lineage.

    Attributes:
        digest: Its digest.
        name: What it is, such as ``model``.
        step: The step that made it; empty for a source from outside.
        runs: The runs that made it, the newest first.
        labels: Registered versions of a model, such as ``flight-delay/3``.
    """

    digest: str
    name: str
    step: str
    runs: tuple[str, ...]
    labels: tuple[str, ...]


class Lineage:
    """All derivations of some runs, as a graph to walk in both directions."""

    def __init__(self, runs: Iterable[RunSummary]) -> None:
        self._names: dict[str, str] = {}
        self._steps: dict[str, str] = {}
        self._runs: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._labels: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._parents: defaultdict[str, set[str]] = defaultdict(set)
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        for one in runs:
            for made in one.derivations:
                self._add(one, made)
            if one.registered and (model := one.version("model")):
                self._labels[model][one.registered] = None

    def _add(self, one: RunSummary, made: Derivation) -> None:
        for name, digest in made.inputs.items():
            self._names.setdefault(digest, name)
        for name, digest in made.outputs.items():
            self._names[digest], self._steps[digest] = name, made.step
            self._runs[digest][one.run] = None
            for source in made.inputs.values():
                self._parents[digest].add(source)
                self._children[source].add(digest)

    def find(self, start: str) -> str:
        """Return the digest that begins so, or that a registered version such as ``flight-delay/3`` has.

        Raises:
            InputError: There is none, or there are several.
        """
        labelled = [digest for digest, labels in self._labels.items() if start in labels]
        found = labelled or [digest for digest in self._names if digest.startswith(start)]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(f"{self._names[digest]} {digest[:12]}" for digest in found[:_SHORT])
        if found:
            raise InputError(
                f"{start!r} is the beginning of {len(found)} versions: {listed}", hint="Name more digits."
            )
        raise InputError(
            f"no run here read or made {start!r}",
            hint="Name a run, a registered version such as flight-delay/3, or the beginning of a digest: "
            "trainwright runs list.",
        )

    def node(self, digest: str) -> Node:
        """Describe one version."""
        return Node(
            digest,
            self._names[digest],
            self._steps.get(digest, ""),
            tuple(self._runs[digest]),
            tuple(self._labels[digest]),
        )

    def parents(self, digest: str) -> frozenset[str]:
        """Return the digests that a version was directly made from."""
        return frozenset(self._parents.get(digest, ()))

    def walk(self, digest: str, *, up: bool) -> Iterator[tuple[int, Node]]:
        """Yield what a version was made from, or with ``up`` False what was made from it, with the depth.

        Each version comes once, at the first place where a walk in depth meets it.
        """
        edges, seen = self._parents if up else self._children, {digest}

        def next_to(one: str, depth: int) -> list[tuple[int, str]]:
            near = sorted(edges.get(one, ()), key=lambda other: (self._names[other], other), reverse=True)
            return [(depth, other) for other in near]

        waiting = next_to(digest, 1)
        while waiting:
            depth, one = waiting.pop()
            if one not in seen:
                seen.add(one)
                yield depth, self.node(one)
                waiting += next_to(one, depth + 1)
