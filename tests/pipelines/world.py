"""A place in which the commands of the pages mean something: the files, runs and servers that they name."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.authoring.api.server import Api
from tests.authoring.api.store import Frame
from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.environments import TOOLCHAINS, lock_digest
from trainwright.authoring.images import name as image_name
from trainwright.authoring.submission import progress
from trainwright.tracking import library_digest

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights"
START = "from trainwright.cli.app import main; main()"
MLFLOW = ROOT / ".environments" / "mlflow" / "bin" / "python"

STOCK = """
import sys
from pathlib import Path
from tests.registry.shelf import MODEL, Shelf, stock
from tests.registry.steps import Run
from trainwright.experiment import Registry
from trainwright.registry.register import register
folder = Path(sys.argv[1])
stock(folder / "made", f"sqlite:///{folder}/mlflow.db", count=1)
shelf = Shelf(folder, Registry(model=MODEL, tracking_uri=f"sqlite:///{folder}/mlflow.db"))
shelf.ask("production", 1)
out = folder / "made" / "next"
run = Run(out / "run", weights="next", baseline_version="1")
register(*run.folders, shelf.registry, "abc", out / "r", out / "s.md")
"""
"""A version of flight_late in production, and one that was compared with it."""

RUNS = {"RUN", "0192f3", "1rq7wm", "1rq81c", "<id>", "runs/<id>", "runs/RUN", "runs/0192f3", "runs/1rq7wm"}
ONE_STEP = {"…", "train_and_register"}


@dataclass
class World:
    """One folder, and one stand-in for a cluster's API.

    Attributes:
        folder: Where commands are started.
        api: Answers for every cluster that a page names.
        run: The finished run of the whole pipeline; it is read, and never gone on with.
        made: Whether what is made at its first use was made.
    """

    folder: Path
    api: Api
    run: Path
    made: set[str] = field(default_factory=set)

    def call(self, words: list[str]) -> "subprocess.CompletedProcess[str]":
        """Start a command of ours; a question is answered with yes."""
        return subprocess.run(
            [sys.executable, "-c", START, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
        )

    def once(self, what: str) -> bool:
        """Say whether something has still to be made."""
        fresh = what not in self.made
        self.made.add(what)
        return fresh

    def lay_out(self, job: Path) -> None:
        """Put down what the pages take for granted: the files of a team, and of the repository."""
        for name in ("rows.parquet", "schema.pbtxt"):
            shutil.copy(job / name, self.folder)
        experiment = yaml.safe_load((job / "experiment.yaml").read_text())
        experiment["registry"] = {"model": "flight_late", "tracking_uri": "sqlite:///mlflow.db"}
        experiment["promotion"] = {"path": ["staging", "production"], "four_eyes": False}
        for name in ("experiment.yaml", "flights.yaml"):
            (self.folder / name).write_text(yaml.safe_dump(experiment))
        (self.folder / "token").write_text("of-ci")
        (self.folder / "compiled").symlink_to(ROOT / "compiled")
        (self.folder / "schedules.yaml").write_text(declared())
        self.api.store.script = [Frame("SUCCEEDED", steps("SUCCEEDED"))]
        (self.folder / "runs").mkdir()
        for name in ("0192f3", "0192f4", "0192f5"):
            shutil.copytree(self.run, self.folder / "runs" / name, copy_function=os.link)

    def images(self) -> None:
        """Write down the digests of images that were built from the library as it is now."""
        (self.folder / "build" / "images").mkdir(parents=True, exist_ok=True)
        for name in ("images.json", "build/images/images.json"):
            (self.folder / name).write_text(json.dumps(pushed()))

    def registry(self) -> None:
        """Register two versions, of which the first is in production."""
        if self.once("registry"):
            done = subprocess.run(
                [MLFLOW, "-W", "ignore", "-c", STOCK, self.folder],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr

    def submitted(self, state: str) -> str:
        """Return a run on the cluster in a state."""
        store = self.api.store
        if self.once("submitted"):
            store.make_experiment({"display_name": "by hand", "namespace": "team-a"})
            pipeline = store.make_pipeline({"name": "by-hand"}).pipeline_id
            package = catalog.pipeline("train_and_register").read_bytes()
            store.upload_version({"pipelineid": pipeline, "name": "one"}, package)
        version = store.pipeline_versions[0]
        reference = {"pipeline_id": version.pipeline_id, "pipeline_version_id": version.pipeline_version_id}
        body = {"experiment_id": store.experiments[0].experiment_id, "display_name": "by hand"}
        store.script = [Frame(state, steps(state))]
        run = store.make_run(body | {"pipeline_version_reference": reference}).run_id
        store.look(run).finished_at = store.start
        store.frames[run] = []  # it stays as it is until it is tried again
        store.script = [Frame("RUNNING"), Frame("SUCCEEDED", steps("SUCCEEDED"))]  # when it is tried again
        return str(run)


def steps(state: str) -> dict[str, str]:
    """Name every task of the pipeline, as the API does, all in one state."""
    pipeline = pipeline_spec.read(catalog.pipeline("train_and_register"))
    named = [
        *progress.names(pipeline),
        *(one.group for one in progress.branches(pipeline) if not one.explains),
    ]
    return dict.fromkeys(named, state)


def pushed() -> dict[str, Any]:
    """What ``make images PUSH=`` writes, as far as compiling reads it."""
    return {
        "schema_version": 1,
        "images": {
            image_name(toolchain): {
                "reference": f"registry.example/team/trainwright/{toolchain}@sha256:{'ab' * 32}",
                "lock_sha256": lock_digest(toolchain),
                "library_sha256": library_digest(),
            }
            for toolchain in TOOLCHAINS
        },
    }


def declared() -> str:
    """Return the file of schedules as its page has it."""
    text = (ROOT / "docs" / "schedules.md").read_text()
    return text.split("```yaml\n", 1)[1].split("```", 1)[0]
