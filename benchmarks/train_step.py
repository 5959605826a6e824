"""What the training loop costs beside the model: ours against a bare loop written by hand, in one process.

``python benchmarks/train_step.py`` trains the same models on the same rows in memory, in turn with
:class:`trainwright.train.loop.TrainingLoop` and with the shortest loop that trains (gather, forward, loss,
backward, AdamW), one thread each, blocks of steps in turn in one process. Then two processes of one thread
share the batches that one process had, for a model whose time is in its matrices; goal: 1.8 times on two
cores. What the machine itself allows is measured beside it: two such trainings of half the batch without
exchange.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TORCH = ROOT / ".environments" / "torch" / "bin" / "python"
OVERHEAD_GOAL, SCALING_GOAL = 0.98, 1.8


def overhead(repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Measure ours and the bare loop in turn; return seconds a step of both, by model."""
    import steps

    from trainwright.experiment import LanguageModel
    from trainwright.train.architectures import Inputs, Target, make
    from trainwright.train.process_group import process_group

    network = LanguageModel(vocabulary=2048, context=128, width=128, layers=4, heads=4)
    models = {
        "MLP 256-128, 8,192 rows": (steps.Perceptron(256, 128), lambda: steps.rows(8192), 24),
        "LM 128 x 4, 16 x 128 tokens": (make(network), lambda: steps.sequences(network, 512, 16), 8),
    }
    found: dict[str, list[tuple[float, float]]] = {}
    with process_group(0) as group:
        for name, (architecture, data, count) in models.items():
            module = architecture.build(Inputs(Target("tokens")))
            hand = steps.bare(architecture, copy.deepcopy(module), data())
            loop = steps.ours(architecture, module, data(), group)
            hand(count)
            loop(count)
            found[name] = [(loop(count) / count, hand(count) / count) for _ in range(repeats)]
    return found


def scaling(repeats: int, *, alone: bool = False) -> list[float]:
    """Return rows a second of this many processes, each time; each may also train by itself, on its share."""
    import steps

    from trainwright.train.architectures import Inputs, Target
    from trainwright.train.process_group import process_group

    batch, count = 8192, 8
    with process_group(0) as group:
        architecture = steps.Perceptron(1024, 512)
        module = architecture.build(Inputs(Target("binary")))
        size = batch // group.size if alone else batch
        among = replace(group, rank=0, size=1) if alone else group
        loop = steps.ours(architecture, module, steps.rows(size), among)
        loop(count)
        return [count * batch / loop(count) for _ in range(repeats)]


def measured(what: str, processes: int, python: Path) -> Any:
    """Run one of the measurements above under torchrun, and return what it found."""
    command = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(Path(__file__).resolve()), "--measure", what]
    settings = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-6000:])
    return json.loads(done.stdout.splitlines()[-1])


def on_cpu(repeats: int, python: Path) -> int:
    """Measure overhead and scaling, and publish them."""
    from results import publish

    table, ratios = [], []
    for name, pairs in measured(f"overhead:{repeats}", 1, python).items():
        loop, hand = (statistics.median(times) for times in zip(*pairs, strict=True))
        # Neighbours in time are compared: what else the machine does then weighs on both.
        ratios.append(statistics.median(other / mine for mine, other in pairs))
        table.append([name, f"{hand * 1e3:.2f} ms", f"{loop * 1e3:.2f} ms", f"{ratios[-1]:.3f}"])
    scaled, rows = with_two(max(1, repeats // 3), python)
    line = (
        f"train_step: {min(ratios):.3f} of a bare loop (goal {OVERHEAD_GOAL}), "
        f"{scaled:.2f} times with two processes (goal {SCALING_GOAL})"
    )
    header = ("a step", "bare, or 1 process", "ours, or 2 processes", "ratio")
    met = min(ratios) >= OVERHEAD_GOAL and scaled >= SCALING_GOAL
    return publish("train_step", header, [*table, *rows], line, met)


def with_two(rounds: int, python: Path) -> tuple[float, list[list[str]]]:
    """Measure one process, two, and two that exchange nothing, in turn; return two's gain, and a table."""
    kinds = [("scaling:3", 1), ("scaling:3", 2), ("alone:3", 2)]
    found = [[statistics.median(measured(*kind, python)) for kind in kinds] for _ in range(rounds)]
    ones, twos, apart = zip(*found, strict=True)
    table, gains = [], []
    for name, speeds in (("1 and 2 processes", twos), ("1, and 2 that exchange nothing", apart)):
        gains.append(statistics.median(two / one for one, two in zip(ones, speeds, strict=True)))
        of_one, of_two = statistics.median(ones), statistics.median(speeds)
        figures = f"{of_one:,.0f} rows/s", f"{of_two:,.0f} rows/s", f"{gains[-1]:.2f}"
        table.append([f"MLP 1024-512, {name}", *figures])
    return gains[0], table


def worker(what: str, repeats: str) -> int:
    """Measure in this process, and print what was found if it is the first."""
    import torch

    from trainwright.train.parallel import make_deterministic

    torch.set_num_threads(1)
    # As the trainer does; the bare loop, in the same process, has what it gives too.
    make_deterministic()
    kinds: dict[str, Callable[[], object]] = {
        "overhead": lambda: overhead(int(repeats)),
        "scaling": lambda: scaling(int(repeats)),
        "alone": lambda: scaling(int(repeats), alone=True),
    }
    found = kinds[what]()
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
    return 0


def main() -> int:
    """Measure what is asked for, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--python", type=Path, default=TORCH, help="interpreter with torch")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return worker(*given.measure.split(":"))
    return on_cpu(given.repeats, given.python)


if __name__ == "__main__":
    sys.exit(main())
