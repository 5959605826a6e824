"""Studies of `tune`: what a trial costs beside its training, how much rungs save, and what kills change.

``python benchmarks/tune.py`` measures three things on the flights of examples/quickstart:

- the time of a trial, beside Optuna's ``optimize`` with a torchrun subprocess per trial, at the same time;
- the steps after which a search with rungs has a model as good as the best of 20 whole random trials, in
  ten studies. Each point of the space is trained once; studies are replayed from its curve of losses;
- a sequential study whose step is killed at random moments until it has been killed 20 times, against one
  that runs undisturbed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from results import publish

from trainwright.authoring.environments import python

ROOT = Path(__file__).resolve().parents[1]
STEPS = ROOT / "benchmarks" / "steps"
EXAMPLE = ROOT / "examples" / "quickstart" / "experiment.yaml"
OVERHEAD_S, OVERHEAD_SHARE, SHARE, KILLS = 0.5, 0.05, 1 / 3, 20
VARIABLES = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
RATES = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]
EARLY = {"early_stopping": {"share": 0.25, "every_steps": 30, "patience": 1000}}


def call(command: list[str | Path], *, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment; end the benchmark with its output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=os.environ | VARIABLES, capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode:
        sys.exit(f"{words}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def training_set(folder: Path) -> Path:
    """Make the training set of the example."""
    command = Path(sys.executable).with_name("trainwright")
    call([command, "run", "train_and_register", "--config", EXAMPLE, "--runs", folder, "--no-cache"])
    return next(folder.glob("*/join/training_set"))


def base(steps: int, trials: int, **tuning: Any) -> dict[str, Any]:
    """Return the sections of a sequential study over the learning rate, without rungs."""
    space = {"training.learning_rate": {"choice": RATES}}
    settings = {"space": space, "trials": trials, "sampler": "grid", "pruner": {"kind": "none"}}
    return {
        "tuning": settings | {"confirm": {"top": 0}} | tuning,
        "network": {"kind": "mlp", "hidden": [32]},
        "training": {"steps": steps, "batch_size": 64, "guards": EARLY},
    }


def measured(command: list[str | Path], count: int) -> tuple[float, float]:
    """Run a program, and return its seconds a trial: of the clock, and of the processors."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [str(word) for word in command], env=os.environ | VARIABLES, stdout=log, stderr=log
        )
        _, status, used = os.wait4(process.pid, 0)
        log.seek(0)
        if status:
            sys.exit(f"{command}\n{log.read()[-4000:]}")
    return (time.perf_counter() - started) / count, (used.ru_utime + used.ru_stime) / count


def overhead(rows: Path, folder: Path, rounds: int) -> list[tuple[float, float, float, float]]:
    """Return the seconds a trial of ours and of the peer, by clock and by processor.

    Both train the same points at the same time, each on one thread: other load weighs on both.
    """
    sections, found = base(600, len(RATES)), []
    points = [{"training.learning_rate": rate} for rate in RATES]
    for turn in range(rounds):
        ours = [python("tune"), STEPS / "tune_ours.py", rows, folder / f"ours-{turn}", json.dumps(sections)]
        peer = [python("tune"), STEPS / "tune_peer.py", python("torch"), rows, folder / f"peer-{turn}"]
        peer += [json.dumps(sections), json.dumps(points), "1"]
        with ThreadPoolExecutor(2) as pool:
            (ours_s, ours_cpu), (peer_s, peer_cpu) = pool.map(
                lambda command: measured(command, len(points)), (ours, peer)
            )
        found.append((ours_s, peer_s, ours_cpu, peer_cpu))
    return found


