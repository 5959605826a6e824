"""Replay studies from the curves of ``tune_curves.py``, with the scheduler and the samplers of ``tune``.

``python tune_replay.py CURVES STUDIES [FIRST_SEED]`` prints, for each seed, the steps after which a search
has a complete trial as good as the best of a random search without rungs, as shares of that search's steps.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.documents import canonical
from trainwright.experiment.training import Tuning
from trainwright.tune.asha import fractions
from trainwright.tune.space import SearchSpace
from trainwright.tune.study import open_study

RANDOM, MOST = 20, 200
"""Trials of the random search, and the most of one that has to reach its best; all its steps count if it
does not."""

SEARCHES = {
    "ASHA": {"sampler": "random"},
    "ASHA, 4 rungs": {"sampler": "random", "pruner": {"rungs": 4}},
    "ASHA, one in 3": {"sampler": "random", "pruner": {"reduction": 3}},
    "ASHA, TPE": {"sampler": "tpe"},
    "Hyperband": {"sampler": "random", "pruner": {"kind": "hyperband"}},
}
"""The first decides, with the defaults of the section. They were chosen in studies with other seeds."""

Curve = Sequence[tuple[int, float]]


def search(curves: Mapping[str, Curve], tuning: Tuning, goal: float) -> tuple[int, float]:
    """Run a study until a complete trial reaches the goal; return the steps taken and the best value."""
    space, steps, best = SearchSpace(tuning, {"kind": "mlp"}, {}), 0, float("inf")
    with tempfile.TemporaryDirectory() as name, open_study(Path(name), {}, space) as study:
        while best > goal and (trial := study.next()):
            curve = curves[canonical(trial.params)]
            total, done = curve[-1][0], trial.rungs[-1].step if trial.rungs else 0
            for fraction in fractions(tuning.pruner):
                seen = [entry for entry in curve if entry[0] <= done]
                if fraction * total <= done:
                    continue
                done = next(step for step, _ in curve if step >= fraction * total)
                steps += done - (seen[-1][0] if seen else 0)
                so_far = [entry for entry in curve if entry[0] <= done]
                if done < total and not study.report(trial.number, total, so_far):
                    study.pause(trial.number, {"steps": done, "total": total})
                    break
            else:
                value = min(loss for _, loss in curve)
                study.complete(trial.number, value, {"steps": done, "total": total})
                best = min(best, value)
    return steps, best


def main(curves: Path, studies: int, first: int = 0) -> None:
    """Replay the studies, and print a JSON line for each."""
    lines = [json.loads(line) for line in curves.read_text().splitlines()]
    known = {canonical(line["point"]): line["curve"] for line in lines}
    space: dict[str, dict[str, list[Any]]] = {}
    for line in lines:
        for key, value in line["point"].items():
            choices = space.setdefault(key, {"choice": []})["choice"]
            choices += [] if value in choices else [value]
    for seed in range(first, first + studies):
        tuning = {"space": space, "seed": seed}
        plain = Tuning.model_validate(
            tuning | {"trials": RANDOM, "sampler": "random", "pruner": {"kind": "none"}}
        )
        steps, goal = search(known, plain, -float("inf"))
        found = {"seed": seed, "steps": steps, "best": goal}
        for name, settings in SEARCHES.items():
            taken, best = search(known, Tuning.model_validate(tuning | {"trials": MOST} | settings), goal)
            found[name] = {"share": taken / steps, "reached": best <= goal}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
