import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import sysconfig
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from mlflow import MlflowClient

from tests.registry.steps import DATA, LOCKS, PREDICTIONS, SOURCE, TRAINING_SET, Run, record
from trainwright.artifacts import Model, Record, Trial
from trainwright.documents import digest_file
from trainwright.errors import DependencyError, InputError, PermissionRefused
from trainwright.experiment import Registry
from trainwright.registry import register as register_module
from trainwright.registry.audit import read_note
from trainwright.registry.register import Registration, register
from trainwright.registry.signing import Keyring
from trainwright.registry.versions import (
    create_version,
    find_version,
    open_run,
    point_candidate,
    settle_version,
    version_page,
)
from trainwright.tracking.run_log import RunEntry, RunLog, settle_retried, write_log
from trainwright.tracking.server import open_client

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated",  # MLflow 3.17's own models, under SQLAlchemy 2.1
    "ignore:unclosed database",  # MLflow leaves its connection pool to the garbage collector
)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An empty MLflow database, made once: making one takes MLflow seconds."""
    path = tmp_path_factory.mktemp("fresh") / "mlflow.db"
    open_client(f"sqlite:///{path}").search_experiments()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.read_bytes()


@pytest.fixture
def registry(tmp_path: Path, fresh: bytes) -> Registry:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").write_bytes(fresh)
    return Registry(model="flight_late", tracking_uri=f"sqlite:///{tmp_path}/mlflow/mlflow.db", retry_s=20)


def enter(
    run: Run, registry: Registry, name: str = "out", commit: str = "abc123", pipeline_run: str = ""
) -> Registration:
    out = run.root.parent / name
    return register(*run.folders, registry, commit, out / "registration", out / "summary.md", pipeline_run)


def test_retried_run_that_registers_is_no_longer_failed_in_mlflow(run: Run, registry: Registry) -> None:
    """Kubeflow's Retry repeats no `summarize` that ended, which logged the first end."""
    client, ids = open_client(registry.tracking_uri), ("9f7c-retried", "9f7c-other")
    logged = {}
    for number in ids:
        tags = {"run": number, "state": "failed", "headline": "Failed in join", "error_code": "21"}
        entry = RunEntry(
            key=number, name=number, status="FAILED", started_ms=1, ended_ms=2,
            tags={f"trainwright.{name}": value for name, value in tags.items()},
        )  # fmt: skip
        log = RunLog(uri=registry.tracking_uri, experiment="trainwright", joined="", run=entry, steps=())
        logged[number] = write_log(log, client).info.run_id
    enter(run, registry, pipeline_run=ids[0])
    done, other = (client.get_run(logged[number]) for number in ids)
    assert done.info.status == "FINISHED"
    shown = {name: done.data.tags[f"trainwright.{name}"] for name in ("state", "registered", "headline")}
    assert shown == {
        "state": "done", "registered": "flight_late version 1",
        "headline": "flight_late version 1, alias candidate, data PASS",
    }  # fmt: skip
    assert "trainwright.error_code" not in done.data.tags
    assert (other.info.status, other.data.tags["trainwright.state"]) == ("FAILED", "failed")


