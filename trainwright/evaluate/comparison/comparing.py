"""Compare sides by their figures: each against the first, paired by seed where seeds agree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainwright.errors import InputError
from trainwright.evaluate.comparison.chance import Difference, enough, paired, unpaired
from trainwright.evaluate.comparison.runs import Run, read_run
from trainwright.evaluate.comparison.sides import Side, group
from trainwright.evaluate.measured import HIGHER, Measure
from trainwright.significance import holm

PRINCIPAL = ("auc", "AUC", "log_loss", "accuracy", "r2", "rmse", "mae", "loss", "perplexity")
"""Figures that are compared when none are named; every further one costs all others power."""

_MOST = 2
_PAIRS = 2


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
    first: Side
    second: Side
    seeds: tuple[int, ...]
    difference: Difference
    adjusted_p: float
    improved: int
    worsened: int

    @property
    def paired(self) -> bool:
        """Whether runs were compared seed by seed."""
        return bool(self.seeds)

    @property
    def worse(self) -> bool:
        """Whether the second side has the worse mean."""
        value = self.difference.value
        return value < 0 if self.better == HIGHER else value > 0 and bool(self.better)


@dataclass(frozen=True)
class Comparison:
    """What a few runs say of their settings.

    Attributes:
        sides: The first is what others are compared with.
        metrics: The figures that are compared, by name.
        contrasts: Each figure of each other side against the first; empty if there is one side only.
        level: What p-values are held to, after Holm.
        rows: Rows that all runs were judged on; 0 if unknown.
        data: What those are.
    """

    sides: tuple[Side, ...]
    metrics: Mapping[str, Measure]
    contrasts: tuple[Contrast, ...]
    level: float
    rows: int
    data: str

    @property
    def runs(self) -> Iterator[tuple[Side, Run]]:
        """Every run that counts, with its side."""
        return ((side, run) for side in self.sides for run in side.runs.values())

    def shown(self, contrast: Contrast) -> bool:
        """Whether the difference is more than chance does at the comparison's level."""
        return contrast.adjusted_p <= self.level

    def powerless(self, contrast: Contrast) -> bool:
        """Whether this many runs could not have shown any difference, however large."""
        return contrast.difference.least_p * len(self.contrasts) > self.level

    @property
    def pairs_needed(self) -> int:
        """The fewest pairs of which a difference in every figure could be shown."""
        return enough(self.level, len(self.contrasts))


def compare(folders: Sequence[Path], metrics: Sequence[str] = (), level: float = 0.05) -> Comparison:
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
    sides = group([read_run(folder) for folder in folders])
    every = [run for side in sides for run in side.runs.values()]
    chosen = {name: every[0].measures[name] for name in _chosen(every, metrics)}
    contrasts = [
        contrast
        for second in sides[1:]
        for measure in chosen.values()
        if (contrast := _contrast(measure, sides[0], second, level))
    ]
    adjusted = holm([contrast.difference.p for contrast in contrasts])
    return Comparison(
        sides=tuple(sides),
        metrics=chosen,
        contrasts=tuple(replace(c, adjusted_p=p) for c, p in zip(contrasts, adjusted, strict=True)),
        level=level,
        rows=every[0].rows,
        data=every[0].data,
    )


def _chosen(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
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
    return known[:_MOST]


def _contrast(measure: Measure, first: Side, second: Side, level: float) -> Contrast:
    before, after = (
        {s: run.measures[measure.name].value for s, run in side.runs.items()} for side in (first, second)
    )
    seeds = tuple(sorted(before.keys() & after.keys()))
    if len(seeds) >= _PAIRS or (seeds and len(before) == len(after) == 1):
        steps = [after[seed] - before[seed] for seed in seeds]
        difference = paired(steps, level)
    else:
        seeds = ()
        steps = [new - old for new in after.values() for old in before.values()]
        difference = unpaired(list(after.values()), list(before.values()), level)
    sign = 1 if measure.better == HIGHER else -1
    improved = sum(sign * step > 0 for step in steps) if measure.better else 0
    worsened = sum(sign * step < 0 for step in steps) if measure.better else 0
    return Contrast(measure.name, measure.better, first, second, seeds, difference, 1.0, improved, worsened)
