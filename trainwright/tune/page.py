"""Draw the page of a study, and its summary in Markdown."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainwright.report import charts, markdown, page
from trainwright.report.charts import LevelAxis, Trace
from trainwright.report.page import Block, DenseTable, Figure, Paragraph, ReportPage, ReportSection, Table
from trainwright.report.svg import AxisScale, duration, number, percent, round_values
from trainwright.tune.report import Candidate, StudyReport, Trial

_SHOWN = 300
"""Trials in a table or a chart with a line for each: the best ones, where a study has more."""

_REASONS = 30

_FENCE = 3.0
"""Values that lie this many interquartile ranges above the quartiles do not stretch an axis."""

_MARKS = {"complete": "dot", "pruned": "ring", "paused": "ring", "running": "ring", "infeasible": "cross"}
_NAMES = {"dot": "complete", "ring": "pruned", "cross": "infeasible", "diamond": "best"}
_NOT_SET = "not set"


def write_page(path: Path, report: StudyReport) -> Path:
    """Draw a finished study as one HTML file."""
    sections = [
        _confirmation(report),
        ReportSection("Search", list(_search(report))),
        ReportSection("Parameters", list(_parameters(report))),
        ReportSection("Trials", list(_trials(report))),
        ReportSection("How it was decided", [Paragraph(text) for text in _method(report)]),
    ]
    drawn = ReportPage(
        title=f"Study {report.study}",
        subtitle=_sentence(report),
        facts=list(facts(report)),
        sections=[section for section in sections if section.blocks],
    )
    return page.write_page(drawn, path)


def facts(report: StudyReport) -> Iterator[tuple[str, str]]:
    """Return the figures of a study, as the page and the summary show them."""
    yield "Metric", f"{report.metric}, {report.direction}d"
    yield "Trials", _counts(report.trials)
    best = best_trial(report)
    if best:
        yield "Best trial", f"{best.number}: {_short(best.value)}"
    steps = sum(trial.steps for trial in report.trials)
    full = sum(trial.total for trial in report.trials)
    if full:
        yield "Training steps", f"{steps:,}, {percent(steps / full)} of all trials to their end"
    if report.ended:
        yield "Search ended", report.ended
    yield "Run time", duration(report.seconds)
    if report.cost is not None:
        yield "Cost", f"{report.cost:,.2f}"
    yield "Data version", report.data_version[:12]


def best_trial(report: StudyReport) -> Trial | None:
    """Return the complete trial with the best value, the first one of equals."""
    return next(iter(_ranked(report)), None)


def summary(report: StudyReport) -> str:
    """Return the study as Markdown: its outcome, figures, confirmation and best trials."""
    parts = [f"# Study {markdown.escape(report.study)}", markdown.escape(_sentence(report))]
    parts.append(markdown.table(("figure", "value"), list(facts(report))))
    if report.confirmation.candidates:
        header, rows, numeric = _candidates(report)
        parts.append(f"## Confirmation\n\n{markdown.table(header, rows, numeric)}")
    best = _ranked(report)[:5]
    if best:
        keys = _keys(report)
        rows = [
            [str(trial.number), _short(trial.value), *(_set(trial.params, key) for key in keys)]
            for trial in best
        ]
        parts.append(f"## Best trials\n\n{markdown.table(('trial', report.metric, *keys), rows, (0, 1))}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _sentence(report: StudyReport) -> str:
    found = report.confirmation
    if found.sentence:
        return found.sentence
    if found.winner is None:
        return "No trial is better than the default."
    return f"Trial {found.winner} is the best of {len(report.trials)}; it was not confirmed with other seeds."


def _counts(trials: Sequence[Trial]) -> str:
    counts = Counter[str](trial.state for trial in trials)
    states = [f"{counts[state]} {state}" for state in _MARKS if counts[state]]
    return f"{len(trials)}: {', '.join(states)}" if states else "0"


def _ranked(report: StudyReport) -> list[Trial]:
    """Return the complete trials, best first."""
    sign = 1 if report.direction == "minimize" else -1
    found = [trial for trial in report.trials if trial.state == "complete" and trial.value is not None]
    return sorted(found, key=lambda trial: (sign * (trial.value or 0.0), trial.number))


def _keys(report: StudyReport) -> list[str]:
    """Return the searched keys, the most important first."""
    found = dict.fromkeys(itertools.chain.from_iterable(trial.params for trial in report.trials))
    return sorted(found, key=lambda key: -report.importances.get(key, 0.0))


def _short(value: object) -> str:
    """Write a value with four significant digits."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _set(params: dict[str, Any], key: str) -> str:
    return _short(params[key]) if key in params else _NOT_SET


