"""Compare runs: group them by settings, pair them by seed, and test each difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.artifacts import Record
from trainwright.documents import canonical
from trainwright.errors import InputError
from trainwright.evaluate.findings import MeasuredMetrics, MetricValue
from trainwright.experiment.evaluation import HIGHER
from trainwright.lineage import ancestors
from trainwright.significance import holm
from trainwright.significance.permutation import RunDifference, paired_test, pairs_required, unpaired_test
from trainwright.verdicts import Verdict

VERDICT_FOLDERS = ("", "verdict", "evaluate/verdict")
"""Paths of the verdict below the folder of a verdict, a step or a run."""

_SEED, _KIND = "training.seed", "network.kind"
_NOT_COMPARED = ("hardware.", "launched_by.", _SEED)
_JUDGING = ("threshold", "thresholds", "averaging")
"""Settings of the evaluation that change the metrics themselves; its limits do not."""

_UPSTREAM = frozenset({"join", "ingest"})
_LOCATIONS = frozenset({"source", "repository", "store", "remember", "hosts", "version", "runner", "mode"})
"""Settings that say where data lies or how it is moved; what it is, its digest says."""


@dataclass(frozen=True)
class ComparedRun:
    """One evaluated training.

    ``settings`` are all but the seed, by dotted name; those of ``upstream`` steps count where the training
    set differs. ``library`` is the digest of the library that trained it.
    """

    name: str
    folder: Path
    seed: int
    settings: Mapping[str, str]
    upstream: Mapping[str, str]
    training_set: str
    measured: MeasuredMetrics = field(repr=False)
    started: str = ""
    library: str = ""

    @cached_property
    def measures(self) -> dict[str, MetricValue]:
        """Its metrics by name."""
        return {entry.name: entry for entry in self.measured.measures}


def read_run(folder: Path) -> ComparedRun:
    """Read a run from its folder, or from that of its evaluation."""
    place = _verdict_folder(folder)
    record = Record.read(place)
    if record.step != "evaluate":
        raise InputError(f"a verdict of {record.step}, not of evaluate", where=str(place))
    chain = list(ancestors([record]))
    train = next((entry for entry in chain if entry.step == "train"), None)
    if train is None:
        raise InputError(
            "its record names no training: settings and seed are unknown",
            where=str(place),
            hint="Compare run folders of trainwright; predictions from elsewhere have no seed.",
        )
    settings = dict(_flatten(train.config))
    upstream = {
        f"{entry.step}.{key}": text
        for entry in chain
        if entry.step in _UPSTREAM
        for key, text in _flatten(entry.config)
        if key.partition(".")[0] not in _LOCATIONS
    }
    return ComparedRun(
        name=folder.resolve().name,
        folder=folder,
        seed=int(settings.get(_SEED, "0")),
        settings={key: value for key, value in settings.items() if not key.startswith(_NOT_COMPARED)}
        | {f"evaluation.{key}": text for key, text in _flatten(record.config) if key in _JUDGING},
        upstream=upstream,
        training_set=train.inputs.get("training_set", ""),
        measured=_read_metrics(place),
        started=record.started,
        library=train.environment.library_sha256,
    )


def _verdict_folder(folder: Path) -> Path:
    for place in VERDICT_FOLDERS:
        if (folder / place / Verdict.FILE).is_file():
            return folder / place
    if not folder.is_dir():
        raise InputError(
            "there is no such folder", where=str(folder), hint="Give folders such as runs/1rqz9p."
        )
    raise InputError(
        f"no {Verdict.FILE} of an evaluation: not in the folder, in its verdict/ or in its evaluate/verdict/",
        where=str(folder),
        hint="Give folders of runs that came as far as evaluate, such as runs/1rqz9p.",
    )


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name every setting by its dotted path; lists stay whole, what is absent has no name."""
    for key, value in sorted(config.items()):
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None and value != {}:
            yield f"{prefix}{key}", value if isinstance(value, str) else canonical(value)


def _read_metrics(place: Path) -> MeasuredMetrics:
    measured, judged = MeasuredMetrics.read(place), Verdict.read(place).judged.get("predictions", "")
    if measured.predictions != judged:
        raise InputError(
            f"{MeasuredMetrics.FILE} is of predictions {measured.predictions[:12]}, "
            f"the verdict of {judged[:12]}",
            where=str(place),
            hint="One of the two was changed or copied here; run evaluate again.",
        )
    return measured


