"""Slices on the evaluation's page: the worst first, drawn while there is room, and all in tables."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import escape

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Compared, Cut, Findings, Slice
from trainwright.evaluate.outcomes import spoken
from trainwright.evaluate.page_rules import decisions_by_slice
from trainwright.evaluate.page_scores import NAMES
from trainwright.report import charts
from trainwright.report.page import Block, Dense, Figure, Section, Text
from trainwright.significance import Estimate

MAX_DRAWN = 200
"""Rows of all figures of slices together; of the others there is a line in a table."""

DRAWN_OF_ONE = 24
"""Rows of one figure."""

TABLE_BYTES = 1_100_000
"""What all tables of slices may take: the page stays below its limit whatever their number."""

_FIGURES, _COLUMNS = 2, 3
_DEFAULTS = {
    "binary": ("recall", "auc"),
    "multiclass": ("accuracy", "macro_recall"),
    "regression": ("rmse", "mae"),
    "language_model": ("loss",),
}
_BELOW_ALL = float("inf")


@dataclass(frozen=True)
class Room:
    """What is left for the slices of one cut: rows to draw, and bytes of its table."""

    rows: int
    bytes: int


def slice_sections(findings: Findings) -> Iterator[Section]:
    """Draw the slices of every column and crossing."""
    metrics, decided = shown_metrics(findings), decisions_by_slice(findings)
    rooms = _share(findings.cuts, min(len(metrics), _FIGURES))
    for cut, room in zip(findings.cuts, rooms, strict=True):
        ordered = worst_first(cut, metrics)
        blocks: list[Block] = list(_drawn(cut, ordered[: room.rows], metrics[:_FIGURES], findings, decided))
        blocks += _table(cut, ordered, metrics[:_COLUMNS], findings, decided, room.bytes)
        yield Section(f"By {cut.name}", blocks, intro=_intro(cut))


def shown_metrics(findings: Findings) -> list[str]:
    """Return the metrics that slices are shown by: those that rules judge them by, then the usual ones."""
    asked = [rule.metric for rule in findings.evaluation.all_rules if rule.scope == "slice"]
    if findings.evaluation.max_recall_gap is not None or findings.evaluation.recall_gaps:
        asked.append("recall")
    known = {name for cut in findings.cuts for entry in cut.slices for name in entry.figures}
    names = [name for name in dict.fromkeys([*asked, *_DEFAULTS[findings.kind]]) if name in known]
    return names or sorted(known)[:1]


def worst_first(cut: Cut, metrics: Sequence[str]) -> list[Slice]:
    """Order slices: judged ones by their first metric, the worst first, then those that are only listed."""
    return sorted(cut.slices, key=lambda entry: (bool(entry.reason), _goodness(entry, metrics), -entry.rows))


def _goodness(entry: Slice, metrics: Sequence[str]) -> float:
    found = entry.figures.get(metrics[0]) if metrics else None
    if found is None or found.candidate is None:
        return _BELOW_ALL
    return -found.candidate.value if found.better == "lower" else found.candidate.value


def _share(cuts: Sequence[Cut], figures: int) -> list[Room]:
    """Share out what may be drawn and written: small cuts take what they need, large ones the rest."""
    rows = _even([min(DRAWN_OF_ONE, len(cut.slices)) for cut in cuts], MAX_DRAWN // max(1, figures))
    sizes = _even([400 * len(cut.slices) for cut in cuts], TABLE_BYTES)
    return [Room(row, size) for row, size in zip(rows, sizes, strict=True)]


def _even(wanted: Sequence[int], total: int) -> list[int]:
    given, left = [0] * len(wanted), total
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for rank, index in enumerate(order):
        given[index] = min(wanted[index], left // (len(order) - rank))
        left -= given[index]
    return given


def _intro(cut: Cut) -> str:
    small = len(cut.slices) - len(cut.judged)
    parts = ["1 slice" if len(cut.slices) == 1 else f"{len(cut.slices):,} slices, the worst first"]
    if small:
        parts.append(f"{small:,} of them too small to be judged, and shown with their size")
    if cut.edges_from:
        whose = "the baseline's rows" if cut.edges_from == "baseline" else cut.edges_from
        parts.append(f"buckets by quantiles of {whose}")
    return f"{'; '.join(parts)}."


def _drawn(
    cut: Cut, slices: Sequence[Slice], metrics: Sequence[str], findings: Findings, decided: dict[str, str]
) -> Iterator[Figure]:
    for metric in metrics if slices else ():
        rows = [_pair(cut, entry, metric, decided) for entry in slices]
        limit = _limit(cut, metric, findings)
        svg = charts.paired_intervals(rows, axis=spoken(metric), limit=limit, names=NAMES)
        hollow = any(row.faint for row in rows)
        yield Figure(svg, _caption(cut, len(slices), metric, findings, hollow=hollow))


def _pair(cut: Cut, entry: Slice, metric: str, decided: dict[str, str]) -> charts.Pair:
    found = entry.figures.get(metric) or Compared(metric, "", None)
    small, said = bool(entry.reason), decided.get(f"{cut.name} {entry.name}", "")
    note = f"{entry.rows:,}" + (" small" if small else "")
    now = _interval(entry.name, found.candidate, note, flagged=said in {"FAIL", "HOLD"})
    before = _interval(entry.name, found.baseline, "", flagged=False) if found.baseline else None
    return charts.Pair(now, before, faint=small or said == "INCONCLUSIVE")


def _interval(name: str, found: Estimate | None, note: str, *, flagged: bool) -> charts.Interval:
    if found is None:
        return charts.Interval(name, None, 0, 1, note)
    return charts.Interval(name, found.value, found.low, found.high, note, flagged)


def _limit(cut: Cut, metric: str, findings: Findings) -> float | None:
    for rule in findings.evaluation.all_rules:
        on_these = not rule.by or set(cut.columns) <= set(rule.by)
        if rule.scope == "slice" and rule.metric == metric and rule.kind == "absolute" and on_these:
            return rule.limit
    return None


def _caption(cut: Cut, drawn: int, metric: str, findings: Findings, *, hollow: bool) -> str:
    of = f"the {drawn} worst of {len(cut.slices):,}; " if drawn < len(cut.slices) else ""
    faint = " Hollow: nothing was decided on it." if hollow else ""
    level = words.level(findings.evaluation)
    return f"{spoken(metric)}: {of}{level} intervals, to the right the rows.{faint}"


def _table(
    cut: Cut,
    slices: Sequence[Slice],
    metrics: Sequence[str],
    findings: Findings,
    decided: dict[str, str],
    room: int,
) -> Iterator[Block]:
    """Write all slices with as many metrics as there is room for; with one the worst, as many as fit."""
    rows: list[list[str]] = []
    while metrics and len(rows) < len(slices):
        shown, metrics = metrics, metrics[:-1]
        rows = list(_fitting((_cells(cut, entry, shown, findings, decided) for entry in slices), room))
    count = len(slices)
    title = f"The {len(rows):,} worst of {count:,} slices"
    if len(rows) == count:
        title = "In numbers" if count == 1 else f"All {count:,} slices"
    if rows:
        yield Dense(title, _header(shown, findings), rows, noted=True, opened=count <= DRAWN_OF_ONE)
    if len(rows) < count:
        yield Text(
            f"{count - len(rows):,} more slices have no place here; every one is in measured.json beside the "
            "verdict, and none of them is worse than those above."
        )


def _header(metrics: Sequence[str], findings: Findings) -> list[str]:
    header = ["slice", "rows", *(["of label 1"] if findings.kind == "binary" else [])]
    for metric in metrics:
        header += [spoken(metric), *(["production", "gain"] if findings.baseline else [])]
    return [*header, "judged"]


def _cells(
    cut: Cut, entry: Slice, metrics: Sequence[str], findings: Findings, decided: dict[str, str]
) -> list[str]:
    cells = [entry.name, f"{entry.rows:,}"]
    if findings.kind == "binary":
        cells.append(f"{entry.counts[-1]:,}" if entry.counts else words.NONE)
    for metric in metrics:
        found = entry.figures.get(metric) or Compared(metric, "", None)
        cells.append(words.estimate(found.candidate))
        if findings.baseline:
            cells += [words.estimate(found.baseline), words.estimate(found.gain, signed=True)]
    said = decided.get(f"{cut.name} {entry.name}", "yes")
    return [*cells, entry.reason or said]


def _fitting(rows: Iterable[list[str]], room: int) -> Iterator[list[str]]:
    """Return rows as long as they fit into so many bytes of a page."""
    for cells in rows:
        room -= sum(len(escape(cell).encode()) + len("<td></td>") for cell in cells) + len("<tr></tr>\n")
        if room < 0:
            return
        yield cells
