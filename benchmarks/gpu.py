"""A language model of a billion parameters on one NVIDIA GPU: speed against a bare loop, and failures.

``python benchmarks/gpu.py [--python PYTHON]`` trains in turn, in bf16 and compiled: with the loop, loader
and checkpoints of ``train``; in a bare loop over tokens in GPU memory; and in that loop with deterministic
kernels, which ``train`` always uses. Then the step ``train`` itself runs out of memory, meets a loss that is
not finite, and is killed. Without a GPU, it says what it would measure. ``--small`` runs all but the lack of
memory with a small model on the CPU, and stores nothing.

Model FLOPs utilization counts 6 N + 12 L W T operations a token (``steps.flops.flops_per_token``).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from results import publish

ROOT = Path(__file__).resolve().parents[1]
TORCH = ROOT / ".environments" / "torch" / "bin" / "python"
EVERY_S = 600
"""Seconds between checkpoints by default."""

RATIO, STALL, WAITED = 1.0, 0.01, 0.02
LOOPS = ("trainer", "bare", "deterministic")
PLAN = """no NVIDIA GPU is visible to {python}. With one, this would measure, for a language model of 1.08
billion parameters in bf16:
- tokens a second and model FLOPs utilization of the trainer, as a ratio of a bare loop (goal at least 1.0)
- standstill for a checkpoint every ten minutes (goal below 1 %), and waiting for samples (goal below 2 %)
- the exit codes of a training that runs out of GPU memory (10) or whose loss is not finite (30)
- the model of a training that is killed and resumes (goal: the digest of an undisturbed one)
It needs about 60 GiB of GPU memory, and torch with CUDA: trainwright setup torch --variant gpu"""


def measure(what: str, folder: Path, size: str, python: Path) -> Any:
    """Run one measurement in a process of its own, and return its result."""
    settings = {"PYTHONPATH": str(ROOT), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [str(python), "-m", "benchmarks.steps.gpu", what, str(folder), size]
    done = subprocess.run(
        command, env=os.environ | settings | alone, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def has_gpu(python: Path) -> bool:
    """Return whether torch sees a GPU."""
    command = [str(python), "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    return shutil.which("nvidia-smi") is not None and subprocess.run(command, check=False).returncode == 0


def loops(folder: Path, size: str, python: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Measure the loops in turn; return the median of each figure, by loop."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for _ in range(rounds):
        for name in LOOPS:
            found[name].append(measure(name, folder, size, python))
            shutil.rmtree(folder / "saved", ignore_errors=True)
    return {
        name: {figure: statistics.median(each[figure] for each in runs) for figure in runs[0]}
        for name, runs in found.items()
    }


def main() -> int:
    """Measure, print the table, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a small model on the CPU; stores nothing")
    parser.add_argument("--python", type=Path, default=TORCH, help="interpreter with torch")
    given = parser.parse_args()
    if not given.small and not has_gpu(given.python):
        print(PLAN.format(python=given.python.name))
        return 0
    size = "small" if given.small else "gpu"
    with tempfile.TemporaryDirectory(prefix="trainwright-gpu-") as name:
        facts = measure("facts", Path(name), size, given.python)
        found = loops(Path(name), size, given.python, given.rounds)
        ended = measure("endings", Path(name), size, given.python)
    table, line, met = report(facts, found, ended)
    if given.small:
        print("\n".join(" | ".join(row) for row in table), line, sep="\n")
        return 0
    return publish(
        "gpu", (f"LM, {facts['parameters'] / 1e9:.2f} billion parameters", "value"), table, line, met
    )


def report(
    facts: dict[str, Any], found: dict[str, dict[str, float]], ended: dict[str, Any]
) -> tuple[list[list[str]], str, bool]:
    """Return the table, the line that sums it up, and whether the goals are met."""
    ours = found["trainer"]
    ratio, stall = found["bare"]["step_s"] / ours["step_s"], ours["stall_s"] / EVERY_S
    codes = [ended[cause][0] for cause in ("oom", "nan") if cause in ended]
    same = "killed_after" in ended and ended["resumed"] == ended["undisturbed"]
    table = []
    for name in LOOPS:
        speed = facts["tokens"] / found[name]["step_s"]
        use = f", MFU {speed * facts['flops'] / facts['peak']:.1%}" if facts["peak"] else ""
        table.append([f"{name}, tokens a second", f"{speed:,.0f}{use}"])
    table += [
        [
            "a checkpoint stops the steps for",
            f"{ours['stall_s']:.2f} s, and makes them {ours['longer_s']:.2f} s longer",
        ],
        ["waiting for samples", f"{ours['waited']:.2%}"],
        *(
            [f"exit code, {cause}", f"{ended[cause][0]}: {ended[cause][1]}"]
            for cause in ("oom", "nan")
            if cause in ended
        ),
        [
            "killed",
            f"after step {ended.get('killed_after')}: {'the same model' if same else 'another model'}",
        ],
    ]
    line = (
        f"gpu: {ratio:.3f} of a bare loop on one {facts['device']} (goal {RATIO}), "
        f"standstill {stall:.2%} (goal below {STALL:.0%}), "
        f"waiting {ours['waited']:.2%} (goal below {WAITED:.0%}), exit codes {codes} (goal 10, 30), "
        f"resumed with {'an equal' if same else 'another'} model (goal equal)"
    )
    met = ratio >= RATIO and stall < STALL and ours["waited"] < WAITED and codes == [10, 30] and same
    return table, line, met


if __name__ == "__main__":
    sys.exit(main())
