"""The demo after set-up, again unchanged, and against the same library functions called in a row.

The peer is no pipeline at all: each step's function is called by a script of three lines, in the environment
of the step, one after the other. Both roads start an interpreter a step and import the same things, so what
is left between them is the pipeline's own cost; it is related to the time spent inside the functions, imports
excluded.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import publish

from trainwright.authoring import arguments, images
from trainwright.authoring.environments import python

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "flights" / "flights.yaml"
FIRST_S, AGAIN_S, OVERHEAD = 180, 10, 0.10

CALL = """
import json, sys, time
from pathlib import Path
given = json.load(sys.stdin)
here = {name: Path(place) for name, place in given["places"].items()}
exec(given["imports"])
started = time.perf_counter()
exec(given["call"])
print(json.dumps({"seconds": time.perf_counter() - started, "made": made}))
"""


@dataclass(frozen=True)
class Step:
    """One step as a plain call: what it imports, and the expression; ``made`` is what later calls need."""

    name: str
    toolchain: str
    imports: str
    call: str


STEPS = (
    Step(
        "configure",
        "launcher",
        "from trainwright.configure.configuration import SECTIONS, Overrides, configure",
        "made = configure({name: given[name] for name in SECTIONS}, Overrides(schema=given['schema']), "
        "here['configuration'])._asdict()",
    ),
    Step(
        "resolve",
        "ingest",
        "from trainwright.resolve.resolve import resolve",
        "made = [resolve(given['source'], here['listing'], given['data']).version, "
        "resolve(given['feature_source'], here['feature_listing']).version, "
        "resolve(given['baseline'], here['baseline_listing']).version, "
        "resolve(given['schema'], here['schema_listing']).version]",
    ),
    Step(
        "get_production_model",
        "mlflow",
        "import mlflow\nfrom trainwright.experiment import Registry\n"
        "from trainwright.get_production_model.production_version import get_production_model",
        "registry = Registry.parse(given['registry'], 'registry')\n"
        "found = get_production_model(registry, here['production'], here['get_production_model.md'])\n"
        "made = [found.model, found.source, found.version]",
    ),
    Step(
        "ingest",
        "ingest",
        "import pyarrow.dataset\nfrom trainwright.experiment import Data\n"
        "from trainwright.ingest.ingest import ingest",
        "made = ingest(given['source'], given['resolve'][0], Data.parse(given['data'], 'data'), "
        "here['snapshot'], here['ingest.md']).digest",
    ),
    Step(
        "validate",
        "tfdv",
        "from trainwright.experiment import Validation\n"
        "from trainwright.validate import validate as v\n"
        "from trainwright.validate.schema import read_schema",
        "made = v.validate_snapshot(here['snapshot'], given['ingest'], "
        "Validation.parse(given['validation'], 'validation'), "
        "v.ValidationContext(read_schema(given['schema'], given['resolve'][3]), given['baseline'], "
        "given['resolve'][2]), v.ValidationOutputs(here['data_verdict'], here['quarantine'], "
        "here['data.html'], here['validate.md']))"
        ".quarantine_version",
    ),
    Step(
        "join",
        "feast",
        "import feast, duckdb, ibis\nfrom trainwright.experiment import Features\n"
        "from trainwright.join.join import make_training_set",
        "made = make_training_set(here['snapshot'], given['ingest'], Features.parse(given['features'], 'f'), "
        "given['resolve'][1], here['training_set'], here['join.md'], quarantine=here['quarantine'], "
        "quarantine_version=given['validate']).digest",
    ),
    Step(
        "train",
        "launcher",
        "from trainwright.train.submit import TrainRequest, submit",
        "done = submit(TrainRequest(here['training_set'], given['join'], given['network'], "
        "given['training'], given['resources'], given['image'], run='benchmark'), here['model'], "
        "here['predictions'], here['train.md'], here['train.html'])\n"
        "made = [done.model_version, done.predictions_version]",
    ),
    Step(
        "score",
        "torch",
        "from trainwright.experiment import Registry\n"
        "from trainwright.score.score import ProductionModelReference, score_rows",
        "registry = Registry.parse(given['registry'], 'registry')\n"
        "asked = ProductionModelReference(*given['get_production_model'][:2], registry)\n"
        "made = score_rows(here['training_set'], given['join'], given['split'], asked, "
        "predictions=here['baseline_predictions'], summary=here['score.md']).predictions_version",
    ),
    Step(
        "evaluate",
        "tabular",
        "import scipy.special\nfrom trainwright.experiment import Evaluation\n"
        "from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions",
        "made = evaluate_predictions(here['predictions'], given['train'][1], "
        "Evaluation.parse(given['evaluation'], 'evaluation'), verdict=here['model_verdict'], "
        "report=here['model.html'], summary=here['evaluate.md'], "
        "baseline=BaselinePredictions(here['baseline_predictions'], given['score'], "
        "given['get_production_model'][2])).decision",
    ),
    Step(
        "smoke_test",
        "torch",
        "from trainwright.smoke_test.trial import try_model",
        "made = try_model(here['model'], given['train'][0], here['trial'], here['smoke_test.md']).digest",
    ),
    Step(
        "register",
        "mlflow",
        "import mlflow\nfrom trainwright.experiment import Registry\n"
        "from trainwright.registry.register import register",
        "made = register(here['model'], given['train'][0], here['data_verdict'], here['model_verdict'], "
        "here['trial'], Registry.parse(given['registry'], 'registry'), 'none', here['registration'], "
        "here['register.md']).version",
    ),
)
PLACES = [
    "configuration",
    "schema_listing",
    "listing",
    "feature_listing",
    "baseline_listing",
    "snapshot",
    "ingest.md",
    "data_verdict",
    "quarantine",
    "data.html",
    "validate.md",
    "training_set",
    "join.md",
    "model",
    "predictions",
    "train.md",
    "train.html",
    "model_verdict",
    "model.html",
    "evaluate.md",
    "production",
    "get_production_model.md",
    "baseline_predictions",
    "score.md",
    "trial",
    "smoke_test.md",
    "registration",
    "register.md",
]


def in_a_row(given: dict[str, Any], folder: Path) -> dict[str, tuple[float, float]]:
    """Call the functions one after the other.

    Returns:
        Seconds of the whole process and of the function inside it, by step.
    """
    given = given | {"places": {name: str(folder / name) for name in PLACES}, "image": images.TORCH}
    times = {}
    for step in STEPS:
        script = json.dumps(given | {"imports": step.imports, "call": step.call})
        started = time.perf_counter()
        done = subprocess.run(
            [python(step.toolchain), "-c", CALL], input=script, check=True, stdout=subprocess.PIPE, text=True
        )
        said = json.loads(done.stdout.splitlines()[-1])
        times[step.name] = (time.perf_counter() - started, said["seconds"])
        given |= said["made"] if step.name == "configure" else {step.name: said["made"]}
    return times


def pipeline(runs: Path, config: Path) -> tuple[float, dict[str, float]]:
    """Run the pipeline through the command line; seconds in all, and by step."""
    command = [Path(sys.executable).with_name("trainwright"), "run", "train_and_register"]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--config", config, "--runs", runs, "--json"], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return seconds, {event["step"]: event["seconds"] for event in said if event["event"] == "task_finished"}


def own_registry(folder: Path, name: str) -> Path:
    """Copy the experiment with a registry of its own, so that both roads register a first version."""
    text = CONFIG.read_text()
    place = text.split("tracking_uri:")[1].split()[0]
    copy = CONFIG.with_name(f".{name}.yaml")
    copy.write_text(text.replace(place, f"sqlite:///{folder}/{name}.db"))
    return copy


def main() -> int:
    """Measure both roads once each, print the table, and say whether the three goals are met."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        copies = [own_registry(folder, name) for name in ("pipeline", "row")]
        try:
            first, steps = pipeline(folder / "runs", copies[0])
            again, _ = pipeline(folder / "runs", copies[0])
            direct = in_a_row(arguments.read(copies[1]), folder / "row")
        finally:
            for copy in copies:
                copy.unlink()
    work = sum(inside for _, inside in direct.values())
    whole = sum(process for process, _ in direct.values())
    overhead = (first - whole) / work
    rows = []
    for name, (process, inside) in direct.items():
        shown = sum(seconds for step, seconds in steps.items() if step.partition("-")[0] == name)
        rows.append([name, f"{shown:.2f}", f"{process:.2f}", f"{inside:.2f}"])
    rows.append(["all", f"{first:.2f}", f"{whole:.2f}", f"{work:.2f}"])
    line = (
        f"demo: {first:.0f} s, again {again:.1f} s, overhead {overhead:.1%} "
        f"(goal {FIRST_S} s, {AGAIN_S} s, {OVERHEAD:.0%})"
    )
    met = first <= FIRST_S and again <= AGAIN_S and overhead <= OVERHEAD
    header = ("step", "pipeline s", "in a row s", "of it inside the function s")
    return publish("demo", header, rows, line, met)


if __name__ == "__main__":
    sys.exit(main())
