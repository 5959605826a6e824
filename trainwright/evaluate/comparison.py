"""Compare runs: group them by settings, pair them by seed, and test each difference."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import Record
from trainwright.documents import canonical
from trainwright.errors import InputError
from trainwright.evaluate.findings import HIGHER, LOWER, MeasuredMetrics, MetricValue
from trainwright.significance import holm
from trainwright.significance.permutation import RunDifference, paired_test, pairs_required, unpaired_test
from trainwright.verdicts import Verdict

VERDICT_FOLDERS = ("", "verdict", "evaluate/verdict")
"""Paths of the verdict below the folder of a verdict, a step or a run."""

_SEED = "training.seed"
_NOT_ASKED = ("launched_by.", _SEED)
_JUDGING = ("threshold", "thresholds", "averaging")
"""Settings of the evaluation that change the figures themselves; its limits do not."""

_UPSTREAM = frozenset({"join", "ingest"})
_WHEREABOUTS = frozenset({"source", "repository", "store", "remember", "hosts", "version", "runner", "mode"})
"""Settings that say where data lies or how it is moved; what it is, its digest says."""

_BETTER = {"AUC": HIGHER, "auc": HIGHER, "accuracy": HIGHER, "calibration error": LOWER}


@dataclass(frozen=True)
class ComparedRun:
    """One judged training.

    Attributes:
        name: What it is called in the comparison: the folder's name.
        folder: What was given.
        seed: Of the training.
        settings: Everything that was asked of it but the seed, by dotted name.
        upstream: Settings of the steps that made the training set; they count where that differs.
        training_set: Digest of what it was fitted on.
        data: What it was judged on: equal for equal rows.
        rows: How many rows those are; 0 if unknown.
        measures: Its figures by name.
        started: When it was judged, ISO 8601.
        library: Digest of the library that trained it.
    """

    name: str
    folder: Path
    seed: int
    settings: Mapping[str, str]
    upstream: Mapping[str, str]
    training_set: str
    data: str
    rows: int
    measures: Mapping[str, MetricValue] = field(repr=False)
    started: str = ""
    library: str = ""


def read_run(folder: Path) -> ComparedRun:
    """Read a run from its folder, or from that of its evaluation.

    Raises:
        InputError: There is no verdict of an evaluation, or its record does not lead to a training.
    """
    place = _verdict_folder(folder)
    verdict, record = Verdict.read(place), Record.read(place)
    if record.step != "evaluate":
        raise InputError(f"a verdict of {record.step}, not of evaluate", where=str(place))
    chain = list(_lineage(record))
    train = next((entry for entry in chain if entry.step == "train"), None)
    if train is None:
        raise InputError(
            "its record names no training: settings and seed are unknown",
            where=str(place),
            hint="Compare folders of runs that trainwright made; predictions from elsewhere have no seed.",
        )
    settings = dict(_flatten(train.config))
    measured = _read_metrics(place, verdict)
    return ComparedRun(
        name=folder.resolve().name,
        folder=folder,
        seed=int(settings.get(_SEED, "0")),
        settings={key: value for key, value in settings.items() if not key.startswith(_NOT_ASKED)}
        | {f"evaluation.{key}": text for key, text in _flatten(record.config) if key in _JUDGING},
        upstream=_upstream(chain),
        training_set=train.inputs.get("training_set", ""),
        data=_evaluation_data(verdict, record, measured),
        rows=measured.rows if measured else 0,
        measures={entry.name: entry for entry in (measured.measures if measured else _rule_metrics(verdict))},
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


def _lineage(record: Record) -> Iterator[Record]:
    yield record
    for parent in record.parents:
        yield from _lineage(parent)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name every setting by its dotted path; lists stay whole, what is absent has no name."""
    for key, value in sorted(config.items()):
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None and value != {}:
            yield f"{prefix}{key}", value if isinstance(value, str) else canonical(value)


def _upstream(chain: list[Record]) -> dict[str, str]:
    return {
        f"{record.step}.{key}": text
        for record in chain
        if record.step in _UPSTREAM
        for key, text in _flatten(record.config)
        if key.partition(".")[0] not in _WHEREABOUTS
    }


def _read_metrics(place: Path, verdict: Verdict) -> MeasuredMetrics | None:
    if not (place / MeasuredMetrics.FILE).is_file():
        return None
    measured, judged = MeasuredMetrics.read(place), verdict.judged.get("predictions", "")
    if measured.predictions != judged:
        raise InputError(
            f"{MeasuredMetrics.FILE} is of predictions {measured.predictions[:12]}, "
            f"the verdict of {judged[:12]}",
            where=str(place),
            hint="One of the two was changed or copied here; run evaluate again.",
        )
    return measured


def _rule_metrics(verdict: Verdict) -> Iterator[MetricValue]:
    """Read what a verdict alone tells: the numbers that its rules were about."""
    for rule in verdict.rules:
        better = _BETTER.get(rule.name, LOWER if "gap" in rule.name else "")
        yield MetricValue(name=rule.name, value=rule.value, better=better)