def _marks(report: StudyReport) -> dict[int, str]:
    """Return the mark of each trial by its number."""
    found = {trial.number: _MARKS[trial.state] for trial in report.trials}
    best = best_trial(report)
    return found | ({best.number: "diamond"} if best else {})


def _named(items: Sequence[Trace]) -> dict[str, str]:
    """Return the legend of the marks that occur."""
    return {mark: name for mark, name in _NAMES.items() if any(item.mark == mark for item in items)}


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis. Outliers do not stretch it: a diverging trial would flatten all others."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return 0.0, 1.0
    low, high = finite[0], finite[-1]
    if len(finite) > 3:  # noqa: PLR2004 - quartiles of fewer say nothing
        first, _, third = statistics.quantiles(finite, n=4)
        fence = _FENCE * (third - first)
        low, high = max(low, first - fence), min(high, third + fence)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - air, high + air


def _confirmation(report: StudyReport) -> ReportSection:
    found = report.confirmation
    if not found.candidates:
        return ReportSection("Confirmation", [])
    rows = [
        charts.Interval(_name(entry), entry.difference, entry.low, entry.high, f"p {_probability(entry)}")
        for entry in found.candidates
        if entry.difference is not None and entry.low is not None and entry.high is not None
    ]
    better = "lower" if report.direction == "minimize" else "higher"
    blocks: list[Block] = []
    if rows:
        axis = f"difference in {report.metric}"
        figure = charts.intervals(rows, axis=axis, limit=0.0, limit_name="the default")
        blocks.append(Figure(figure, f"Trial minus default, with its interval; {better} is better."))
    series = {
        _name(entry): ([float(seed) for seed in found.seeds], list(entry.values))
        for entry in found.candidates
        if len(entry.values) == len(found.seeds)
    }
    if series and len(found.seeds) > 1:
        figure = charts.lines(series, x_label="seed", y_label=report.metric, dots=True, from_zero=False)
        blocks.append(
            Figure(figure, "Every training. Lines that keep their distance differ by more than chance.")
        )
    header, cells, numeric = _candidates(report)
    blocks.append(Table(header, cells, numeric))
    intro = f"The default and the best trials, trained again with {len(found.seeds)} seeds that no trial had."
    return ReportSection("Confirmation", blocks, intro=intro)


def _name(entry: Candidate) -> str:
    return "default" if entry.trial is None else f"trial {entry.trial}"


def _probability(entry: Candidate) -> str:
    if entry.p_value is None:
        return "-"
    return "< 0.0001" if entry.p_value < 1e-4 else f"{entry.p_value:.3g}"  # noqa: PLR2004


def _candidates(report: StudyReport) -> tuple[list[str], list[list[str]], range]:
    """Return the table of the confirmation: header, rows and numeric columns."""
    keys = _keys(report)
    rows = []
    for entry in report.confirmation.candidates:
        mean = _short(statistics.fmean(entry.values)) if entry.values else "-"
        spread = _short(statistics.stdev(entry.values)) if len(entry.values) > 1 else "-"
        known = entry.low is not None and entry.high is not None
        interval = f"[{_signed(entry.low)}, {_signed(entry.high)}]" if known else "-"
        values = [mean, spread, _signed(entry.difference), interval, _probability(entry)]
        rows.append([_name(entry), *values, *(_set(entry.params, key) for key in keys)])
    return ["candidate", "mean", "spread", "difference", "interval", "p", *keys], rows, range(1, 6)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4g}"


def _search(report: StudyReport) -> Iterator[Block]:
    """Draw the history, the rungs, and the cost of the trials."""
    values = [trial.value for trial in report.trials if trial.value is not None]
    if values:
        yield _history(report, _range(values))
    reached = [entry.value for trial in report.trials for entry in trial.rungs]
    if reached:
        yield _rungs(report, _range(reached))
    priced = report.cost is not None
    costs = [(trial, (trial.cost or 0.0) if priced else trial.seconds) for trial in report.trials]
    if any(cost for _, cost in costs):
        items, marks = [], _marks(report)
        for trial, cost in costs:
            text = f"{cost:,.2f}" if priced else duration(cost)
            ends = [(float(trial.number), 0.0), (float(trial.number), cost)]
            items.append(Trace(f"Trial {trial.number}: {text}", ends, marks[trial.number]))
        y_label = "cost" if priced else "run time, s"
        figure = charts.traces(
            items,
            x_label="trial",
            y_label=y_label,
            names=_named(items),
            up=(0.0, 1.05 * max(cost for _, cost in costs)),
            ticks=_numbers(report),
        )
        yield Figure(figure, f"{'Cost' if priced else 'Run time'} of each trial, over all its attempts.")


