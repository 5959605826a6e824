"""Measurements of ``benchmarks/gpu.py``, in the environment of torch.

``python -m benchmarks.steps.gpu WHAT FOLDER SIZE`` prints one line of JSON; ``SIZE`` is ``gpu`` or ``small``.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import torch

from benchmarks.steps import SEED
from benchmarks.steps.flops import flops_per_token, peak_flops
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import TrainwrightError
from trainwright.experiment import LanguageModel, ResolvedTraining
from trainwright.experiment.training import Checkpointing, Feeding
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.checkpoint import Checkpointer, committed
from trainwright.train.feeding.loader import Loader, SampleOrder
from trainwright.train.feeding.tokens import TokenSequences, TokenSource, count_tokens, encode_tokens
from trainwright.train.loop import TrainingLoop
from trainwright.train.parallel import make_deterministic
from trainwright.train.process_group import Ranks, process_group
from trainwright.train.step import Stepper
from trainwright.train.submit import TrainRequest, submit

CORPUS = "corpus"
SMALL_NETWORK = LanguageModel(vocabulary=512, context=64, width=64, layers=2, heads=4)
SIZES: dict[str, dict[str, Any]] = {
    "gpu": {
        "network": LanguageModel(
            vocabulary=32_768, context=2048, width=2048, layers=20, heads=16, hidden=5504
        ),
        "batch": 32,
        "micro": 8,
        "steps": 20,
        "sequences": 512,
    },
    "small": {"network": SMALL_NETWORK, "batch": 8, "micro": 4, "steps": 20, "sequences": 64},
}
"""The model of size ``gpu`` has 1.08 billion parameters."""


def corpus(folder: Path, size: dict[str, Any]) -> None:
    """Write a snapshot of random tokens."""
    random, context = np.random.default_rng(SEED), size["network"].context
    tokens = random.integers(0, size["network"].vocabulary, (size["sequences"] + 1, context))
    rows = {
        "id": [f"row-{index}" for index in range(len(tokens))],
        "tokens": pa.array(list(tokens.astype(np.int32)), pa.list_(pa.int32())),
    }
    splits = {"train": [pa.table(rows)], "evaluate": [pa.table(rows).slice(0, 4)]}
    tables.write_snapshot(folder, splits, parents={}, roles={"key": "id"})


def trainer(folder: Path, size: dict[str, Any], ranks: Ranks) -> dict[str, float]:
    """Train with the product's loop, loader and checkpoints; return seconds of the steps and of waiting."""
    make_deterministic()
    network, batch, count = size["network"], size["batch"], size["steps"]
    training = ResolvedTraining(
        epochs=1,
        learning_rate=1e-3,
        batch_size=batch,
        micro_batch=size["micro"],
        steps=count,
        seed=SEED,
        schedule="constant",
        precision="bf16",
        compile=True,
    )
    architecture = make(network)
    module = architecture.build(Inputs(Target("tokens"))).to(ranks.device)
    stepper = Stepper(module, architecture, training, ranks)
    samples = _samples(folder, network, ranks)
    order = SampleOrder(len(samples), batch, 8, SEED)
    pin = ranks.device.type == "cuda"
    warm_up = training.model_copy(update={"steps": 3})
    with Loader(samples, order, 0, 1, pin=pin) as loader:
        TrainingLoop(stepper, loader, warm_up, ranks).run()
    saves = Checkpointer(Checkpointing(every_steps=count // 2), folder / "saved", "0001", {}, ranks)
    with Loader(samples, order, 0, 1, pin=pin) as loader:
        result = TrainingLoop(stepper, loader, training, ranks).run()
        waited = loader.waited_s
    with Loader(samples, order, 0, 1, pin=pin) as loader:
        saving = TrainingLoop(stepper, loader, training, ranks, saves).run()
    return {
        "step_s": result.seconds / count,
        "waited": waited / result.seconds,
        "stall_s": saves.stall_s / 2,  # one save in the middle, one at the end
        "longer_s": max(saving.seconds - result.seconds, 0.0),
    }


def bare(folder: Path, size: dict[str, Any], ranks: Ranks, *, deterministic: bool) -> dict[str, float]:
    """Train the same model in a loop that does nothing but train, on tokens in memory."""
    torch.manual_seed(SEED)
    if deterministic:
        make_deterministic()
    network, batch, micro = size["network"], size["batch"], size["micro"]
    architecture = make(network)
    module = architecture.build(Inputs(Target("tokens"))).to(ranks.device)
    compiled, loss_of = torch.compile(module), torch.compile(architecture.loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    samples = _samples(folder, network, ranks)
    tokens = samples.take(np.arange(len(samples))).to(ranks.device)

    def run(steps: int) -> float:
        began = time.monotonic()
        for step in range(steps):
            optimizer.zero_grad()
            for first in range(step * batch, (step + 1) * batch, micro):
                part = tokens.part(first % len(tokens), first % len(tokens) + micro)
                with torch.autocast(ranks.device.type, torch.bfloat16):
                    output = compiled(*part.inputs)
                (loss_of(output, part.target).mean() * micro / batch).backward()
            optimizer.step()
        if ranks.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - began

    run(3)
    return {"step_s": run(size["steps"]) / size["steps"]}


def _samples(folder: Path, network: LanguageModel, ranks: Ranks) -> TokenSequences:
    source = TokenSource(folder / CORPUS, Snapshot.read(folder / CORPUS), "train", network)
    return encode_tokens(source, count_tokens(source, ranks), folder / "encoded", ranks, Feeding())


def facts(folder: Path, size: dict[str, Any], ranks: Ranks) -> dict[str, Any]:  # noqa: ARG001 - as the others
    """Return the size of the model, and the device with its peak."""
    network, cuda = size["network"], ranks.device.type == "cuda"
    device = torch.cuda.get_device_name(ranks.device) if cuda else "CPU"
    module = make(network).build(Inputs(Target("tokens")))
    return {
        "device": device,
        "parameters": sum(entry.numel() for entry in module.parameters()),
        "tokens": size["batch"] * network.context,
        "flops": flops_per_token(network),
        "peak": peak_flops(device),
    }


def endings(folder: Path, size: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Run the step ``train`` until memory ends, the loss is not finite, or a kill; return what it reports."""
    cuda = ranks.device.type == "cuda"
    long = {"steps": 400, "checkpoints": {"every_steps": 20}}
    corpus(folder / "small", SIZES["small"])
    small = _request(folder / "small", SMALL_NETWORK, cuda=cuda)
    found = {"nan": _error(replace(small, training=small.training | {"learning_rate": 1e38}), folder / "nan")}
    if cuda:
        large = _request(folder / CORPUS, size["network"], cuda=True)
        whole = {"batch_size": size["sequences"], "micro_batch": size["sequences"]}
        found["oom"] = _error(replace(large, training=large.training | whole), folder / "oom")
    request = replace(small, training=small.training | long)
    found["undisturbed"] = _model(request, folder / "undisturbed")
    killer = threading.Thread(target=_kill_rank, args=(folder / "killed", found), daemon=True)
    killer.start()
    found["resumed"] = _model(request, folder / "killed")
    return found


def _request(training_set: Path, network: LanguageModel, *, cuda: bool) -> TrainRequest:
    training = {"steps": 20, "batch_size": 8, "seed": SEED, "guards": {"early_stopping": "never"}}
    return TrainRequest(
        training_set=training_set,
        data_version=Snapshot.read(training_set).digest,
        network=network.model_dump(mode="json", exclude_none=True),
        training=training,
        resources={"launcher": "local", "processes": 1, "gpus": int(cuda)},
        image="",
        run="file:///benchmarks/gpu",
    )


def _model(request: TrainRequest, folder: Path) -> str:
    places = (folder / name for name in ("model", "predictions", "summary.md", "report.html"))
    return submit(request, *places).model_version


def _error(request: TrainRequest, folder: Path) -> list[object]:
    try:
        _model(request, folder)
    except TrainwrightError as error:
        return [error.code, error.what, error.hint]
    return [0, "the training succeeded", ""]


def _kill_rank(folder: Path, found: dict[str, Any]) -> None:
    """Kill the training process with SIGKILL after step 100 is saved; record the step."""
    while True:
        saved = [name.step for path in folder.glob(".model.job-*/checkpoints") for name in committed(path)]
        if max(saved, default=0) >= 100:
            break
        time.sleep(0.02)
    for process in psutil.Process().children(recursive=True):
        if "trainwright.train" in process.cmdline() and "trainwright.launch.agent" not in process.cmdline():
            process.send_signal(signal.SIGKILL)
            found["killed_after"] = max(saved)


def main(what: str, folder: str, name: str) -> None:
    """Measure, and print the result as one line."""
    size, place = SIZES[name], Path(folder)
    measurements: dict[str, Callable[[Path, dict[str, Any], Ranks], dict[str, Any]]] = {
        "facts": facts,
        "trainer": trainer,
        "bare": partial(bare, deterministic=False),
        "deterministic": partial(bare, deterministic=True),
        "endings": endings,
    }
    if not (place / CORPUS).exists():
        corpus(place / CORPUS, size)
    with process_group(int(name == "gpu")) as ranks:
        found = measurements[what](place, size, ranks)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
