"""Findings of every kind, made of numbers that a test chooses: what a page is drawn from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.evaluate.findings import (
    CalibrationBins,
    ComparedBaseline,
    ComparedMetric,
    ConstantComparison,
    CurveLine,
    Disparity,
    Findings,
    Histogram,
    PlotData,
    Ruling,
    Sample,
    Slice,
    Slicing,
)
from trainwright.experiment import Evaluation
from trainwright.significance import Estimate, wilson
from trainwright.verdicts import ABOVE, SIZE, NotJudged, Rule, Verdict

DIGEST = "ab" * 32
METRICS = {
    "binary": {"auc": 0.711, "recall": 0.435, "log_loss": 0.399},
    "multiclass": {"accuracy": 0.62, "macro_recall": 0.55, "recall/2": 0.4},
    "regression": {"rmse": 31.4, "mae": 18.2, "r2": 0.31},
    "language_model": {"loss": 3.214, "perplexity": 24.87},
}
LOWER = frozenset({"log_loss", "rmse", "mae", "loss", "perplexity"})


def around(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, value - half, value + half)


def compared(metric: str, value: float, *, baseline: bool, half: float = 0.01) -> ComparedMetric:
    """A figure, and one of the baseline that is a little worse."""
    better = "lower" if metric in LOWER else "higher"
    worse = value * (1.02 if better == "lower" else 0.98)
    return ComparedMetric(
        metric,
        better,
        around(value, half),
        around(worse, half) if baseline else None,
        around(abs(value - worse), half / 2) if baseline else None,
        "paired bootstrap",
        0.0123 if baseline else None,
    )


def made_slices(names: Sequence[str], *, kind: str, baseline: bool, small: int = 0) -> tuple[Slice, ...]:
    """Slices whose first figure falls with their place; the last ``small`` are too small to be judged."""
    found = []
    for index, name in enumerate(names):
        rows = 40 if index >= len(names) - small else 1_000 + index
        share = 1 - index / (2 * max(1, len(names)))
        figures = {
            metric: compared(metric, value * share, baseline=baseline, half=0.03)
            for metric, value in METRICS[kind].items()
        }
        reason = "40 of at least 200 rows" if rows == 40 else ""
        counts = (rows - rows // 5, rows // 5) if kind == "binary" else ()
        found.append(Slice(name, rows, counts, figures, reason))
    return tuple(found)


def line(points: int = 60, bend: float = 3.0) -> CurveLine:
    x = np.linspace(0, 1, points)
    return CurveLine(x, 1 - (1 - x) ** bend, np.linspace(1, 0, points))


def bins(scale: float = 1.0) -> CalibrationBins:
    score = np.linspace(0.05, 0.9, 10) * scale
    observed = score * 0.9 + 0.02 * scale
    return CalibrationBins(score, observed, observed - 0.05 * scale, observed + 0.05 * scale)


def made_curves(kind: str, classes: Sequence[str], bend: float) -> PlotData:
    edges = np.linspace(0, 1, 21)
    counts = np.arange(20, 0, -1) * 10
    if kind == "binary":
        series = {"late = 0": counts, "late = 1": counts[::-1]}
        name = "late = 1"
        return PlotData(
            {name: line(bend=bend)}, {name: line(bend=0.4)}, {name: bins()}, Histogram(edges, series)
        )
    if kind == "multiclass":
        each = {name: line(bend=bend) for name in classes}
        return PlotData(each, each, {name: bins() for name in classes})
    name = "error" if kind == "regression" else "loss of a row"
    calibration = {"late": bins(100)} if kind == "regression" else {}
    return PlotData(calibration=calibration, histogram=Histogram(edges * 60 - 30, {name: counts}))


Fairness = tuple[tuple[Slicing, ...], tuple[Disparity, ...]]


def made_fairness(columns: Sequence[tuple[str, ...]], groups: int, *, baseline: bool) -> Fairness:
    found, disparities = [], []
    for names in columns:
        members = []
        for index in range(groups):
            name = ", ".join(f"{column} = {index}" for column in names)
            rate = wilson(300 + 100 * index / groups, 1_000)
            figures = {metric: ComparedMetric(metric, "", rate) for metric in ("selection_rate", "recall")}
            members.append(Slice(name, 1_000 + index, (), figures))
        found.append(Slicing(names, tuple(members)))
        disparities.append(
            Disparity(
                "equal_opportunity", names, "groups", around(0.08), around(0.05) if baseline else None,
                around(0.03) if baseline else None, members[0].name, members[-1].name,
            )
        )  # fmt: skip
    disparities.append(
        Disparity("selection_rate_ratio", columns[0], "groups", None, reason="one group has no rows selected")
    )
    return tuple(found), tuple(disparities)


def made_rulings(kind: str, decision: str, cuts: Sequence[Slicing], *, baseline: bool) -> tuple[Ruling, ...]:
    first, value = next(iter(METRICS[kind].items()))
    limit = {"PASS": value - 0.02, "FAIL": value + 0.02, "INCONCLUSIVE": value, "HOLD": value + 0.02}[
        decision
    ]
    rule = Rule(
        name=first, value=value, limit=limit, test=ABOVE,
        interval=(value - 0.01, value + 0.01), broken="HOLD" if decision == "HOLD" else "FAIL",
        needed=0 if decision == "PASS" else 81_000,
    )  # fmt: skip
    rulings = [Ruling(first, decision, f"{first} {value} against {limit:.3f}", (rule,))]
    if cuts:
        cut = cuts[0]
        name = f"recall by {cut.name}"
        rules = tuple(
            Rule(
                name=f"recall of {cut.name} {entry.name}", value=0.05 + 0.001 * index, limit=0.1,
                test=SIZE, interval=(0.02, 0.09),
            )
            for index, entry in enumerate(cut.judged)
        )  # fmt: skip
        small = tuple(
            NotJudged(name=f"{cut.name} = {entry.name}", reason=entry.reason)
            for entry in cut.slices
            if entry.reason
        )
        rulings.append(Ruling(name, "PASS", f"{name} 0.05 of 0.10", rules, small, scope="slice"))
    if baseline:
        gain = Rule(
            name=f"{first} against production", value=0.014, limit=-0.005,
            test=ABOVE, interval=(0.009, 0.019),
        )  # fmt: skip
        rulings.append(
            Ruling(f"{first} against production", "PASS", f"{first} +0.014", (gain,), kind="non_inferiority")
        )
    return tuple(rulings)


def made(
    kind: str = "binary",
    *,
    decision: str = "PASS",
    baseline: bool = True,
    slices: Sequence[tuple[tuple[str, ...], Sequence[str]]] = (),
    small: int = 0,
    classes: Sequence[str] = ("0", "1", "2"),
    fairness: Fairness = ((), ()),
    warnings: tuple[str, ...] = (),
    asked: dict[str, Any] | None = None,
) -> Findings:
    """Findings whose decision is the one that is asked for."""
    two = kind == "binary"
    names = ("late = 0", "late = 1") if two else tuple(classes) if kind == "multiclass" else ()
    size = len(names)
    confusion = tuple(tuple(900 if i == j else 100 // max(1, size) for j in range(size)) for i in range(size))
    cuts = tuple(
        Slicing(columns, made_slices(values, kind=kind, baseline=baseline, small=small))
        for columns, values in slices
    )
    return Findings(
        evaluation=Evaluation.check(asked or {}, "test"),
        kind=kind,  # type: ignore[arg-type]
        sample=Sample(
            "evaluate", 28_618, "late" if kind != "language_model" else "", names,
            (23_820, 4_798) if two else (1_000,) * size, 12, 3, digest=DIGEST,
            class_names=("0", "1") if two else names,
        ),
        baseline=ComparedBaseline("7", "cd" * 32, "ef" * 32) if baseline else None,
        threshold=0.2 if two else None,
        constant=ConstantComparison("log_loss", 0.399, 0.452, around(0.053)),
        overall={name: compared(name, value, baseline=baseline) for name, value in METRICS[kind].items()},
        confusion=confusion,
        baseline_confusion=confusion if baseline else (),
        curves=made_curves(kind, names, 3.0),
        baseline_curves=made_curves(kind, names, 2.5) if baseline else None,
        cuts=cuts,
        groups=fairness[0],
        disparities=fairness[1],
        fitted={name: around(value) for name, value in METRICS[kind].items()},
        overfitting={next(iter(METRICS[kind])): around(0.012)},
        warnings=warnings,
        rulings=made_rulings(kind, decision, cuts, baseline=baseline),
    )  # fmt: skip


def verdict_on(findings: Findings) -> Verdict:
    return Verdict(
        decision=findings.decision,
        rules=tuple(rule for ruling in findings.rulings for rule in ruling.rules),
        judged={"predictions": DIGEST, "predictions.model": "12" * 32, "evaluation": "34" * 32},
        not_judged=tuple(entry for ruling in findings.rulings for entry in ruling.undecided),
        baseline_version=findings.baseline.version if findings.baseline else "",
    )