def _evaluation_data(verdict: Verdict, record: Record, measured: MeasuredMetrics | None) -> str:
    if measured:
        return measured.rows_digest
    if not (training_set := verdict.judged.get("predictions.training_set")):
        return f"{verdict.judged.get('predictions', '')} (predictions of unknown rows)"
    return f"{training_set} split {record.config.get('split', '')}"


_NAMED = 4
_LONGEST = 60
TRAINING_SET = "training set"


@dataclass(frozen=True)
class ComparisonSide:
    """All runs that were asked for the same but for the seed.

    Attributes:
        letter: A short name: A is the side of the first run that was given, which others are compared with.
        title: The settings in which it differs from other sides.
        differing: The same, by name: every setting that differs between any two sides.
        runs: By seed, one each.
        left_out: Runs whose seed a later run of the same settings has.
    """

    letter: str
    title: str
    differing: Mapping[str, str]
    runs: Mapping[int, ComparedRun]
    left_out: tuple[ComparedRun, ...] = ()


def group_runs(runs: Sequence[ComparedRun]) -> list[ComparisonSide]:
    """Put runs into sides, in the order in which the sides were first given.

    Raises:
        InputError: Runs were judged on different data, or the same run was given twice.
    """
    _require_once(runs)
    _require_same_data(runs)
    settings = _run_settings(runs)
    groups: dict[tuple[tuple[str, str], ...], list[ComparedRun]] = {}
    for run, asked in zip(runs, settings, strict=True):
        groups.setdefault(tuple(sorted(asked.items())), []).append(run)
    names = sorted({name for asked in settings for name in asked if _differs(name, settings)})
    return [
        _side(_letter(index), {name: dict(asked).get(name, "not set") for name in names}, members)
        for index, (asked, members) in enumerate(groups.items())
    ]


def _require_once(runs: Sequence[ComparedRun]) -> None:
    places = [run.folder.resolve() for run in runs]
    if twice := sorted({str(run.folder) for run in runs if places.count(run.folder.resolve()) > 1}):
        raise InputError(f"given twice: {', '.join(twice)}", hint="Name every run once.")


def _require_same_data(runs: Sequence[ComparedRun]) -> None:
    found: dict[str, list[ComparedRun]] = {}
    for run in runs:
        found.setdefault(run.data, []).append(run)
    if len(found) > 1:
        said = "; ".join(
            f"{_short_digest(data)}: {', '.join(run.name for run in members)}"
            for data, members in found.items()
        )
        raise InputError(
            f"judged on {len(found)} different sets of rows, whose numbers do not compare: {said}",
            hint="Compare runs of one data version and one split, or judge them on the same rows.",
        )


def _short_digest(data: str) -> str:
    digest, _, rest = data.partition(" ")
    return f"{digest[:12] or 'unknown data'} {rest}".strip()


