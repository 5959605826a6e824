"""The suite itself, without a cluster: what it compiles runs here, and it leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.authoring.api.server import Api, serving
from tests.authoring.api.store import Frame
from tests.kubeflow import experiment, pipeline
from tests.kubeflow.installation import Installation, check
from trainwright.authoring import arguments, pipeline_spec
from trainwright.local import runner


@pytest.fixture
def server() -> Iterator[Api]:
    with serving() as api:
        yield api


@pytest.fixture
def suite(server: Api, tmp_path: Path) -> Installation:
    return Installation(
        host=server.url, registry="registry.example/team", namespace="", token_file="", wait_s=120,
        folder=tmp_path,
    )  # fmt: skip


def test_the_small_pipeline_names_its_images_in_the_registry(suite: Installation) -> None:
    read = pipeline_spec.read(suite.package)
    assert {step.name for step in read.steps} == {"sample", "resolve", "ingest", "describes", "summarize"}
    assert all(step.image.startswith("registry.example/team/trainwright/") for step in read.steps)


def test_the_small_pipeline_runs_here_and_writes_the_repository_that_the_experiment_names(
    suite: Installation, tmp_path: Path
) -> None:
    made = pipeline.write(tmp_path, "acceptance", "")
    done = runner.run(made, {}, runs_folder=tmp_path / "runs")
    assert done.state == "done", done
    written = done.folder / "sample" / "rows"
    path = experiment.write(tmp_path, "small", str(written), "http://mlflow.team-a:5000")
    read = arguments.load(path)
    assert Path(read.data.source).read_text().count("\n") == pipeline.ROWS + 1
    assert (Path(read.features.repository) / "offline" / "load.parquet").exists()


def test_everything_the_suite_made_is_deleted_and_nothing_else(server: Api, suite: Installation) -> None:
    theirs = server.store.make_experiment({"display_name": "theirs"})
    other = server.store.make_pipeline({"name": "theirs", "display_name": "theirs"})
    server.store.script = [Frame("RUNNING")]
    assert suite.submit("one", wait=False).code == 0
    file = {"schema_version": 1, "owner": suite.name, "schedules": {"often": {
        "pipeline": str(suite.package), "interval_s": 60, "experiment": suite.name}}}  # fmt: skip
    (suite.folder / "schedules.yaml").write_text(yaml.safe_dump(file))
    assert suite.run("schedules", "apply", "schedules.yaml").code == 0
    store = server.store
    assert (len(store.runs), len(store.recurring_runs), len(store.pipelines)) == (1, 1, 2)
    suite.clear()
    assert server.made("POST", ":terminate") == 1
    assert (store.runs, store.recurring_runs, store.pipeline_versions) == ([], [], [])
    assert (store.experiments, store.pipelines) == ([theirs], [other])


def test_fired_returns_the_run_of_our_schedule_where_anothers_fired_later(
    server: Api, suite: Installation, tmp_path: Path
) -> None:
    theirs = Installation(**{**vars(suite), "folder": tmp_path, "name": "theirs", "_package": None})
    for one in (suite, theirs):
        schedule = {"pipeline": str(one.package), "interval_s": 60, "experiment": one.name}
        file = {"schema_version": 1, "owner": one.name, "schedules": {"often": schedule}}
        (tmp_path / "schedules.yaml").write_text(yaml.safe_dump(file))
        assert one.run("schedules", "apply", "schedules.yaml").code == 0
    ours, others = (schedule.recurring_run_id for schedule in server.store.recurring_runs)
    server.store.fire(others)
    assert suite.fired() is None
    expected = server.store.fire(ours)
    server.store.fire(others)
    assert suite.fired().run_id == expected.run_id


def test_a_check_prints_what_was_expected_and_seen_and_fails_where_they_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check("exit code", 0, 0)
    with pytest.raises(AssertionError, match="exit code: expected 41, saw 70"):
        check("exit code", 41, 70)
    assert "expected  41" in capsys.readouterr().out
