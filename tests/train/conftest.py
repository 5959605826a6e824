"""One training set, and one training of it that many tests look at."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.train.forked import ForkedLauncher
from tests.train.odd import TARGETS, Made, untrained, with_odd_rows
from tests.train.problems import ROWS, Outcome, flights, note_job, run, write
from trainwright import tables
from trainwright.artifacts import Model, Snapshot
from trainwright.launch.job import Job, Result
from trainwright.tracking import Stopwatch
from trainwright.train.process_group import Ranks, process_group


@pytest.fixture(scope="session")
def training_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot that most tests train on."""
    folder = tmp_path_factory.mktemp("set") / "training_set"
    write(folder, {name: flights(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())})
    return folder


@pytest.fixture(scope="session")
def trained(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training in two processes that went well."""
    return run(training_set, tmp_path_factory.mktemp("trained"))


class Interrupted:
    """A launcher whose job lost its first process while that wrote the model, in an earlier round."""

    name = "local"

    def run(self, job: Job) -> Result:
        for place in ("model", "predictions"):
            (job.folder / place).mkdir()
            (job.folder / place / "half.parquet").write_bytes(b"half of it")
        (job.folder / "half-written").touch()
        note_job(job.name, job.folder)
        return ForkedLauncher().run(job)


@pytest.fixture(scope="session")
def trained_again(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same training, over a shared volume beside its outputs, and with a lost round before it."""
    place = tmp_path_factory.mktemp("again")
    shared = place / "shared"
    own = joined(training_set, place / "training_set", verdict="of this run")
    digest = Snapshot.read(training_set).digest
    joined(training_set, shared / "trainwright" / "snapshots" / digest, verdict="of an earlier run")
    links = {"logs": "https://logs.example/{namespace}/{kind}?job={name}"}
    resources = {"launcher": "pytorchjob", "claim": "team", "mount": str(shared), "links": links}
    return run(own, place / "out", Interrupted(), resources=resources)


def joined(training_set: Path, folder: Path, *, verdict: str) -> Path:
    """Copy a training set, with the record of a join."""
    shutil.copytree(training_set, folder)
    Stopwatch().record(folder, "join", "joined", outputs={"verdict": verdict})
    return folder


@pytest.fixture
def manifest(trained: Outcome) -> Model:
    """The manifest of the model that was trained."""
    return Model.read(trained.model)


@pytest.fixture(scope="module")
def alone() -> Iterator[Ranks]:
    """A group of one process, this one; the module that asked for it leaves it at its end."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
            patch.setenv(name, value)
        torch.use_deterministic_algorithms(mode=True)
        torch.set_num_threads(1)
        with process_group(0) as group:
            yield group


@pytest.fixture(scope="session")
def odd_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set whose splits end with odd rows."""
    folder = tmp_path_factory.mktemp("odd") / "set"
    write(folder, {"train": with_odd_rows(600, 1), "evaluate": with_odd_rows(400, 2)})
    return folder


@pytest.fixture(scope="session", params=["standard", "quantile", "multiclass", "regression"])
def made(odd_set: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Made:
    """The folder of a network, in turn of each kind of target and of scaling."""
    scaling = request.param if request.param == "quantile" else "standard"
    trained = untrained(odd_set, TARGETS.get(request.param, TARGETS["binary"]), scaling)
    folder = tmp_path_factory.mktemp("made") / "model"
    trained.write(folder)
    return Made(folder, trained, tables.read_split(odd_set, Snapshot.read(odd_set), "evaluate"))


@pytest.fixture(scope="session")
def plain_made(odd_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of a network of the usual kind."""
    trained, folder = untrained(odd_set, TARGETS["binary"]), tmp_path_factory.mktemp("plain") / "model"
    trained.write(folder)
    return Made(folder, trained, tables.read_split(odd_set, Snapshot.read(odd_set), "evaluate"))