def _run_settings(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Return what each run was asked for; the steps before training count where their result differs."""
    if len({run.training_set for run in runs}) == 1:
        return [dict(run.settings) for run in runs]
    return [{**run.settings, **run.upstream, TRAINING_SET: run.training_set[:12]} for run in runs]


def _differs(name: str, settings: Sequence[Mapping[str, str]]) -> bool:
    return len({asked.get(name) for asked in settings}) > 1


def _letter(index: int) -> str:
    """Name sides A to Z, then AA, AB and so on."""
    first, last = divmod(index, 26)
    return (_letter(first - 1) if first else "") + chr(ord("A") + last)


def _side(letter: str, differing: Mapping[str, str], members: Sequence[ComparedRun]) -> ComparisonSide:
    latest: dict[int, ComparedRun] = {}
    for run in sorted(members, key=lambda run: run.started):
        latest[run.seed] = run
    kept = dict(sorted(latest.items()))
    left_out = tuple(run for run in members if kept[run.seed] is not run)
    return ComparisonSide(letter, _title(differing), differing, kept, left_out)


def _title(differing: Mapping[str, str]) -> str:
    if not differing:
        return "all settings the same"
    shown = [
        f"{_brief(name, differing)} {_cut(value)}"
        for name, value in itertools.islice(differing.items(), _NAMED)
    ]
    more = len(differing) - _NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _brief(name: str, differing: Mapping[str, str]) -> str:
    """Drop the sections of a setting's name where the last part alone is clear."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in differing) == 1 else name


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"


PRINCIPAL = ("auc", "AUC", "log_loss", "accuracy", "r2", "rmse", "mae", "loss", "perplexity")
"""Figures that are compared when none are named; every further one costs all others power."""

_MAX_METRICS = 2
_MIN_PAIRS = 2


@dataclass(frozen=True)
class Contrast:
    """One figure of two sides.

    Attributes:
        metric: The figure's name.
        better: ``higher``, ``lower`` or empty.
        first: The side that is compared with.
        second: The side that is compared.
        seeds: Seeds of the pairs; empty if the sides are compared unpaired.
        difference: Second minus first.
        adjusted_p: The p-value among all contrasts of this comparison (Holm).
        improved: Pairs in which the second side is better; of all its runs against all others if unpaired.
        worsened: Pairs in which it is worse.
    """

    metric: str
    better: str
    first: ComparisonSide
    second: ComparisonSide
    seeds: tuple[int, ...]
    difference: RunDifference
    adjusted_p: float
    improved: int
    worsened: int

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
    """The comparison of runs, side by side.

    Attributes:
        sides: The first is what others are compared with.
        metrics: The figures that are compared, by name.
        contrasts: Each figure of each other side against the first; empty if there is one side only.
        level: What p-values are held to, after Holm.
        rows: Rows that all runs were judged on; 0 if unknown.
        data: What those are.
    """

    sides: tuple[ComparisonSide, ...]
    metrics: Mapping[str, MetricValue]
    contrasts: tuple[Contrast, ...]
    level: float
    rows: int
    data: str

    @property
    def runs(self) -> Iterator[tuple[ComparisonSide, ComparedRun]]:
        """Every run that counts, with its side."""
        return ((side, run) for side in self.sides for run in side.runs.values())

    def shown(self, contrast: Contrast) -> bool:
        """Return True if the adjusted p-value is at most the level."""
        return contrast.adjusted_p <= self.level

    def powerless(self, contrast: Contrast) -> bool:
        """Return True if this number of runs cannot show a difference of any size."""
        return contrast.difference.least_p * len(self.contrasts) > self.level

    @property
    def pairs_needed(self) -> int:
        """The fewest pairs of which a difference in every figure could be shown."""
        return pairs_required(self.level, len(self.contrasts))


def compare_runs(folders: Sequence[Path], metrics: Sequence[str] = (), level: float = 0.05) -> RunComparison:
    """Compare runs.

    Args:
        folders: Of runs or of their evaluations, two at least.
        metrics: Names of figures; absent: the first two of :data:`PRINCIPAL` that all runs have.
        level: What adjusted p-values are held to, in (0, 1).

    Raises:
        InputError: A folder holds no judged run, runs were judged on different data, or no run or not every
            run has a figure.
    """
    if len(folders) < 2:  # noqa: PLR2004
        raise InputError(f"a comparison needs two runs, got {len(folders)}", hint="Name more folders.")
    sides = group_runs([read_run(folder) for folder in folders])
    every = [run for side in sides for run in side.runs.values()]
    chosen = {name: every[0].measures[name] for name in _chosen(every, metrics)}
    contrasts = [
        contrast
        for second in sides[1:]
        for measure in chosen.values()
        if (contrast := _contrast(measure, sides[0], second, level))
    ]
    adjusted = holm([contrast.difference.p for contrast in contrasts])
    return RunComparison(
        sides=tuple(sides),
        metrics=chosen,
        contrasts=tuple(replace(c, adjusted_p=p) for c, p in zip(contrasts, adjusted, strict=True)),
        level=level,
        rows=every[0].rows,
        data=every[0].data,
    )


def _chosen(runs: Sequence[ComparedRun], metrics: Sequence[str]) -> list[str]:
    shared = [name for name in runs[0].measures if all(name in run.measures for run in runs)]
    if missing := [name for name in metrics if name not in shared]:
        raise InputError(
            f"not every run has the figures {missing}; all have {shared[:30]}"
            + (f" and {len(shared) - 30} more" if len(shared) > 30 else ""),  # noqa: PLR2004
            where="--metric",
        )
    if metrics:
        return list(dict.fromkeys(metrics))
    known = [name for name in PRINCIPAL if name in shared] or [
        n for n in shared if runs[0].measures[n].better
    ]
    if not known:
        names = ", ".join(run.name for run in runs)
        raise InputError(f"{names} have no figure in common", hint="Run evaluate again with this library.")
    return known[:_MAX_METRICS]


def _contrast(measure: MetricValue, first: ComparisonSide, second: ComparisonSide, level: float) -> Contrast:
    before, after = (
        {s: run.measures[measure.name].value for s, run in side.runs.items()} for side in (first, second)
    )
    seeds = tuple(sorted(before.keys() & after.keys()))
    if len(seeds) >= _MIN_PAIRS or (seeds and len(before) == len(after) == 1):
        steps = [after[seed] - before[seed] for seed in seeds]
        difference = paired_test(steps, level)
    else:
        seeds = ()
        steps = [new - old for new in after.values() for old in before.values()]
        difference = unpaired_test(list(after.values()), list(before.values()), level)
    sign = 1 if measure.better == HIGHER else -1
    improved = sum(sign * step > 0 for step in steps) if measure.better else 0
    worsened = sum(sign * step < 0 for step in steps) if measure.better else 0
    return Contrast(measure.name, measure.better, first, second, seeds, difference, 1.0, improved, worsened)
