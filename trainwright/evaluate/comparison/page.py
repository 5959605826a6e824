"""The page of a comparison: what it shows first, then each figure, run by run, and what it rests on."""

from trainwright.errors import InternalError
from trainwright.evaluate.comparison import wording
from trainwright.evaluate.comparison.comparing import Comparison, Contrast
from trainwright.evaluate.comparison.lines import spread
from trainwright.report import charts
from trainwright.report.page import Block, Figure, Page, Section, Table, Text

_LONGEST = 70
MAX_DRAWN = 40
"""Figures of a page that are drawn; all are in its tables."""


def draw_comparison(comparison: Comparison) -> Page:
    """Draw the page of a comparison."""
    remarks = [Text(text) for text in wording.remarks(comparison)]
    sections = [
        Section("Differences", [*_differences(comparison), *remarks]),
        Section("Sides", [_sides(comparison)], intro="Only settings in which any two of them differ."),
        Section("Seed by seed", _by_seed(comparison)),
        Section("Runs", [_runs(comparison)]),
        Section("How it was compared", [Text(text) for text in _METHOD]),
    ]
    return Page(
        title=_title(comparison),
        subtitle=f"{wording.sentence(comparison)}.",
        facts=_facts(comparison),
        sections=[section for section in sections if section.blocks],
    )


def _title(comparison: Comparison) -> str:
    match comparison.sides:
        case (only,):
            return f"{len(only.runs)} runs of the same settings"
        case (first, second) if len(first.title) + len(second.title) < _LONGEST:
            return f"{second.title} against {first.title}"
        case (first, *others):
            return f"{', '.join(side.letter for side in others)} against {first.letter}"
    raise InternalError("a comparison without a side")


def _facts(comparison: Comparison) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [(side.letter, side.title) for side in comparison.sides[:6]]
    pairs = {len(contrast.seeds) for contrast in comparison.contrasts if contrast.paired}
    if pairs:
        facts.append(("Pairs", " and ".join(map(str, sorted(pairs)))))
    digest, _, rest = comparison.data.partition(" ")
    facts.append(("Judged rows", f"{comparison.rows:,}" if comparison.rows else "not known"))
    facts.append(("Evaluation data", f"{digest[:12]} {rest}".strip()))
    return facts


def _differences(comparison: Comparison) -> list[Block]:
    if not comparison.contrasts:
        return []
    figures = [
        Figure(
            charts.intervals(
                [_row(contrast, comparison) for contrast in found],
                limit=0.0,
                limit_name="no difference",
                axis=f"difference in {metric}",
            ),
            f"{metric}: {_better(found[0])}. The interval holds what the test does not refuse.",
        )
        for metric in list(comparison.metrics)[:MAX_DRAWN]
        if (found := [contrast for contrast in comparison.contrasts if contrast.metric == metric])
    ]
    return [*figures, _table(comparison)]


def _better(contrast: Contrast) -> str:
    return f"{contrast.better} is better" if contrast.better else "neither direction is better"


def _row(contrast: Contrast, comparison: Comparison) -> charts.Interval:
    found = contrast.difference
    name = f"{contrast.second.letter} - {contrast.first.letter}"
    note = f"p {wording.p_value(contrast.adjusted_p)}"
    flagged = comparison.shown(contrast) and contrast.worse
    return charts.Interval(name, found.value, found.low, found.high, note, flagged)


def _table(comparison: Comparison) -> Table:
    header = ["figure", "sides", "difference", "interval", "deviations", "p", "p, Holm", "better in", "shown"]
    rows = [
        [
            contrast.metric,
            f"{contrast.second.letter} - {contrast.first.letter}",
            wording.signed(contrast.difference.value),
            wording.interval(contrast),
            _deviations(contrast.difference.standardised),
            wording.p_value(contrast.difference.p),
            wording.p_value(contrast.adjusted_p),
            wording.wins(contrast),
            "yes" if comparison.shown(contrast) else "no",
        ]
        for contrast in comparison.contrasts
    ]
    flagged = [
        index
        for index, contrast in enumerate(comparison.contrasts)
        if contrast.worse and comparison.shown(contrast)
    ]
    return Table(header, rows, numeric=(2, 3, 4, 5, 6), flagged=flagged)


def _deviations(standardised: float) -> str:
    return f"{standardised:+.2f}" if abs(standardised) < 1000 else "-"  # noqa: PLR2004


def _sides(comparison: Comparison) -> Table:
    names = list(comparison.sides[0].differing)
    metrics = list(comparison.metrics)
    header = [
        "side",
        *names,
        "seeds",
        *(f"{name}, mean" for name in metrics),
        *(f"{n}, spread" for n in metrics),
    ]
    rows = []
    for side in comparison.sides:
        found = [spread(side, name) for name in metrics]
        means = [wording.size(mean) for mean, _ in found]
        spreads = ["-" if deviation is None else wording.size(deviation) for _, deviation in found]
        settings = [side.differing[name] for name in names]
        rows.append([side.letter, *settings, wording.seeds(list(side.runs)), *means, *spreads])
    first = len(names) + 2
    return Table(header, rows, numeric=range(first, first + 2 * len(metrics)))


def _by_seed(comparison: Comparison) -> list[Block]:
    drawn = list(comparison.metrics)[:MAX_DRAWN]
    return [
        _seeds(comparison, metric) for metric in drawn if any(len(side.runs) > 1 for side in comparison.sides)
    ]


def _seeds(comparison: Comparison, metric: str) -> Figure:
    series = {
        side.letter: (
            [float(seed) for seed in side.runs],
            [run.measures[metric].value for run in side.runs.values()],
        )
        for side in comparison.sides
    }
    svg = charts.lines(series, x_label="seed", y_label=metric, dots=True, from_zero=False)
    return Figure(
        svg, f"{metric} of every run. Lines that keep their distance differ by more than their seeds."
    )


def _runs(comparison: Comparison) -> Table:
    metrics = list(comparison.metrics)
    rows = [
        [run.name, side.letter, run.seed, *(wording.size(run.measures[name].value) for name in metrics)]
        for side, run in comparison.runs
    ]
    return Table(["run", "side", "seed", *metrics], rows, numeric=range(2, 3 + len(metrics)))


_METHOD = (
    "Pairs: two runs of one seed begin with the same weights and see rows in the same order, so much of what "
    "chance does to one it does to the other, and their difference varies less than they do.",
    "Test: the exact sign-flip test on the mean of the differences (Fisher 1935), two-sided. It takes for "
    "granted that without a difference each sign is as likely as the other, and nothing else. Of n pairs the "
    "smallest p-value is 2 / 2^n, however large the difference is. Unpaired sides: the exact permutation "
    "test on the difference of means.",
    "Interval: the differences that the same test does not refuse (Hartigan, JASA 1969). With fewer than 6 "
    "pairs 95 % cannot be reached; then the confidence that can is written beside it.",
    "Several figures or sides: p-values are adjusted so that any false alarm at all stays as rare as one "
    "(Holm 1979). Each further figure costs the others power.",
    "What varies within a side is the seed alone: all runs are judged on the same rows. Whether a difference "
    "holds on other rows is for the gate of evaluate to say, not for this page.",
)
