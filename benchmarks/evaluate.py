"""A gate over 1 million predictions, 100 slices and 2,000 draws, against Fairlearn's ``n_boot``.

``python benchmarks/evaluate.py [--rows N] [--slices N]`` runs the whole step, from Parquet to verdict and
page, as the component does: two models, a rule on every slice, limits of fairness. The peer is
``MetricFrame(n_boot=...)`` with five rates by the same groups of the same candidate; what one draw costs it
is measured between two small runs, and 2,000 of them are extrapolated. Both bootstraps are compared on a
smaller table: ends of intervals, in units of their Monte Carlo error.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from results import publish

ROOT = Path(__file__).resolve().parents[1]
OURS = ROOT / ".environments" / "tabular" / "bin" / "python"
THEIRS = ROOT / ".environments" / "emulators" / "bin" / "python"
PEER = ROOT / "tests" / "evaluate" / "fairlearn_peer.py"
RESAMPLES, SECONDS, GIB, TIMES = 2000, 20.0, 1.0, 100.0
FEW, MORE = 1, 3
SMALL_ROWS, SMALL_SLICES, SMALL_DRAWS = 6000, 5, 300

MAKE = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from trainwright.tables import write_snapshot
folder, rows, slices = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
draw = np.random.default_rng(0)
chance = draw.beta(2, 5, rows)
label = (draw.random(rows) < chance).astype(np.int64)
place = draw.integers(0, slices, rows)
names = pa.array([f"slice {k:03d}" for k in range(slices)]).take(pa.array(place))
for name, noise in (("candidate", 0.1), ("baseline", 0.12)):
    score = np.clip(chance + draw.normal(0, noise, rows), 0, 1)
    table = pa.table({"id": np.arange(rows), "label": label, "score": score, "place": names})
    roles = {"key": "id", "label": "label", "score": "score"}
    print(write_snapshot(folder / name, {"evaluate": [table]}, parents={"model": name}, roles=roles).digest)
    if name == "candidate":
        np.savez(folder / "table.npz", label=label, chosen=(score >= 0.5).astype(int), score=score,
                 weight=np.ones(rows), group_a=np.char.add("slice ", np.char.zfill(place.astype(str), 3)))
"""

STEP = """
import json, resource, sys, time
from pathlib import Path
started = time.perf_counter()
from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
from trainwright.experiment import Evaluation
folder, ours, theirs = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
section = Evaluation.check(json.loads(sys.argv[4]), "benchmark")
made = evaluate_predictions(folder / "candidate", ours, section, verdict=folder / "verdict",
    report=folder / "report.html", summary=folder / "summary.md",
    baseline=BaselinePredictions(folder / "baseline", theirs, "1"))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": time.perf_counter() - started, "cpu": used.ru_utime + used.ru_stime,
    "gib": used.ru_maxrss / 2**20, "page": (folder / "report.html").stat().st_size, "said": made.headline}))
"""

DRAWS = """
import json, sys
import numpy as np
from trainwright.evaluate.evaluation_data import COUNTS, Sums, features, ratio
from trainwright.significance import Resampler
table, resamples = dict(np.load(sys.argv[1])), int(sys.argv[2])
names, place = np.unique(table["group_a"], return_inverse=True)
columns = features("binary", table["label"], table["score"][:, None], None, 0.5)
sampler = Resampler((len(place),), resamples=resamples, seed=1)
unit = sampler.unit_of(np.arange(len(place)))
sums = sampler.add_up(unit, place.ravel(), len(names), list(columns.values()))
found = Sums(tuple(columns), sampler.draw(sums))
ends = {}
for name, counts in COUNTS.items():
    drawn = ratio(*counts(found))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    ends[name] = {str(n): [a, b, s] for n, a, b, s in zip(names, low, high, drawn.std(axis=0))}
print(json.dumps(ends))
"""


