"""Report a comparison of runs: terminal table, JSON and page."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from trainwright.errors import InternalError
from trainwright.evaluate.comparison import ComparisonSide, Contrast, RunComparison
from trainwright.report import charts
from trainwright.report.page import Block, Figure, Paragraph, ReportPage, ReportSection, Table

NOTHING = "not defined"


def headline(comparison: RunComparison) -> str:
    """Say in one sentence what the runs show."""
    if not comparison.contrasts:
        return "All runs have the same settings: their spread is what the seed alone does."
    found = [contrast for contrast in comparison.contrasts if comparison.shown(contrast)]
    if found:
        return "; ".join(_difference_text(contrast) for contrast in found)
    return f"No difference is shown: {_closest(comparison)}"


def _difference_text(contrast: Contrast) -> str:
    verb = "different from" if not contrast.better else "worse than" if contrast.worse else "better than"
    return (
        f"{contrast.second.letter} is {verb} {contrast.first.letter} in {contrast.metric} by "
        f"{format_number(abs(contrast.difference.value))} (p {format_p(contrast.adjusted_p)})"
    )


def _closest(comparison: RunComparison) -> str:
    """Name the contrast that is least likely to be chance."""
    best = min(comparison.contrasts, key=lambda contrast: contrast.adjusted_p)
    return (
        f"the clearest is {best.metric} of {best.second.letter} against {best.first.letter}, "
        f"{format_signed(best.difference.value)} with p {format_p(best.adjusted_p)}"
    )


def remarks(comparison: RunComparison) -> Iterator[str]:
    """Say what the numbers rest on and what they cannot tell."""
    yield from _power(comparison)
    for contrast in _by_side(comparison.contrasts):
        yield from _pairing(contrast)
    for side in comparison.sides:
        if side.left_out:
            names = ", ".join(run.name for run in side.left_out)
            yield f"{side.letter}: {names} left out, because a later run has the same settings and seed."
    builds = {run.library for _, run in comparison.runs if run.library}
    if len(builds) > 1:
        yield (
            f"These runs were trained by {len(builds)} versions of the library's source; a difference may be "
            "the code's."
        )


def _power(comparison: RunComparison) -> Iterator[str]:
    tests, level = len(comparison.contrasts), comparison.level
    for contrast in _by_side(comparison.contrasts):
        if not comparison.powerless(contrast):
            continue
        least = contrast.difference.least_p
        many = "" if tests == 1 else f", {format_p(min(1, least * tests))} among {tests} comparisons"
        yield (
            f"{_sizes(contrast)} cannot show a difference at {100 * level:g} %: the smallest possible p is "
            f"{format_p(least)}{many}; {comparison.pairs_needed} pairs could."
        )


def _sizes(contrast: Contrast) -> str:
    sides = f"{contrast.second.letter} against {contrast.first.letter}"
    if contrast.paired:
        return f"{sides}: {len(contrast.seeds)} {_plural('pair', contrast.seeds)}"
    return f"{sides}: {len(contrast.second.runs)} against {len(contrast.first.runs)} runs"


def _plural(word: str, entries: Sequence[object]) -> str:
    return word if len(entries) == 1 else f"{word}s"


def _pairing(contrast: Contrast) -> Iterator[str]:
    first, second = contrast.first, contrast.second
    if not contrast.paired:
        yield (
            f"{second.letter} and {first.letter} share too few seeds to be paired, so they are compared "
            "unpaired, which takes more runs to show the same difference: train both with the same seeds."
        )
        return
    alone = sorted((first.runs.keys() | second.runs.keys()) - set(contrast.seeds))
    if alone:
        listed = ", ".join(map(str, alone))
        yield f"Seeds of one side only take no part in {second.letter} against {first.letter}: {listed}."


def _by_side(contrasts: Sequence[Contrast]) -> Iterator[Contrast]:
    """Return one contrast a side: pairs and power are the same for all its figures."""
    seen: set[str] = set()
    for contrast in contrasts:
        if contrast.second.letter not in seen:
            seen.add(contrast.second.letter)
            yield contrast


def side_heading(side: ComparisonSide) -> str:
    """Name a side with its runs: ``A  learning_rate 0.001  (6 runs, seeds 0 to 5)``."""
    count = len(side.runs)
    plural = "run" if count == 1 else "runs"
    return f"{side.letter}  {side.title}  ({count} {plural}, {format_seeds(list(side.runs))})"


def format_seeds(found: Sequence[int]) -> str:
    """Write seeds briefly: ``seed 3``, ``seeds 0 to 5``, ``seeds 0, 2, 7``."""
    if len(found) == 1:
        return f"seed {found[0]}"
    even = list(found) == list(range(found[0], found[0] + len(found)))
    if even and len(found) > 2:  # noqa: PLR2004
        return f"seeds {found[0]} to {found[-1]}"
    return f"seeds {', '.join(map(str, found))}"


def format_interval(contrast: Contrast) -> str:
    """Write the interval of a difference, with its confidence where it is not 95 %."""
    found = contrast.difference
    if not found.confidence:
        return "none of one pair" if contrast.paired else "none"
    usual = 0.95 <= found.confidence < 0.955  # noqa: PLR2004
    level = "" if usual else f" at {_confidence(found.confidence)}"
    return f"[{format_signed(found.low)}, {format_signed(found.high)}]{level}"


def _confidence(confidence: float) -> str:
    return f"{100 * confidence:.3g} %"


def format_wins(contrast: Contrast) -> str:
    """Say in how many pairs the second side was better."""
    if not contrast.better:
        return "-"
    of = len(contrast.seeds) or len(contrast.first.runs) * len(contrast.second.runs)
    return f"{contrast.improved} of {of}"


def format_signed(value: float) -> str:
    """Write a difference with its sign and four digits that count."""
    return f"{'+' if value >= 0 else '-'}{format_number(abs(value))}"


def format_number(value: float) -> str:
    """Write a figure with four digits that count, or four decimals where it is below 1."""
    return f"{value:.4f}" if 1e-4 <= value < 1 or not value else f"{value:.4g}"  # noqa: PLR2004


def format_p(p: float) -> str:
    """Write a probability with three digits that count."""
    return "< 0.0001" if p < 1e-4 else f"{p:.3g}"  # noqa: PLR2004


_RIGHT_ALIGNED = frozenset({1, 3, 4})


def comparison_lines(comparison: RunComparison) -> Iterator[str]:
    """Write a comparison as lines of text."""
    count = sum(len(side.runs) for side in comparison.sides)
    rows = f", {comparison.rows:,} rows" if comparison.rows else ""
    yield f"compare   {count} runs on the same evaluation data{rows}"
    yield ""
    for side in comparison.sides:
        yield f"  {side_heading(side)}"
        yield from (f"       {line}" for line in _side_lines(side, list(comparison.metrics)))
    yield ""
    if comparison.contrasts:
        yield from _text_table(comparison)
        yield ""
    yield f"{headline(comparison)}."
    yield from remarks(comparison)


def _side_lines(side: ComparisonSide, metrics: Sequence[str]) -> Iterator[str]:
    """Say of each figure what the runs of one side reached."""
    for name in metrics:
        mean, deviation = mean_and_deviation(side, name)
        beside = "" if deviation is None else f"   deviation between seeds {format_number(deviation)}"
        yield f"{name} {format_number(mean)}{beside}"


def mean_and_deviation(side: ComparisonSide, metric: str) -> tuple[float, float | None]:
    """Return mean and standard deviation of a figure over the runs of a side; None of a single run."""
    values = [run.measures[metric].value for run in side.runs.values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _text_table(comparison: RunComparison) -> Iterator[str]:
    header = ["figure", "difference", "interval", "p", "p, Holm", "better in", "shown"]
    rows = [
        [
            f"{contrast.metric}, {contrast.second.letter} - {contrast.first.letter}",
            format_signed(contrast.difference.value),
            format_interval(contrast),
            format_p(contrast.difference.p),
            format_p(contrast.adjusted_p),
            format_wins(contrast),
            "yes" if comparison.shown(contrast) else "no",
        ]
        for contrast in comparison.contrasts
    ]
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if index in _RIGHT_ALIGNED else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def comparison_json(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as plain JSON data; what is not finite is absent."""
    return {
        "evaluation_data": comparison.data,
        "rows": comparison.rows,
        "level": comparison.level,
        "sides": [_side_json(side, list(comparison.metrics)) for side in comparison.sides],
        "contrasts": [
            {
                "metric": contrast.metric,
                "better": contrast.better,
                "first": contrast.first.letter,
                "second": contrast.second.letter,
                "paired": contrast.paired,
                "seeds": list(contrast.seeds),
                **_finite(asdict(contrast.difference)),
                "adjusted_p": contrast.adjusted_p,
                "shown": comparison.shown(contrast),
                "improved": contrast.improved,
                "worsened": contrast.worsened,
            }
            for contrast in comparison.contrasts
        ],
        "says": headline(comparison),
        "remarks": list(remarks(comparison)),
    }


