"""Report a comparison of runs: terminal table, JSON and page."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from trainwright.evaluate.comparison import ComparisonSide, Contrast, RunComparison
from trainwright.report import charts
from trainwright.report.page import Block, Figure, Paragraph, ReportPage, ReportSection, Table


def headline(comparison: RunComparison) -> str:
    """Say in one sentence what the runs show."""
    if not comparison.contrasts:
        return "All runs have the same settings: their spread is what the seed alone does."
    found = [_difference_text(contrast) for contrast in comparison.contrasts if comparison.shown(contrast)]
    if found:
        return "; ".join(found)
    best = min(comparison.contrasts, key=lambda contrast: contrast.adjusted_p)
    return (
        f"No difference is shown: the clearest is {best.metric} of {best.second.letter} against "
        f"{best.first.letter}, {format_signed(best.difference.value)} with p {format_p(best.adjusted_p)}"
    )


def _difference_text(contrast: Contrast) -> str:
    verb = "different from" if not contrast.better else "worse than" if contrast.worse else "better than"
    return (
        f"{contrast.second.letter} is {verb} {contrast.first.letter} in {contrast.metric} by "
        f"{format_number(abs(contrast.difference.value))} (p {format_p(contrast.adjusted_p)})"
    )


def remarks(comparison: RunComparison) -> Iterator[str]:
    """Say what the numbers depend on and what they cannot tell."""
    # Pairs and power are the same for all metrics of a side.
    of_sides = [entry for entry in comparison.contrasts if entry.metric == comparison.metrics[0]]
    yield from (_power(comparison, entry) for entry in of_sides if comparison.powerless(entry))
    for contrast in of_sides:
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


def _power(comparison: RunComparison, contrast: Contrast) -> str:
    first, second, tests = contrast.first, contrast.second, len(comparison.contrasts)
    sizes = f"{len(second.runs)} against {len(first.runs)} runs"
    if contrast.paired:
        sizes = "1 pair" if len(contrast.seeds) == 1 else f"{len(contrast.seeds)} pairs"
    least = contrast.difference.least_p
    many = "" if tests == 1 else f", {format_p(min(1, least * tests))} among {tests} comparisons"
    return (
        f"{second.letter} against {first.letter}: {sizes} cannot show a difference at "
        f"{100 * comparison.level:g} %: the smallest possible p is {format_p(least)}{many}; "
        f"{comparison.pairs_needed} pairs could."
    )


def _pairing(contrast: Contrast) -> Iterator[str]:
    first, second = contrast.first, contrast.second
    alone = sorted((first.runs.keys() | second.runs.keys()) - set(contrast.seeds))
    if not contrast.paired:
        yield (
            f"{second.letter} and {first.letter} share too few seeds to be paired, so they are compared "
            "unpaired, which takes more runs to show the same difference: train both with the same seeds."
        )
    elif alone:
        listed = ", ".join(map(str, alone))
        yield f"Seeds of one side only take no part in {second.letter} against {first.letter}: {listed}."


def format_seeds(found: Sequence[int]) -> str:
    """Write seeds briefly: ``seed 3``, ``seeds 0 to 5``, ``seeds 0, 2, 7``."""
    if len(found) == 1:
        return f"seed {found[0]}"
    if len(found) > 2 and list(found) == list(range(found[0], found[-1] + 1)):  # noqa: PLR2004
        return f"seeds {found[0]} to {found[-1]}"
    return f"seeds {', '.join(map(str, found))}"


def format_interval(contrast: Contrast) -> str:
    """Write the interval of a difference, with its confidence where it is not 95 %."""
    found = contrast.difference
    if not found.confidence:
        return "none of one pair" if contrast.paired else "none"
    usual = 0.95 <= found.confidence < 0.955  # noqa: PLR2004
    level = "" if usual else f" at {100 * found.confidence:.3g} %"
    return f"[{format_signed(found.low)}, {format_signed(found.high)}]{level}"


def format_signed(value: float) -> str:
    """Write a difference with its sign and four significant digits."""
    return f"{'+' if value >= 0 else '-'}{format_number(abs(value))}"


def format_number(value: float) -> str:
    """Write a number with four significant digits, or four decimals where it is below 1."""
    return f"{value:.4f}" if 1e-4 <= value < 1 or not value else f"{value:.4g}"  # noqa: PLR2004


def format_p(p: float) -> str:
    """Write a probability with three significant digits."""
    return "< 0.0001" if p < 1e-4 else f"{p:.3g}"  # noqa: PLR2004


_HEADER = ("figure", "difference", "interval", "p", "p, Holm", "better in", "shown")
_NUMERIC = (1, 3, 4)


def _difference_rows(comparison: RunComparison) -> list[list[str]]:
    rows = []
    for contrast in comparison.contrasts:
        pairs = len(contrast.seeds) or len(contrast.first.runs) * len(contrast.second.runs)
        rows.append(
            [
                f"{contrast.metric}, {contrast.second.letter} - {contrast.first.letter}",
                format_signed(contrast.difference.value),
                format_interval(contrast),
                format_p(contrast.difference.p),
                format_p(contrast.adjusted_p),
                f"{contrast.improved} of {pairs}" if contrast.better else "-",
                "yes" if comparison.shown(contrast) else "no",
            ]
        )
    return rows


def mean_and_deviation(side: ComparisonSide, metric: str) -> tuple[str, str]:
    """Write mean and standard deviation of a metric over the runs of a side; ``-`` of a single run."""
    values = list(side.values(metric).values())
    deviation = format_number(statistics.stdev(values)) if len(values) > 1 else "-"
    return format_number(statistics.fmean(values)), deviation


def comparison_lines(comparison: RunComparison) -> Iterator[str]:
    """Write a comparison as lines of text."""
    yield f"compare   {len(comparison.runs)} runs on the same evaluation data, {comparison.rows:,} rows"
    yield ""
    for side in comparison.sides:
        runs = "1 run" if len(side.runs) == 1 else f"{len(side.runs)} runs"
        yield f"  {side.letter}  {side.title}  ({runs}, {format_seeds(list(side.runs))})"
        for name in comparison.metrics:
            mean, deviation = mean_and_deviation(side, name)
            spread = "" if deviation == "-" else f"   deviation between seeds {deviation}"
            yield f"       {name} {mean}{spread}"
    yield ""
    if comparison.contrasts:
        rows = [_HEADER, *_difference_rows(comparison)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.rjust(width) if index in _NUMERIC else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            yield f"  {'  '.join(cells)}".rstrip()
        yield ""
    yield f"{headline(comparison)}."
    yield from remarks(comparison)


def comparison_json(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as plain JSON data."""
    return {
        "evaluation_data": comparison.data,
        "rows": comparison.rows,
        "level": comparison.level,
        "sides": [_side_json(side, comparison.metrics) for side in comparison.sides],
        "contrasts": [
            {
                "metric": contrast.metric,
                "better": contrast.better,
                "first": contrast.first.letter,
                "second": contrast.second.letter,
                "paired": contrast.paired,
                "seeds": list(contrast.seeds),
                **asdict(contrast.difference),
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


def _side_json(side: ComparisonSide, metrics: Sequence[str]) -> dict[str, Any]:
    runs = [
        {
            "name": run.name,
            "folder": str(run.folder),
            "seed": seed,
            "figures": {name: run.measures[name].value for name in metrics},
        }
        for seed, run in side.runs.items()
    ]
    return {
        "letter": side.letter,
        "title": side.title,
        "settings": dict(side.settings),
        "runs": runs,
        "left_out": [run.name for run in side.left_out],
    }


_LONGEST_TITLE = 70


def draw_comparison(comparison: RunComparison) -> ReportPage:
    """Draw the page of a comparison."""
    differences: list[Block] = []
    if comparison.contrasts:
        differences += [_difference_figure(comparison, metric) for metric in comparison.metrics]
        worse = [index for index, entry in enumerate(comparison.contrasts)
                 if entry.worse and comparison.shown(entry)]  # fmt: skip
        differences.append(Table(_HEADER, _difference_rows(comparison), (1, 2, 3, 4), worse))
    notes = [Paragraph(text) for text in remarks(comparison)]
    repeated = any(len(side.runs) > 1 for side in comparison.sides)
    seeds = [_seed_figure(comparison, metric) for metric in comparison.metrics] if repeated else []
    sections = [
        ReportSection("Differences", [*differences, *notes]),
        ReportSection("Sides", [_sides(comparison)], intro="Only settings in which any two of them differ."),
        ReportSection("Seed by seed", seeds),
        ReportSection("Runs", [_runs(comparison)]),
        ReportSection("How it was compared", [Paragraph(text) for text in _METHOD]),
    ]
    facts: list[tuple[str, object]] = [(side.letter, side.title) for side in comparison.sides[:6]]
    if pairs := sorted({len(contrast.seeds) for contrast in comparison.contrasts if contrast.paired}):
        facts.append(("Pairs", " and ".join(map(str, pairs))))
    facts += [("Judged rows", f"{comparison.rows:,}"), ("Evaluation data", comparison.data[:12])]
    return ReportPage(
        title=_page_title(comparison.sides),
        subtitle=f"{headline(comparison)}.",
        facts=facts,
        sections=[section for section in sections if section.blocks],
    )


def _page_title(sides: Sequence[ComparisonSide]) -> str:
    first, *others = sides
    if not others:
        return f"{len(first.runs)} runs of the same settings"
    if len(others) == 1 and len(first.title) + len(others[0].title) < _LONGEST_TITLE:
        return f"{others[0].title} against {first.title}"
    return f"{', '.join(side.letter for side in others)} against {first.letter}"


def _difference_figure(comparison: RunComparison, metric: str) -> Figure:
    contrasts = [contrast for contrast in comparison.contrasts if contrast.metric == metric]
    better = contrasts[0].better
    rows = [
        charts.Interval(
            f"{contrast.second.letter} - {contrast.first.letter}",
            contrast.difference.value,
            contrast.difference.low,
            contrast.difference.high,
            f"p {format_p(contrast.adjusted_p)}",
            comparison.shown(contrast) and contrast.worse,
        )
        for contrast in contrasts
    ]
    svg = charts.intervals(rows, limit=0.0, limit_name="no difference", axis=f"difference in {metric}")
    direction = f"{better} is better" if better else "neither direction is better"
    return Figure(svg, f"{metric}: {direction}. The interval holds what the test does not refuse.")


def _sides(comparison: RunComparison) -> Table:
    names, metrics = list(comparison.sides[0].settings), comparison.metrics
    columns = [f"{name}, {part}" for part in ("mean", "spread") for name in metrics]
    rows = []
    for side in comparison.sides:
        found = [mean_and_deviation(side, name) for name in metrics]
        numbers = [entry[part] for part in (0, 1) for entry in found]
        rows.append([side.letter, *side.settings.values(), format_seeds(list(side.runs)), *numbers])
    first = len(names) + 2
    return Table(["side", *names, "seeds", *columns], rows, numeric=range(first, first + len(columns)))


def _seed_figure(comparison: RunComparison, metric: str) -> Figure:
    values = {side.letter: side.values(metric) for side in comparison.sides}
    series = {
        letter: ([float(seed) for seed in found], list(found.values())) for letter, found in values.items()
    }
    svg = charts.lines(series, x_label="seed", y_label=metric, dots=True, from_zero=False)
    return Figure(
        svg, f"{metric} of every run. Lines that keep their distance differ by more than their seeds."
    )


def _runs(comparison: RunComparison) -> Table:
    rows = [
        [run.name, side.letter, run.seed, *(format_number(run.measures[n].value) for n in comparison.metrics)]
        for side, run in comparison.runs
    ]
    header = ["run", "side", "seed", *comparison.metrics]
    return Table(header, rows, numeric=range(2, len(header)))


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