def rungs(rows: Path, folder: Path, studies: int, curves: Path | None) -> list[dict[str, Any]]:
    """Return the replayed studies; ``curves`` are those of an earlier run."""
    if curves is None:
        curves = folder / "curves.jsonl"
        torchrun = [python("torch"), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        call([*torchrun, STEPS / "tune_curves.py", rows, curves])
    done = call([python("tune"), STEPS / "tune_replay.py", curves, str(studies)])
    return [json.loads(line) for line in done.stdout.splitlines()]


def study_in(folder: Path) -> dict[str, Any]:
    """Read the report of a study."""
    found: dict[str, Any] = json.loads((folder / "study" / "study.json").read_text())
    return found


def killed(rows: Path, folder: Path, kills: int) -> tuple[int, list[str]]:
    """Kill studies until there were so many kills; return them, and what differs from an undisturbed one."""
    dice = random.Random(5)  # noqa: S311
    sections = base(120, 5, sampler="random", pruner={"kind": "asha", "rungs": 2, "reduction": 2})
    sections["tuning"]["space"]["training.weight_decay"] = {"float": [1e-5, 0.1], "log": True}
    command = [str(word) for word in (python("tune"), STEPS / "tune_ours.py", rows)]
    started = time.perf_counter()
    call([*command, folder / "undisturbed", json.dumps(sections)])
    seconds = time.perf_counter() - started
    expected, happened, wrong = finished(folder / "undisturbed"), 0, []
    for turn in range(kills):
        target = folder / f"killed-{turn}"
        while True:
            process = subprocess.Popen(
                [*command, str(target), json.dumps(sections)],
                env=os.environ | VARIABLES,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                limit = dice.uniform(0.05, 0.6) * seconds if happened < kills else 20 * seconds
                code = process.wait(limit)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                happened += 1
        if code:
            wrong.append(f"study {turn}: exit code {code}")
        elif (found := finished(target)) != expected:
            wrong.append(f"study {turn}: {found} instead of {expected}")
        if happened >= kills:
            break
    return happened, wrong


def finished(folder: Path) -> dict[str, Any]:
    """Return what kills must not change: the trials with their values, and the winner."""
    study = study_in(folder)
    trials = [
        {key: trial[key] for key in ("number", "params", "state", "value", "rungs")}
        for trial in study["trials"]
    ]
    return {"trials": trials, "winner": study["confirmation"]["winner"]}


def main() -> int:
    """Measure, print the tables, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--training-set", type=Path, help="training set of an earlier run")
    parser.add_argument("--curves", type=Path, help="curves of an earlier run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--kills", type=int, default=KILLS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-tune-") as name:
        folder = Path(name)
        rows = given.training_set or training_set(folder / "runs")
        times = overhead(rows, folder, given.rounds)
        studies = rungs(rows, folder, given.studies, given.curves)
        kills, wrong = killed(rows, folder, given.kills) if given.kills else (0, [])
    print("\n".join(wrong), file=sys.stderr)
    trial, plain, busy, plain_busy = (statistics.median(column) for column in zip(*times, strict=True))
    more = statistics.median(one - other for one, other, *_ in times)
    table = [
        ["seconds a trial", f"{trial:.2f}", f"{plain:.2f}", f"{more:+.2f}"],
        ["seconds of a processor a trial", f"{busy:.2f}", f"{plain_busy:.2f}", f"{busy - plain_busy:+.2f}"],
        *_shares(studies),
        [f"studies that differ after {kills} kills", f"{len(wrong)}", "", ""],
    ]
    share = statistics.fmean(study["ASHA"]["share"] for study in studies)
    line = (
        f"tune: {more:+.2f} s a trial of {plain:.1f} s against Optuna's optimize, ASHA "
        f"reaches the best of a random search in {share:.1%} of its steps, {len(wrong)} studies differ after "
        f"{kills} kills "
        f"(goal {OVERHEAD_S:g} s or {OVERHEAD_SHARE:.0%}, 33.3%, 0 after {KILLS})"
    )
    met = more <= max(OVERHEAD_S, OVERHEAD_SHARE * plain) and share <= SHARE and not wrong
    header = ("", "ours", "peer", "difference")
    return publish("tune", header, table, line, met and kills >= KILLS)


def _shares(studies: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for name in (name for name, entry in studies[0].items() if isinstance(entry, dict)):
        found = [study[name] for study in studies]
        share = statistics.fmean(entry["share"] for entry in found)
        reached = sum(entry["reached"] for entry in found)
        rows.append([f"steps, {name}", f"{share:.0%}", "100%", f"{reached} of {len(found)} reach its best"])
    return rows


if __name__ == "__main__":
    sys.exit(main())