_MOST_SETTINGS, _MOST_CHARACTERS = 4, 60
TRAINING_SET = "training set"


@dataclass(frozen=True)
class ComparisonSide:
    """All runs with the same settings but for the seed; others are compared with side A.

    ``settings`` are those that differ between any two sides. ``left_out`` are runs whose seed a later run of
    the same settings has.
    """

    letter: str
    settings: Mapping[str, str]
    runs: Mapping[int, ComparedRun]
    left_out: tuple[ComparedRun, ...] = ()

    @property
    def title(self) -> str:
        """The settings in which it differs from other sides, without section where the name is clear."""
        last = [name.rpartition(".")[2] for name in self.settings]
        shown = [
            f"{short if last.count(short) == 1 else name} {_shorten(value)}"
            for (name, value), short in zip(self.settings.items(), last, strict=True)
        ]
        more = len(shown) - _MOST_SETTINGS
        text = ", ".join(shown[:_MOST_SETTINGS]) + (f" and {more} more" if more > 0 else "")
        return text or "all settings the same"

    def values(self, metric: str) -> dict[int, float]:
        """Return a metric of every run, by seed."""
        return {seed: run.measures[metric].value for seed, run in self.runs.items()}


def _shorten(value: str) -> str:
    return value if len(value) <= _MOST_CHARACTERS else f"{value[: _MOST_CHARACTERS - 1]}…"


def group_runs(runs: Sequence[ComparedRun]) -> list[ComparisonSide]:
    """Put runs that were evaluated on the same rows into sides, in the order of their first runs."""
    places = [run.folder.resolve() for run in runs]
    if twice := sorted({str(run.folder) for run in runs if places.count(run.folder.resolve()) > 1}):
        raise InputError(f"given twice: {', '.join(twice)}", hint="Name every run once.")
    _require_same_rows(runs)
    settings = [dict(run.settings) for run in runs]
    if len({run.training_set for run in runs}) > 1:
        # The steps before the training count only where their result differs.
        settings = [{**run.settings, **run.upstream, TRAINING_SET: run.training_set[:12]} for run in runs]
    groups: dict[tuple[tuple[str, str], ...], list[ComparedRun]] = {}
    for run, own in zip(runs, settings, strict=True):
        groups.setdefault(tuple(sorted(own.items())), []).append(run)
    differing_names = {name for own in settings for name in own if len({s.get(name) for s in settings}) > 1}
    # The kind of model first: another kind has other settings, among which it would not be seen.
    names = sorted(differing_names, key=lambda name: (name != _KIND, name))
    sides = []
    for index, (own_settings, members) in enumerate(groups.items()):
        latest = {run.seed: run for run in sorted(members, key=lambda run: run.started)}
        left_out = tuple(run for run in members if latest[run.seed] is not run)
        differing = {name: dict(own_settings).get(name, "not set") for name in names}
        sides.append(ComparisonSide(_letter(index), differing, dict(sorted(latest.items())), left_out))
    return sides


def _require_same_rows(runs: Sequence[ComparedRun]) -> None:
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(run.measured.rows_digest, []).append(run.name)
    if len(found) > 1:
        sets = "; ".join(f"{digest[:12]}: {', '.join(names)}" for digest, names in found.items())
        raise InputError(
            f"judged on {len(found)} different sets of rows, whose numbers do not compare: {sets}",
            hint="Compare runs of one data version and one split, or judge them on the same rows.",
        )


def _letter(index: int) -> str:
    """Name sides A to Z, then AA, AB and so on."""
    first, last = divmod(index, 26)
    return (_letter(first - 1) if first else "") + chr(ord("A") + last)


PRINCIPAL = ("auc", "log_loss", "accuracy", "r2", "rmse", "mae", "loss", "perplexity")
"""Metrics that are compared when none are named; every further one costs all others power."""

_MAX_METRICS = 2
_MIN_PAIRS = 2