def _finite(fields: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in fields.items() if abs(value) != float("inf")}


def _side_json(side: ComparisonSide, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "letter": side.letter,
        "title": side.title,
        "settings": dict(side.differing),
        "runs": [
            {
                "name": run.name,
                "folder": str(run.folder),
                "seed": seed,
                "figures": {name: run.measures[name].value for name in metrics},
            }
            for seed, run in side.runs.items()
        ],
        "left_out": [run.name for run in side.left_out],
    }


_LONGEST_TITLE = 70
MAX_DRAWN = 40
"""Figures of a page that are drawn; all are in its tables."""


def draw_comparison(comparison: RunComparison) -> ReportPage:
    """Draw the page of a comparison."""
    notes = [Paragraph(text) for text in remarks(comparison)]
    sections = [
        ReportSection("Differences", [*_differences(comparison), *notes]),
        ReportSection("Sides", [_sides(comparison)], intro="Only settings in which any two of them differ."),
        ReportSection("Seed by seed", _by_seed(comparison)),
        ReportSection("Runs", [_runs(comparison)]),
        ReportSection("How it was compared", [Paragraph(text) for text in _METHOD]),
    ]
    return ReportPage(
        title=_page_title(comparison),
        subtitle=f"{headline(comparison)}.",
        facts=_facts(comparison),
        sections=[section for section in sections if section.blocks],
    )