def test_settling_that_mlflow_interrupts_is_completed_by_the_next_attempt(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_client(registry.tracking_uri)
    change, left = MlflowClient.set_tag, [0]

    def interrupted(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("MLflow is away")
        change(*arguments)

    for changes in range(1, 5):
        tags = {"trainwright.run": f"run-{changes}", "trainwright.state": "failed"}
        made = client.create_run("0", tags=tags).info.run_id
        client.set_terminated(made, "FAILED")
        monkeypatch.setattr(MlflowClient, "set_tag", interrupted)
        left[0] = changes
        with pytest.raises(OSError, match="MLflow is away"):
            settle_retried(client, f"run-{changes}", "m version 1, alias candidate")
        settle_retried(client, f"run-{changes}", "m version 1, alias candidate")
        monkeypatch.undo()
        done = client.get_run(made)
        assert done.info.status == "FINISHED", changes
        assert done.data.tags["trainwright.headline"] == "m version 1, alias candidate"
        assert (done.data.tags["trainwright.state"], done.data.tags["trainwright.registered"]) == (
            "done",
            "m version 1",
        )


def test_a_passed_model_becomes_version_1_with_alias_tags_and_files(run: Run, registry: Registry) -> None:
    made = enter(run, registry)
    client = open_client(registry.tracking_uri)
    version = client.get_model_version_by_alias("flight_late", "candidate")
    assert (version.version, made.version) == (1, "1")
    expected = {
        "trainwright.git_sha": "abc123",
        "trainwright.data_digest": DATA,
        "trainwright.training_data_digest": TRAINING_SET,
        "trainwright.source_digest": SOURCE,
        "trainwright.model_digest": run.model.digest,
        "trainwright.data_decision": "PASS",
        "trainwright.verdict_sha256": made.verdicts["model_verdict"],
        "trainwright.idempotency_key": made.key,
    }
    assert expected.items() <= version.tags.items()
    locks = json.loads(version.tags["trainwright.environment_locks"])
    assert LOCKS.items() <= locks.items()
    assert set(locks) - set(LOCKS) == {"register"}
    stored = Path(version.source.removeprefix("file://"))
    assert Model.read(stored) == run.model
    for entry in run.model.files:
        assert digest_file(stored / entry.path) == entry.sha256
    finished = client.get_run(version.run_id)
    assert finished.info.status == "FINISHED"
    assert finished.data.params == {
        "network.hidden": "[256, 128]",
        "network.dropout": "0.1",
        "training.epochs": "3",
    }
    assert finished.data.metrics == {"train_loss": 0.3127, "evaluate.min_auc": 0.71}


def test_links_lead_to_the_version_where_a_browser_reaches_mlflow(registry: Registry) -> None:
    assert version_page(registry, "3") == "", "a file has no page"
    inside = registry.model_copy(update={"tracking_uri": "http://mlflow.kubeflow.svc:5000/"})
    name = quote(registry.model, safe="")
    for host in ("mlflow.kubeflow.svc", "mlflow.kubeflow.svc.cluster.local", "mlflow"):
        service = registry.model_copy(update={"tracking_uri": f"http://{host}:5000/"})
        assert version_page(service, "3") == "", "only pods resolve the name of a Service"
    for host in ("mlflow.example", "localhost", "10.0.0.7", "[fd00::1]"):
        reached = registry.model_copy(update={"tracking_uri": f"http://{host}:5000/"})
        assert version_page(reached, "3") == f"http://{host}:5000/#/models/{name}/versions/3"
    public = inside.model_copy(update={"page": "https://mlflow.example/ui/"})
    assert version_page(public, "3") == f"https://mlflow.example/ui/#/models/{name}/versions/3"


def test_the_description_of_the_model_is_what_mlflow_reads(run: Run, registry: Registry) -> None:
    made = enter(run, registry)
    source = open_client(registry.tracking_uri).get_model_version("flight_late", made.version).source
    description = yaml.safe_load((Path(source.removeprefix("file://")) / "MLmodel").read_text())
    assert description["flavors"]["python_function"]["loader_module"] == "trainwright.serving"
    assert json.loads(description["signature"]["inputs"]) == [
        {"type": "any", "name": "distance", "required": False},
        {"type": "string", "name": "carrier", "required": False},
        {"type": "any", "name": "engines", "required": False},
        {"type": "datetime", "name": "time", "required": False},
    ]
    assert json.loads(description["signature"]["outputs"]) == [
        {"type": "double", "name": "score", "required": True}
    ]
    assert description["saved_input_example_info"] == {
        "artifact_path": "input_example.json",
        "type": "dataframe",
        "pandas_orient": "split",
    }
    assert description["run_id"] == made.run


def test_mlflows_own_classes_read_the_signature(run: Run, registry: Registry) -> None:
    """They need pandas, which this environment spares, so MLflow is borrowed by the one of join."""
    python = Path(sys.prefix).parent / "feast" / "bin" / "python"
    if not python.exists():
        pytest.skip("no feast environment beside this one")
    made = enter(run, registry)
    source = open_client(registry.tracking_uri).get_model_version("flight_late", made.version).source
    code = """
import sys
folder, mlflow = sys.argv[1:]
sys.path.append(mlflow)
from mlflow.models import Model
model = Model.load(folder)
columns = [(column.name, str(column.type)) for column in model.signature.inputs]
print(columns, model.load_input_example(folder))
"""
    command = [python, "-c", code, source.removeprefix("file://"), sysconfig.get_path("purelib")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    said = subprocess.run(command, check=False, capture_output=True, text=True, env=quiet)
    assert said.returncode == 0, said.stderr
    columns = [
        ("distance", "Any"),
        ("carrier", "DataType.string"),
        ("engines", "Any"),
        ("time", "DataType.datetime"),
    ]
    assert said.stdout.startswith(str(columns))
    assert said.stdout.split()[-6:] == ["0", "None", "UA", "2", "2013-01-01", "10:00:00"]


def test_record_and_summary_lead_from_the_model_back_to_the_source(run: Run, registry: Registry) -> None:
    made = enter(run, registry)
    folder = run.root.parent / "out"
    assert Registration.read(folder / "registration") == made
    assert (made.data_version, made.source_version, made.commit) == (DATA, SOURCE, "abc123")
    keys = Keyring.of(registry)
    note = read_note(keys.audit, "flight_late", made.key, keys)
    assert note is not None
    assert (note.model_digest, note.trial) == (run.model.digest, made.trial)
    record = Record.read(folder / "registration")
    assert record.headline == "flight_late version 1, alias candidate, data PASS"
    assert [parent.step for parent in record.parents] == ["train", "validate", "evaluate", "smoke_test"]
    summary = (folder / "summary.md").read_text()
    assert f"| source bytes | {SOURCE[:12]} |" in summary, "64 digits overflow the card"
    for name, digest in {"feature_service": "5e" * 32, "view flights": "f1" * 32}.items():
        assert f"| made from {name} | {digest[:12]} |" in summary.replace("\\_", "_")
    steps = [line.split(" | ")[0] for line in summary.partition("back to its source")[2].splitlines()[4:]]
    assert steps == ["| train", "| join", "| ingest", "| validate", "| evaluate", "| smoke\\_test"]


def test_the_card_of_the_version_has_what_training_and_evaluation_say(run: Run, registry: Registry) -> None:
    (run.root / "model_verdict" / "card.md").write_text("# Evaluation\n\nPASS\n\n## Slices\n\nall well\n")
    (run.root / "model" / "README.md").write_text("# A model\n\nSmall.\n\n## Use\n\nWith care\n")
    made = enter(run, registry)
    client = open_client(registry.tracking_uri)
    card = Path(client.download_artifacts(made.run, "evidence/card.md")).read_text()
    headings = ["# A model", "## Evaluation", "## Slices", "## Use"]
    assert [line for line in card.splitlines() if line.startswith("#")] == headings


def test_changes_of_the_experiment_beside_the_steps_become_evidence(run: Run, registry: Registry) -> None:
    (run.root.parent / "source.patch").write_text("# Changes since commit abc\n")
    made = enter(run, registry)
    client = open_client(registry.tracking_uri)
    patch = Path(client.download_artifacts(made.run, "evidence/source.patch"))
    assert patch.read_text() == "# Changes since commit abc\n"


def test_registering_again_finds_the_version_and_adds_nothing(run: Run, registry: Registry) -> None:
    first, second = enter(run, registry), enter(run, registry, "again")
    assert (first.version, second.version) == ("1", "1")
    assert (first.registered_before, second.registered_before) == (False, True)
    record = Record.read(run.root.parent / "again" / "registration")
    assert record.headline == "flight_late version 1 (registered before)"
    client = open_client(registry.tracking_uri)
    assert len(client.search_model_versions("name = 'flight_late'")) == 1
    assert len(client.search_runs([client.get_experiment_by_name("flight_late").experiment_id])) == 1


def test_another_model_becomes_the_next_version_and_the_alias_follows_only_forwards(
    run: Run, registry: Registry, tmp_path: Path
) -> None:
    enter(run, registry)
    assert enter(Run(tmp_path / "other" / "run", weights="better"), registry).version == "2"
    client = open_client(registry.tracking_uri)
    assert client.get_model_version_by_alias("flight_late", "candidate").version == 2
    assert enter(run, registry, "again").version == "1"
    assert client.get_model_version_by_alias("flight_late", "candidate").version == 2


def test_the_alias_is_the_newest_candidate_and_of_thousands_one_is_read_for_that(
    run: Run, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever was touched last: MLflow lists that one first, and 10,000 of them."""
    enter(run, registry)
    for number in (2, 3):
        enter(Run(tmp_path / str(number) / "run", weights=f"weights {number}"), registry, f"out{number}")
    client = open_client(registry.tracking_uri)
    client.set_registered_model_alias("flight_late", "candidate", "1")
    client.set_model_version_tag("flight_late", "2", "looked_at_by", "ben")
    real, read = MlflowClient.search_model_versions, []

    def counted(self: MlflowClient, *given: Any, **more: Any) -> Any:
        found = real(self, *given, **more)
        read.append(len(found))
        return found

    monkeypatch.setattr(MlflowClient, "search_model_versions", counted)
    point_candidate(client, "flight_late")
    assert client.get_model_version_by_alias("flight_late", "candidate").version == 3
    assert set(read) == {1}


def test_data_on_hold_is_registered_and_says_so(tmp_path: Path, registry: Registry) -> None:
    made = enter(Run(tmp_path / "run", data_decision="HOLD"), registry)
    version = open_client(registry.tracking_uri).get_model_version("flight_late", made.version)
    assert version.tags["trainwright.data_decision"] == "HOLD"
    assert "The data verdict is HOLD" in (tmp_path / "out" / "summary.md").read_text()


@pytest.mark.covers("B68")
def test_a_model_without_an_input_example_is_not_registered(run: Run, registry: Registry) -> None:
    folder = run.root / "model"
    kept = tuple(entry for entry in run.model.files if entry.path != "input_example.json")
    without = replace(run.model, files=kept)
    (folder / "input_example.json").unlink()
    without.write(folder)
    scored = {"model": without.digest, "predictions": PREDICTIONS}
    record("train", {"training_set": TRAINING_SET}, scored, run.joined).write(folder)
    judged = {"predictions": PREDICTIONS, "predictions.model": without.digest}
    run.write_verdict("model_verdict", "PASS", judged)
    replace(Trial.read(run.root / "trial"), model=without.digest).write(run.root / "trial")
    with pytest.raises(InputError, match=r"the model has no input_example\.json"):
        register(
            folder, without.digest, *run.folders[2:], registry, "", run.root / "out", run.root / "summary.md"
        )
    assert open_client(registry.tracking_uri).search_registered_models() == []
    assert not (run.root / "out").exists()


def start(run: Run, registry: Registry, point: str = "") -> int:
    """Register in a process of its own, and return its number; it is killed right after what is named."""
    child = os.fork()
    if child:
        return child
    try:
        if point:
            whole = getattr(register_module, point)

            def part(*given: Any, **more: Any) -> None:
                whole(*given, **more)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(register_module, point, part)
        enter(run, registry, f"out-{os.getpid()}")
    except BaseException:
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """Wait for a process; its exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "point",
    ["open_run", "log_run", "log_files", "create_version", "settle_version", "write_note"],
)
def test_a_kill_between_any_two_parts_is_taken_up_and_gives_one_version(
    run: Run, registry: Registry, point: str
) -> None:
    assert ended(start(run, registry, point)) == -signal.SIGKILL
    client = open_client(registry.tracking_uri)
    there = [version.tags for version in client.search_model_versions("name = 'flight_late'")]
    assert all("trainwright.idempotency_key" in tags and "trainwright.data_digest" in tags for tags in there)
    made = enter(run, registry)
    assert made.version == "1"
    assert len(client.search_model_versions("name = 'flight_late'")) == 1
    assert client.get_model_version_by_alias("flight_late", "candidate").version == 1
    runs = client.search_runs([client.get_experiment_by_name("flight_late").experiment_id])
    assert [(entry.info.run_id, entry.info.status) for entry in runs] == [(made.run, "FINISHED")]
    assert read_note(Keyring.of(registry).audit, "flight_late", made.key, Keyring.of(registry)) is not None


def test_of_two_versions_under_one_key_the_first_stands_and_the_other_is_taken_back(
    run: Run, registry: Registry
) -> None:
    """Both processes have looked, both have found nothing, both create."""
    client, key = open_client(registry.tracking_uri), "k" * 64
    runs = []
    for number in (1, 2):
        runs.append(open_run(client, "flight_late", f"{number}", registry.tracking_uri, {}))
        create_version(client, "flight_late", key, runs[-1], {}, "")
    assert [settle_version(client, "flight_late", key).version for _ in range(2)] == [1, 1]
    assert [version.version for version in client.search_model_versions("name = 'flight_late'")] == [1]
    assert [client.get_run(entry.info.run_id).info.lifecycle_stage for entry in runs] == ["active", "deleted"]


def test_two_processes_that_register_at_once_agree_on_one_version(
    run: Run, registry: Registry, tmp_path: Path
) -> None:
    other = Run(tmp_path / "other" / "run", weights="better")
    processes = [start(given, registry) for given in (run, run, other)]
    assert [ended(process) for process in processes] == [0, 0, 0]
    places = [run.root.parent / f"out-{process}" / "registration" for process in processes[:2]]
    places.append(other.root.parent / f"out-{processes[2]}" / "registration")
    answers = [Registration.read(place).version for place in places]
    assert answers[0] == answers[1] != answers[2]
    client = open_client(registry.tracking_uri)
    found = client.search_model_versions("name = 'flight_late'")
    assert len(found) == 2
    keys = {version.tags["trainwright.idempotency_key"] for version in found}
    assert len(keys) == 2
    alias = client.get_model_version_by_alias("flight_late", "candidate").version
    assert alias == max(int(version.version) for version in found)
    assert find_version(client, "flight_late", keys.pop()) is not None


@pytest.mark.covers("F55")
def test_a_server_that_does_not_answer_is_an_error_after_the_time_given(run: Run) -> None:
    with socket.socket() as taken:  # bound, and nobody listens: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DependencyError, match=r"did not answer in \d+ attempts over 1 s") as caught:
            enter(run, Registry(model="flight_late", tracking_uri=uri, retry_s=1))
    assert caught.value.code == 21
    assert "run the register step alone" in caught.value.hint


def test_a_registry_that_another_process_keeps_locked_is_away_and_not_forbidden(
    run: Run, registry: Registry
) -> None:
    enter(run, registry)
    other = Run(run.root.parent / "other", weights="others")
    file = registry.tracking_uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DependencyError, match="kept locked by another process") as caught:
            enter(other, registry.model_copy(update={"retry_s": 0}))
        assert caught.value.retryable
        held.execute("ROLLBACK")
    assert enter(other, registry).version == "2"


@pytest.mark.covers("B69")
def test_an_address_of_another_kind_is_refused_before_anything_is_done(run: Run, tmp_path: Path) -> None:
    for uri in ("./mlruns", "postgresql://host/db", "sqlite:///"):
        with pytest.raises(InputError, match="known are sqlite:///FILE, http:// and https://"):
            enter(run, Registry(model="m", tracking_uri=uri))
    with pytest.raises(InputError, match="carries a user or a password") as caught:
        enter(run, Registry(model="m", tracking_uri="https://me:hunter2@host"))
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_no_database_and_a_folder_that_cannot_be_are_named_at_once(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(InputError, match="this is no SQLite database"):
        enter(run, Registry(model="m", tracking_uri=f"sqlite:///{tmp_path}/notes.txt"))
    with pytest.raises(PermissionRefused, match="the registry's folder cannot be made"):
        enter(run, Registry(model="m", tracking_uri=f"sqlite:///{tmp_path}/notes.txt/mlflow.db"))
    with pytest.raises(PermissionRefused, match="the registry's file cannot be opened"):
        enter(run, Registry(model="m", tracking_uri=f"sqlite:///{tmp_path}"))