@dataclass(frozen=True)
class Contrast:
    """One metric of two sides, the second compared with the first.

    ``seeds`` are those of the pairs; empty if the sides are compared unpaired. ``improved`` and ``worsened``
    count pairs, or if unpaired all combinations of runs. ``adjusted_p`` is Holm's among all contrasts.
    """

    metric: str
    better: str
    first: ComparisonSide
    second: ComparisonSide
    seeds: tuple[int, ...]
    difference: RunDifference
    improved: int
    worsened: int
    adjusted_p: float = 1.0

    @property
    def paired(self) -> bool:
        """True if runs were compared seed by seed."""
        return bool(self.seeds)

    @property
    def worse(self) -> bool:
        """True if the second side has the worse mean."""
        value = self.difference.value
        return value < 0 if self.better == HIGHER else value > 0 and bool(self.better)


@dataclass(frozen=True)
class RunComparison:
    """The comparison of runs: each metric of each other side against the first."""

    sides: tuple[ComparisonSide, ...]
    metrics: tuple[str, ...]
    contrasts: tuple[Contrast, ...]
    level: float
    rows: int
    data: str

    @property
    def runs(self) -> list[tuple[ComparisonSide, ComparedRun]]:
        """Every run that counts, with its side."""
        return [(side, run) for side in self.sides for run in side.runs.values()]

    def shown(self, contrast: Contrast) -> bool:
        """Return True if the adjusted p-value is at most the level."""
        return contrast.adjusted_p <= self.level

    def powerless(self, contrast: Contrast) -> bool:
        """Return True if this number of runs cannot show a difference of any size."""
        return contrast.difference.least_p * len(self.contrasts) > self.level

    @property
    def pairs_needed(self) -> int:
        """The fewest pairs of which a difference in every metric could be shown."""
        return pairs_required(self.level, len(self.contrasts))


def compare_runs(folders: Sequence[Path], metrics: Sequence[str] = (), level: float = 0.05) -> RunComparison:
    """Compare runs.

    Args:
        folders: Of runs or of their evaluations, two at least.
        metrics: Names of metrics; absent: the first two of :data:`PRINCIPAL` that all runs have.
        level: Level of the adjusted p-values, in (0, 1).

    Raises:
        InputError: A folder holds no evaluated run, runs were evaluated on different rows, or not every run
            has a metric.
    """
    if len(folders) < 2:  # noqa: PLR2004
        raise InputError(f"a comparison needs two runs, got {len(folders)}", hint="Name more folders.")
    sides = group_runs([read_run(folder) for folder in folders])
    runs = [run for side in sides for run in side.runs.values()]
    names, measured = _chosen(runs, metrics), runs[0].measured
    contrasts = [
        _contrast(runs[0].measures[name], sides[0], second, level) for second in sides[1:] for name in names
    ]
    adjusted = holm([contrast.difference.p for contrast in contrasts])
    contrasts = [replace(entry, adjusted_p=p) for entry, p in zip(contrasts, adjusted, strict=True)]
    return RunComparison(
        tuple(sides), tuple(names), tuple(contrasts), level, measured.rows, measured.rows_digest
    )


def _chosen(runs: Sequence[ComparedRun], metrics: Sequence[str]) -> list[str]:
    shared = [name for name in runs[0].measures if all(name in run.measures for run in runs)]
    if missing := [name for name in metrics if name not in shared]:
        more = f" and {len(shared) - 30} more" if len(shared) > 30 else ""  # noqa: PLR2004
        raise InputError(
            f"not every run has the figures {missing}; all have {shared[:30]}{more}", where="--metric"
        )
    if metrics:
        return list(dict.fromkeys(metrics))
    known = [name for name in PRINCIPAL if name in shared]
    if not known:
        names = ", ".join(run.name for run in runs)
        raise InputError(f"{names} have no figure in common", hint="Name one with --metric.")
    return known[:_MAX_METRICS]


def _contrast(measure: MetricValue, first: ComparisonSide, second: ComparisonSide, level: float) -> Contrast:
    before, after = first.values(measure.name), second.values(measure.name)
    seeds = tuple(sorted(before.keys() & after.keys()))
    if len(seeds) >= _MIN_PAIRS or (seeds and len(before) == len(after) == 1):
        steps = [after[seed] - before[seed] for seed in seeds]
        difference = paired_test(steps, level)
    else:
        seeds = ()
        steps = [new - old for new in after.values() for old in before.values()]
        difference = unpaired_test(list(after.values()), list(before.values()), level)
    sign = {HIGHER: 1, "": 0}.get(measure.better, -1)
    improved, worsened = (sum(side * step > 0 for step in steps) for side in (sign, -sign))
    return Contrast(measure.name, measure.better, first, second, seeds, difference, improved, worsened)
