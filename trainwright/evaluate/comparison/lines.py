"""A comparison on the terminal and as JSON."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from trainwright.evaluate.comparison import wording
from trainwright.evaluate.comparison.comparing import Comparison
from trainwright.evaluate.comparison.sides import Side

_NUMBERS = frozenset({1, 3, 4})


def write_lines(comparison: Comparison) -> Iterator[str]:
    """Write a comparison as lines of text."""
    count = sum(len(side.runs) for side in comparison.sides)
    rows = f", {comparison.rows:,} rows" if comparison.rows else ""
    yield f"compare   {count} runs on the same evaluation data{rows}"
    yield ""
    for side in comparison.sides:
        yield f"  {wording.heading(side)}"
        yield from (f"       {line}" for line in spreads(side, list(comparison.metrics)))
    yield ""
    if comparison.contrasts:
        yield from _table(comparison)
        yield ""
    yield f"{wording.sentence(comparison)}."
    yield from wording.remarks(comparison)


def spreads(side: Side, metrics: Sequence[str]) -> Iterator[str]:
    """Say of each figure what the runs of one side reached."""
    for name in metrics:
        mean, deviation = spread(side, name)
        beside = "" if deviation is None else f"   deviation between seeds {wording.size(deviation)}"
        yield f"{name} {wording.size(mean)}{beside}"


def spread(side: Side, metric: str) -> tuple[float, float | None]:
    """Return mean and standard deviation of a figure over the runs of a side; None of a single run."""
    values = [run.measures[metric].value for run in side.runs.values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _table(comparison: Comparison) -> Iterator[str]:
    header = ["figure", "difference", "interval", "p", "p, Holm", "better in", "shown"]
    rows = [
        [
            f"{contrast.metric}, {contrast.second.letter} - {contrast.first.letter}",
            wording.signed(contrast.difference.value),
            wording.interval(contrast),
            wording.p_value(contrast.difference.p),
            wording.p_value(contrast.adjusted_p),
            wording.wins(contrast),
            "yes" if comparison.shown(contrast) else "no",
        ]
        for contrast in comparison.contrasts
    ]
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if index in _NUMBERS else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain JSON data; what is not finite is absent."""
    return {
        "evaluation_data": comparison.data,
        "rows": comparison.rows,
        "level": comparison.level,
        "sides": [_side(side, list(comparison.metrics)) for side in comparison.sides],
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
        "says": wording.sentence(comparison),
        "remarks": list(wording.remarks(comparison)),
    }


def _finite(fields: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in fields.items() if abs(value) != float("inf")}


def _side(side: Side, metrics: Sequence[str]) -> dict[str, Any]:
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