def _numbers(report: StudyReport) -> list[tuple[float, str]]:
    """Return ticks at whole numbers of trials."""
    values = round_values(0, max(len(report.trials) - 1, 1))
    return [(value, number(value)) for value in values if value == int(value)]


def _history(report: StudyReport, up: tuple[float, float]) -> Figure:
    """Draw the value of each trial, and the best one so far."""
    pick = min if report.direction == "minimize" else max
    worst = up[1] if report.direction == "minimize" else up[0]
    items: list[Trace] = []
    marks = _marks(report)
    path: list[charts.Point] = []
    best: float | None = None
    for trial in report.trials:
        place, value = float(trial.number), trial.value
        if value is not None:
            best = value if best is None else pick(best, value)
            items.append(
                Trace(f"Trial {trial.number}: {_short(value)}", [(place, value)], marks[trial.number])
            )
        elif trial.state == "infeasible":
            items.append(Trace(f"Trial {trial.number}: {trial.reason}", [(place, worst)], "cross"))
        elif trial.rungs:
            last = pick(entry.value for entry in trial.rungs)
            items.append(Trace(f"Trial {trial.number}: {_short(last)}", [(place, last)], "ring"))
        if best is not None:
            path += [(place, path[-1][1]), (place, best)] if path else [(place, best)]
    items.insert(0, Trace("Best value so far", path, "none"))
    figure = charts.traces(
        items, x_label="trial", y_label=report.metric, names=_named(items), up=up, ticks=_numbers(report)
    )
    caption = (
        "Value of each trial; the line is the best so far. Infeasible ones and outliers lie at the edge."
    )
    return Figure(figure, caption)


def _rungs(report: StudyReport, up: tuple[float, float]) -> Figure:
    items, marks = [], _marks(report)
    for trial in report.trials[:_SHOWN]:
        points = [(float(entry.rung), entry.value) for entry in trial.rungs]
        if points:
            text = f"Trial {trial.number}: {_short(points[-1][1])} at rung {trial.rungs[-1].rung}"
            items.append(Trace(text, points, marks[trial.number]))
    shares: dict[int, list[float]] = {}
    for trial in report.trials:
        for entry in trial.rungs:
            shares.setdefault(entry.rung, []).append(entry.step / max(trial.total, 1))
    ticks = [(float(rung), percent(statistics.median(found))) for rung, found in sorted(shares.items())]
    x_label, y_label = "rung: share of the training", "best held-out loss up to the rung"
    figure = charts.traces(
        _in_front(items), x_label=x_label, y_label=y_label, names=_named(items), up=up, ticks=ticks
    )
    reached = Counter(entry.rung for trial in report.trials for entry in trial.rungs)
    counts = ", ".join(str(reached[rung]) for rung in sorted(reached))
    return Figure(figure, f"A line per trial, up to where it ended. Trials at each rung: {counts}.")


def _in_front(items: Sequence[Trace]) -> list[Trace]:
    """Sort items so that the better ones cover the others."""
    return sorted(items, key=lambda item: ("cross", "ring", "none", "dot", "diamond").index(item.mark))


def _parameters(report: StudyReport) -> Iterator[Block]:
    if report.importances:
        ordered = sorted(report.importances.items(), key=lambda item: (-item[1], item[0]))
        figure = charts.bars(dict(ordered[:20]), axis="share of the variance")
        yield Figure(
            figure,
            "Importance of each parameter for being a better trial (PED-ANOVA, Watanabe et al. 2023); "
            "uncertain with few trials.",
        )
    ranked = _ranked(report)[:_SHOWN]
    if len(ranked) > 1:
        yield _parallel(report, ranked)
    if not report.importances:
        yield Paragraph(
            f"Complete trials: {len(ranked)}. Importances of the parameters need four with different values, "
            "parallel coordinates two."
        )


