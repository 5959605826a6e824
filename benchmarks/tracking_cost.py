"""What MLflow costs a training: steps a second with its server there, down, and silent, against no server.

``python benchmarks/tracking_cost.py [--repeats N] [--steps N]`` trains a small network on random rows in one
process, a point of every curve each step, in turn: without a server, with a real one, with an address where
nobody listens, with one that takes connections and never answers; and as the peer the usual way, MLflow's own
``log_metrics`` between the steps, to the real server. Each run is a process of its own.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from results import publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.ports import free_port
from tests.tracking.server import mlflow_server

GOAL = 0.05
TORCH = Path(__file__).resolve().parents[1] / ".environments" / "torch" / "bin" / "python"

RUN = """
import json, sys, time
from pathlib import Path
import torch
from trainwright.experiment import ResolvedTraining
from trainwright.train.config import TrainConfig
from trainwright.train.process_group import Ranks
from trainwright.train.recorder import TrainingRecorder
from trainwright.train.loop import StepReport
steps, way, uri, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
rows, label = torch.randn(65536, 64), torch.randint(0, 2, (65536, 1)).float()
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(net.parameters())
if way == "peer":
    import mlflow
    mlflow.set_tracking_uri(uri)
    mlflow.start_run()
    curves = None
else:
    config = TrainConfig(
        attempt="0001", home=str(folder), training_set="", data_version="", network={}, processes=1,
        training=ResolvedTraining(
            epochs=1, batch_size=4096, learning_rate=1e-3, tracking={"every_steps": 1}
        ).model_dump(mode="json"),
        destination={"uri": uri, "experiment": "trainwright", "run": ""} if uri else {},
    )
    curves = TrainingRecorder(config, Ranks(0, 1, 0, 1, torch.device("cpu")), folder)
def step(number):
    part = slice((number * 4096) % 65536, (number * 4096) % 65536 + 4096)
    optimizer.zero_grad()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(net(rows[part]), label[part])
    loss.backward()
    optimizer.step()
    if curves:
        curves.on_step(StepReport(number + 1, steps, 1, float(loss), 1.0, 0.001, (number + 1) * 4096))
    else:
        values = {"loss": float(loss), "norm": 1.0, "rate": 0.001, "speed": 1.0, "epoch": 1.0}
        mlflow.log_metrics(values, step=number)
for number in range(20):
    step(number)
time.sleep(2.0 if uri else 0.0)  # until the shipper has imported MLflow, which a training does once
start = time.perf_counter()
for number in range(20, steps):
    step(number)
print(json.dumps((steps - 20) / (time.perf_counter() - start)))
if curves:
    curves.close(ended="done")
"""


@contextmanager
def silent() -> Iterator[str]:
    """Take connections, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def take() -> None:
            while True:
                held.append(listener.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def measure(steps: int, way: str, uri: str, folder: Path) -> float:
    """Return steps a second."""
    folder.mkdir(parents=True)
    command = [str(TORCH), "-W", "ignore", "-c", RUN, str(steps), way, uri, str(folder)]
    calm = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | calm)
    return float(json.loads(done.stdout.splitlines()[0]))


def main() -> int:
    """Measure in turn, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500)
    given = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="trainwright-tracking-") as name, silent() as mute:
        server = Path(name) / "server"
        server.mkdir()
        with mlflow_server(server) as port:
            there = f"http://127.0.0.1:{port}"
            ways = {"none": "", "there": there, "down": f"http://127.0.0.1:{free_port()}", "silent": mute}
            for turn in range(given.repeats):
                for way, uri in ways.items():
                    rate = measure(given.steps, "ours", uri, Path(name) / str(turn) / way)
                    found.setdefault(way, []).append(rate)
                peer = measure(max(given.steps // 10, 40), "peer", there, Path(name) / str(turn) / "peer")
                found.setdefault("there, log_metrics each step", []).append(peer)
    base = statistics.median(found["none"])
    cost = {way: 1 - statistics.median(rates) / base for way, rates in found.items()}
    rows = [
        [
            way,
            *(f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates))),
            f"{cost[way]:.1%}",
        ]
        for way, rates in found.items()
    ]
    worst = max(cost[way] for way in ("there", "down", "silent"))
    line = f"tracking_cost: {worst:.1%} slower at worst (goal below {GOAL:.0%})"
    header = ("MLflow's server", "steps/s", "least", "most", "slower")
    return publish("tracking_cost", header, rows, line, worst < GOAL)


if __name__ == "__main__":
    sys.exit(main())