def _page_title(comparison: RunComparison) -> str:
    match comparison.sides:
        case (only,):
            return f"{len(only.runs)} runs of the same settings"
        case (first, second) if len(first.title) + len(second.title) < _LONGEST_TITLE:
            return f"{second.title} against {first.title}"
        case (first, *others):
            return f"{', '.join(side.letter for side in others)} against {first.letter}"
    raise InternalError("a comparison without a side")


def _facts(comparison: RunComparison) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [(side.letter, side.title) for side in comparison.sides[:6]]
    pairs = {len(contrast.seeds) for contrast in comparison.contrasts if contrast.paired}
    if pairs:
        facts.append(("Pairs", " and ".join(map(str, sorted(pairs)))))
    digest, _, rest = comparison.data.partition(" ")
    facts.append(("Judged rows", f"{comparison.rows:,}" if comparison.rows else "not known"))
    facts.append(("Evaluation data", f"{digest[:12]} {rest}".strip()))
    return facts


def _differences(comparison: RunComparison) -> list[Block]:
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
    return [*figures, _difference_table(comparison)]


def _better(contrast: Contrast) -> str:
    return f"{contrast.better} is better" if contrast.better else "neither direction is better"


def _row(contrast: Contrast, comparison: RunComparison) -> charts.Interval:
    found = contrast.difference
    name = f"{contrast.second.letter} - {contrast.first.letter}"
    note = f"p {format_p(contrast.adjusted_p)}"
    flagged = comparison.shown(contrast) and contrast.worse
    return charts.Interval(name, found.value, found.low, found.high, note, flagged)


def _difference_table(comparison: RunComparison) -> Table:
    header = ["figure", "sides", "difference", "interval", "deviations", "p", "p, Holm", "better in", "shown"]
    rows = [
        [
            contrast.metric,
            f"{contrast.second.letter} - {contrast.first.letter}",
            format_signed(contrast.difference.value),
            format_interval(contrast),
            _deviations(contrast.difference.standardised),
            format_p(contrast.difference.p),
            format_p(contrast.adjusted_p),
            format_wins(contrast),
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


def _sides(comparison: RunComparison) -> Table:
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
        found = [mean_and_deviation(side, name) for name in metrics]
        means = [format_number(mean) for mean, _ in found]
        spreads = ["-" if deviation is None else format_number(deviation) for _, deviation in found]
        settings = [side.differing[name] for name in names]
        rows.append([side.letter, *settings, format_seeds(list(side.runs)), *means, *spreads])
    first = len(names) + 2
    return Table(header, rows, numeric=range(first, first + 2 * len(metrics)))


def _by_seed(comparison: RunComparison) -> list[Block]:
    drawn = list(comparison.metrics)[:MAX_DRAWN]
    return [
        _seeds(comparison, metric) for metric in drawn if any(len(side.runs) > 1 for side in comparison.sides)
    ]


def _seeds(comparison: RunComparison, metric: str) -> Figure:
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


def _runs(comparison: RunComparison) -> Table:
    metrics = list(comparison.metrics)
    rows = [
        [run.name, side.letter, run.seed, *(format_number(run.measures[name].value) for name in metrics)]
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