def _parallel(report: StudyReport, ranked: Sequence[Trial]) -> Figure:
    """Draw the parameters of the complete trials, and below them their value."""
    keys = _keys(report)
    space = report.tuning["space"]
    scales = [_axis(key, [trial.params.get(key) for trial in ranked], log=space[key]["log"]) for key in keys]
    low, high = _range([trial.value for trial in ranked if trial.value is not None])
    results = [min(max(trial.value or 0.0, low), high) for trial in ranked]
    scales.append(_axis(report.metric, results))
    best = max(1, len(ranked) // 5)
    items = []
    for place, trial in enumerate(ranked):
        values = [*(trial.params.get(key) for key in keys), results[place]]
        points = [
            None if value is None else (places[repr(value)], float(level))
            for level, (value, (_, places)) in enumerate(zip(values, scales, strict=True))
        ]
        mark = "diamond" if not place else "dot" if place < best else "ring"
        items.append(Trace(f"Trial {trial.number}: {_short(trial.value)}", points, mark))
    names = {"diamond": "best", "dot": "best fifth", "ring": "others"}
    drawn = _named(items)
    figure = charts.parallel_coordinates(
        [axis for axis, _ in scales],
        _in_front(items),
        title=f"Parameters and {report.metric}",
        names={mark: name for mark, name in names.items() if mark in drawn},
    )
    return Figure(figure, "A line per complete trial, through its parameters down to its value.")


def _axis(name: str, values: Sequence[object], *, log: bool = False) -> tuple[LevelAxis, dict[str, float]]:
    """Return an axis, and the place of each value by its ``repr``: logarithmic, linear, or one a choice."""
    found = {repr(value): value for value in values if value is not None}
    numbers = {
        text: float(value)
        for text, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if len(numbers) < len(found) or len(found) < 2:  # noqa: PLR2004 - an axis has two ends
        places = {text: (at + 0.5) / len(found) for at, text in enumerate(sorted(found))}
        return LevelAxis(name, [(place, _short(found[text])) for text, place in places.items()]), places
    low, high = min(numbers.values()), max(numbers.values())
    if log:
        scale = AxisScale(math.log10(low), math.log10(high), 0, 1)
        powers = range(math.ceil(scale.low), math.floor(scale.high) + 1)
        ticks = [(scale(power), number(10.0**power)) for power in powers]
        ends = [(0.0, _short(low)), (1.0, _short(high))]
        places = {text: scale(math.log10(value)) for text, value in numbers.items()}
        return LevelAxis(name, ticks if len(ticks) > 1 else ends), places
    scale = AxisScale(low, high, 0, 1)
    ticks = [(scale(value), number(value)) for value in scale.ticks(4)]
    return LevelAxis(name, ticks), {text: scale(value) for text, value in numbers.items()}


def _ending(trial: Trial) -> tuple[str, str]:
    """Return how and why a trial ended; for a pruned one, its last rung."""
    if trial.state != "pruned" or not trial.rungs:
        return trial.state, trial.reason or "-"
    last = trial.rungs[-1]
    return trial.state, f"at rung {last.rung}, {percent(last.step / max(trial.total, 1))} of its training"


def _trials(report: StudyReport) -> Iterator[Block]:
    """List why trials ended, and all of them."""
    ended = Counter(map(_ending, report.trials))
    rows = [[state, why, count] for (state, why), count in sorted(ended.items())]
    if rows:
        yield Table(("Ended", "Why", "Trials"), rows[:_REASONS], numeric=(2,))
    place = {trial.number: at for at, trial in enumerate(_ranked(report))}
    shown = sorted(report.trials, key=lambda trial: (place.get(trial.number, len(place)), trial.number))[
        :_SHOWN
    ]
    keys, priced = _keys(report), report.cost is not None
    header = [
        "trial",
        "ended",
        report.metric,
        *keys,
        "steps",
        "run time",
        *(["cost"] if priced else []),
        "starts",
        "why",
    ]
    cells = []
    for trial in shown:
        cost = [f"{trial.cost:,.2f}" if trial.cost is not None else "-"] if priced else []
        steps = f"{trial.steps:,} of {trial.total:,}"
        values = [
            _short(trial.value),
            *(_set(trial.params, key) for key in keys),
            steps,
            duration(trial.seconds),
        ]
        cells.append([trial.number, trial.state, *values, *cost, trial.attempts, trial.reason])
    if cells:
        left = len(report.trials) - len(shown)
        title = (
            f"The best {len(shown)} trials; {left} more in study.json"
            if left
            else f"All {len(shown)} trials, best first"
        )
        yield DenseTable(title, header, cells, noted=True, opened=True)


_SAME_ROWS, _RUNGS, _INFEASIBLE, _CONFIRMATION = (
    "A trial trains on the same rows and is measured on the same held-out rows as every other; the rows that "
    "evaluate judges take no part.",
    "Rungs: at fixed shares of its training a trial stays in the race if its best loss so far is among the "
    "best of the trials that reached this rung; others pause with their checkpoint and may be promoted later "
    "(asynchronous successive halving, Li et al., MLSys 2020).",
    "Infeasible trials (out of memory, diverged, rejected by a section, hung) count as the worst.",
    "Confirmation: the best of many trials is partly the luckiest. So the best ones and the default are "
    "trained again with other seeds and compared seed by seed with the exact sign-flip test; p-values are "
    "adjusted for their number (Holm 1979). The default stays unless a trial is shown to be better.",
)


def _method(report: StudyReport) -> Iterator[str]:
    yield _SAME_ROWS
    if report.tuning["pruner"]["kind"] != "none":
        yield _RUNGS
    yield _INFEASIBLE
    if report.confirmation.candidates:
        yield _CONFIRMATION