def run(python: Path, *arguments: str) -> list[str]:
    """Run a script, and return the lines that it wrote."""
    done = subprocess.run([str(python), "-W", "ignore", *arguments], check=True, stdout=subprocess.PIPE,
                          text=True, cwd=ROOT)  # fmt: skip
    return done.stdout.splitlines()


def peer(table: Path, draws: int) -> dict[str, Any]:
    """Return the seconds and the ends of Fairlearn's intervals."""
    found: dict[str, Any] = json.loads(
        run(THEIRS, str(PEER), str(table), "--boot", str(draws), "0", "0.025", "0.975")[-1]
    )
    return found


def apart(folder: Path) -> tuple[float, int]:
    """Return how far the ends of both bootstraps lie apart, root mean square in Monte Carlo errors; and ends.

    An end at 2.5 % of B draws errs by sqrt(0.025 * 0.975 / B) divided by the density there, which is 0.0584
    over the standard deviation for a normal. If both draw alike, the mean square is 1.
    """
    run(OURS, "-c", MAKE, str(folder), str(SMALL_ROWS), str(SMALL_SLICES))
    theirs = peer(folder / "table.npz", SMALL_DRAWS)
    ours = json.loads(run(OURS, "-c", DRAWS, str(folder / "table.npz"), str(RESAMPLES))[-1])
    squares = []
    for name, groups in ours.items():
        for group, (low, high, spread) in groups.items():
            error = spread * math.sqrt(0.025 * 0.975 * (1 / RESAMPLES + 1 / SMALL_DRAWS)) / 0.0584
            squares += [
                ((low - theirs["low"][name][group]) / error) ** 2,
                ((high - theirs["high"][name][group]) / error) ** 2,
            ]
    return math.sqrt(sum(squares) / len(squares)), len(squares)


def main() -> int:
    """Measure both, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--slices", type=int, default=100)
    given = parser.parse_args()
    section = {
        "slices": ["place"], "max_slices": given.slices, "resamples": RESAMPLES,
        "rules": [
            {"metric": "recall", "at_least": 0.05, "scope": "slice"},
            {"metric": "auc", "margin": 0.01},
        ],
        "fairness": {"by": ["place"], "limits": {"equalized_odds": 0.5}},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="trainwright-evaluate-") as name:
        folder = Path(name)
        digests = run(OURS, "-c", MAKE, str(folder), str(given.rows), str(given.slices))
        ours = json.loads(run(OURS, "-c", STEP, str(folder), *digests, json.dumps(section))[-1])
        few, more = (peer(folder / "table.npz", draws)["seconds"] for draws in (FEW, MORE))
        away, ends = apart(folder / "small")
    theirs = RESAMPLES * (more - few) / (MORE - FEW)
    times = theirs / ours["seconds"]
    rows = [
        ["whole step", f"{ours['seconds']:.1f} s", f"{ours['gib']:.2f} GiB", "all figures, two models, page"],
        ["of it, processor", f"{ours['cpu']:.1f} s", "", ""],
        ["MetricFrame(n_boot=2000)", f"{theirs:,.0f} s", "", f"extrapolated from {FEW} and {MORE} draws"],
        ["page", "", f"{ours['page'] / 1e6:.2f} MB", f"{given.slices} slices"],
        [
            "intervals apart",
            f"{away:.2f}",
            "",
            f"Monte Carlo errors, root mean square of {ends} ends; alike is 1",
        ],
    ]
    met = ours["seconds"] < SECONDS and ours["gib"] < GIB and times >= TIMES and away < 1.5
    line = (
        f"evaluate: {ours['seconds']:.1f} s, {ours['gib']:.2f} GiB, {times:,.0f} times Fairlearn "
        f"(goal below {SECONDS:.0f} s, {GIB:.0f} GiB, {TIMES:.0f} times)"
    )
    return publish("evaluate", ("1 million rows, 100 slices", "time", "size", "note"), rows, line, met)


if __name__ == "__main__":
    sys.exit(main())
