import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from trainwright.authoring import arguments
from trainwright.configure.configuration import SECTIONS
from trainwright.errors import InputError
from trainwright.experiment import (
    Data,
    DataEngine,
    Experiment,
    Imported,
    Query,
    Resources,
    Section,
    Steps,
    Training,
    Window,
    read_network,
)

GOOD = """
schema_version: 1
data:
  source: rows.parquet
  key: id
  time: at
  label: late
  splits:
    train: {start: 2013-01-01, end: 2013-10-01}
    evaluate: {start: 2013-10-01, end: 2013-11-01}
schema_file: schema.pbtxt
features: {repository: repo, source: repo/data, service: v1, request: [origin], known_after: [delay]}
registry: {model: m, tracking_uri: sqlite:///mlflow.db}
"""


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "schema.pbtxt").write_text("feature { name: 'x' }")
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as refused:
        arguments.load(written(tmp_path, text))
    return str(refused.value)


def test_valid_file_becomes_arguments_with_absolute_paths(tmp_path: Path) -> None:
    given = arguments.read(written(tmp_path, GOOD))
    assert given["data"]["source"] == str(tmp_path / "rows.parquet")
    assert given["schema"] == str(tmp_path / "schema.pbtxt")
    assert given["commit"] == "none"
    assert given["registry"]["tracking_uri"] == f"sqlite:///{tmp_path}/mlflow.db"
    assert Data.parse(given["data"], "data").splits["train"].start.isoformat() == "2013-01-01T00:00:00+00:00"


def test_engine_of_the_experiment_is_that_of_every_data_step_without_its_own(tmp_path: Path) -> None:
    flink = "engine: {name: FlinkRunner, store: shared, options: ['--job_endpoint=flink-{step}:8099']}\n"
    given = arguments.read(written(tmp_path, GOOD + flink + "validation: {engine: {workers: 3}}\n"))
    assert given["data"]["engine"] == {
        "name": "FlinkRunner",
        "store": str(tmp_path / "shared"),
        "options": ["--job_endpoint=flink-{step}:8099"],
    }
    assert given["validation"]["engine"] == {"workers": 3}
    given = arguments.read(written(tmp_path, GOOD + flink))
    assert given["validation"]["engine"] == given["data"]["engine"]
    assert given["evaluation"]["engine"] == given["data"]["engine"]


def test_runner_of_an_earlier_version_is_read_as_engine(tmp_path: Path) -> None:
    beam = "{engine: beam, options: [--runner=FlinkRunner, --parallelism=2]}"
    text = (
        GOOD.replace("data:\n", f"data:\n  runner: {beam}\n")
        + "validation: {runner: {engine: processes, workers: 3}}\n"
    )
    experiment = arguments.load(written(tmp_path, text))
    assert experiment.data.engine == DataEngine(name="FlinkRunner", options=("--parallelism=2",))
    assert experiment.validation.engine == DataEngine(workers=3)


@pytest.mark.covers("B1")
def test_all_errors_are_reported_together_with_their_full_path(tmp_path: Path) -> None:
    text = GOOD.replace("label: late", "lable: late") + "training: {epochs: zero, learing_rate: 0.1}\n"
    message = refusal(tmp_path, text)
    assert "found 3 errors" in message
    assert "data.lable: unknown key; did you mean label?" in message
    assert "training.learing_rate: unknown key; did you mean learning_rate?" in message
    assert "training.epochs: must be a valid integer" in message
    assert "'zero'" in message


@pytest.mark.covers("B3", "B5")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("end: 2013-10-01", "end: 2013-10-02", "splits train and evaluate overlap from 2013-10-01"),
        ("start: 2013-10-01, end: 2013-11-01", "start: 2013-11-01, end: 2013-10-01", "the window is empty"),
        ("request: [origin]", "request: [origin, delay]", "['delay'] are known only afterwards"),
        ("request: [origin]", "request: [origin, late]", "features.request holds the label 'late'"),
        ("key: id", "key: id\n  key: other", "key 'key' stands twice, first on line 5"),
        ("key: id", "key: &a id\n  time: *a", "aliases are not allowed"),
        ("key: id", "key: !!python/object:os.system id", "not valid YAML"),
        ("schema_version: 1", "schema_version: 2", "schema_version: must be 1; found 2"),
        ("schema_version: 1", "training: {learning_rate: .inf}", "must be a finite number"),
        ("schema_version: 1", "evaluation: {split: nope}", "evaluation.split names split 'nope'"),
        ("schema_version: 1", "training: {predict: [train, evaluate]}", "has the training split 'train'"),
        ("schema_version: 1", "training: {betas: [0.9, 1.0]}", "must be less than 1; found 1.0"),
        ("schema_version: 1", "resources: {gpus: 1, processes: 2}", "processes 2 must equal gpus 1"),
        ("schema_version: 1", "resources: {gpus: 8}", "processes 1 must equal gpus 8"),
        (
            "schema_version: 1",
            "training: {guards: {early_stopping: {split: x, share: 0.2}}}",
            "split 'x' and share 0.2 are alternatives; remove one",
        ),
    ],
)
def test_invalid_value_is_reported_with_the_allowed_ones(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert message in refusal(tmp_path, GOOD.replace(old, new, 1))


def test_spot_label_that_is_no_label_is_reported_with_the_other_errors() -> None:
    with pytest.raises(InputError, match="found 2 errors") as refused:
        Resources.check({"placement": {"spot": True, "spot_label": "bad_key!=x"}, "nodes": 0}, "resources")
    assert "placement.spot_label: must match pattern" in str(refused.value)


def test_missing_file_reports_its_path_and_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file") as refused:
        arguments.load(tmp_path / "none.yaml")
    assert str(tmp_path / "none.yaml") in str(refused.value)
    assert "flights.yaml" in str(refused.value)


@pytest.mark.covers("B37")
def test_missing_schema_reports_the_experiment_file(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    (tmp_path / "schema.pbtxt").unlink()
    with pytest.raises(InputError, match="schema_file cannot be read") as refused:
        arguments.read(path)
    assert str(path) in str(refused.value)


def test_section_round_trips_through_json() -> None:
    experiment = Experiment.check(
        {
            "data": {
                "source": "a",
                "key": "k",
                "time": "t",
                "label": "y",
                "splits": {
                    "train": {"start": "2013-01-01T05:00:00+05:00", "end": "2013-02-01"},
                    "evaluate": {"start": "2013-02-01", "end": "2013-03-01"},
                },
            },
            "schema_file": "s",
            "features": {"repository": "r", "source": "d", "service": "v"},
            "registry": {"model": "m", "tracking_uri": "sqlite:///x"},
        },
        "here",
    )
    assert Data.parse(experiment.data.to_json(), "data") == experiment.data
    assert experiment.data.splits["train"].start.isoformat() == "2013-01-01T00:00:00+00:00"


def test_section_round_trips_through_the_doubles_of_a_kubeflow_parameter() -> None:
    section = Training(epochs=100, seed=2**53 - 1, learning_rate=0.25, betas=(0.5, 0.75))
    assert Training.parse(through_kubeflow(section.to_parameter()), "parameter training") == section


def test_fresh_rows_without_a_time_are_rejected(tmp_path: Path) -> None:
    windows = GOOD[GOOD.index("  time: at") : GOOD.index("schema_file")]
    shares = """  label: late
  quality: {fresh_rows_within_s: 60}
  splits: {train: {fraction: 0.8}, evaluate: {fraction: 0.2}}
"""
    said = refusal(tmp_path, GOOD.replace(windows, shares))
    assert "quality.fresh_rows_within_s needs the time of each row; name it in data.time" in said


@pytest.mark.parametrize("kind", ["mlp", "ft_transformer", "trees"])
def test_parameter_has_the_kind_and_no_defaults(kind: str) -> None:
    network = read_network({"kind": kind, "min_category_rows": 10, "max_categories": 7})
    assert network.to_parameter() == {"kind": kind, "max_categories": 7}
    assert read_network(network.to_parameter()) == network


def test_parameter_of_a_switched_off_limit_has_no_null() -> None:
    section = Training.check({"guards": {"spike": None, "norm_spike": None}}, "training")
    for as_written in (False, True):
        found = section.to_parameter(as_written=as_written)
        assert found == {"guards": {"spike": "never", "norm_spike": "never"}}
    assert Training.parse(section.to_parameter(), "parameter training") == section


def through_kubeflow(section: dict[str, Any]) -> dict[str, Any]:
    """Turn every number into a double, as a protobuf Struct does."""
    struct = Struct()
    struct.update(section)
    return dict(MessageToDict(struct))


@pytest.mark.covers("B4")
@pytest.mark.parametrize(
    ("section", "data", "message"),
    [
        (
            Training,
            {"epochs": 2.5},
            "epochs: must be a valid integer, got a number with a fractional",
        ),
        (Training, {"seed": 2**53}, "seed: 9007199254740992 has too many digits"),
        (Training, {"seed": float(2**53)}, "integers up to 9007199254740991 exactly"),
        (
            Query,
            {"select": "s", "tables": ["t"], "parameters": {"id": 2**60}},
            "parameters: 1152921504606846976 has too many digits",
        ),
        (
            Imported,
            {"kind": "module", "path": "a:b", "options": {"deep": [None]}},
            "options: null cannot be passed to a step; leave the key out",
        ),
        (
            Imported,
            {"kind": "module", "path": "a:b", "options": {"deep": [{"id": 2**60}]}},
            "options: 1152921504606846976 has too many digits",
        ),
    ],
)
def test_number_that_kubeflow_would_change_is_rejected(
    section: type[Section], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        section.check(data, "parameter")
    assert message in str(refused.value)


@pytest.mark.covers("B6")
def test_section_that_is_not_json_is_reported_with_its_parameter() -> None:
    with pytest.raises(InputError, match="not JSON") as refused:
        Data.parse("{", "parameter data")
    assert "parameter data" in str(refused.value)


@pytest.mark.parametrize("start", ["2013", "'2013'", "1356998400", "true", "January"])
def test_number_is_rejected_as_a_time(tmp_path: Path, start: str) -> None:
    message = refusal(tmp_path, GOOD.replace("{start: 2013-01-01,", f"{{start: {start},"))
    assert "data.splits.train.start: must be a time such as 2013-01-31 or 2013-01-31T05:00:00Z" in message


def test_time_without_zone_is_utc() -> None:
    times = ["2013-01-01", "2013-01-01 00:00", "2012-12-31T19:00:00-05:00", "2013-01-01T00:00:00Z"]
    windows = [Window.check({"start": time, "end": "2014-01-01"}, "test") for time in times]
    assert {window.start.isoformat() for window in windows} == {"2013-01-01T00:00:00+00:00"}


def test_split_with_the_reserved_name_is_rejected(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace("    evaluate: {", "    unassigned: {"))
    assert "split unassigned is reserved for rows of no split" in message


def test_column_with_two_roles_is_rejected(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace("time: at", "time: id"))
    assert "key id, time id, label late must be different columns" in message


@pytest.mark.parametrize(
    "template", ["logs.example/{name}", "https://a.example/{pod}", "javascript:alert(1)"]
)
def test_link_that_is_not_an_address_or_has_another_placeholder_is_rejected(template: str) -> None:
    with pytest.raises(InputError, match=re.escape(template)):
        Resources.parse(json.dumps({"links": {"logs": template}}), "resources")


def test_old_name_of_a_step_is_accepted() -> None:
    said = {"cpu": "2", "memory": "1G"}
    old, new = Steps.check({"probe": said}, "steps"), Steps.check({"smoke_test": said}, "steps")
    assert old == new
    assert new.parameters()["smoke_test_cpu"] == "2"


@pytest.mark.covers("B65")
@pytest.mark.parametrize(
    ("data", "evaluation", "message"),
    [
        ("  label_kind: regression\n", "{min_auc: 0.6}", "auc is not defined for a model of kind regression"),
        (
            "  classes: [a, b, c]\n",
            "{rules: [{metric: recall/d, at_least: 0.5}]}",
            "recall/d names a class that does not exist in ['a', 'b', 'c']",
        ),
        (
            "  label_kind: multiclass\n",
            "{fairness: {by: [origin], limits: {equal_opportunity: 0.1}}}",
            "fairness.limits and worsening are measures of two classes, not of kind multiclass",
        ),
    ],
)
def test_metric_that_the_configured_target_lacks_is_rejected_before_anything_runs(
    tmp_path: Path, data: str, evaluation: str, message: str
) -> None:
    text = GOOD.replace("  label: late\n", f"  label: late\n{data}") + f"evaluation: {evaluation}\n"
    assert message in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("data", "objective", "message"),
    [
        ("  label_kind: regression\n", "class_weights: balanced", "class_weights balanced is not defined"),
        ("  classes: [a, b, c]\n", "threshold: f1", "threshold f1 is not defined"),
    ],
)
def test_objective_that_the_configured_target_lacks_is_rejected_before_anything_runs(
    tmp_path: Path, data: str, objective: str, message: str
) -> None:
    text = GOOD.replace("  label: late\n", f"  label: late\n{data}")
    text += f"training: {{objective: {{{objective}}}}}\n"
    assert f"training.objective: {message}" in refusal(tmp_path, text)
    # Two classes have every setting, and of a label of kind `auto`, only `ingest` can tell.
    for possible in ("  classes: [a, b]\n", "  label_kind: auto\n"):
        written(tmp_path, text.replace(data, possible))
        arguments.read(tmp_path / "experiment.yaml")


def test_job_in_a_queue_carries_owner_and_cost_centre_of_the_run(tmp_path: Path) -> None:
    queued = "resources: {placement: {queue: training, labels: {tier: gold}}}\n"
    passed = arguments.read(written(tmp_path, GOOD + queued + 'run: {owner: ranking, cost_centre: "4711"}\n'))
    labels = {"owner": "ranking", "cost-centre": "4711", "tier": "gold"}
    assert passed["resources"]["placement"]["labels"] == labels
    # `configure` gets no section `run`, and accepts what was passed.
    sections = {name: passed[name] for name in SECTIONS}
    assert Experiment.check(sections, "parameters").resources.placement.labels == labels


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (
            "{}",
            "label owner of the job, of up to 63 letters, digits, '-', '_' and '.', found ''; set run.owner",
        ),
        ("{owner: ranking}", "label cost-centre of the job"),
        ("{owner: ada@example.org, cost_centre: x}", "found 'ada@example.org'"),
    ],
)
def test_job_in_a_queue_without_owner_or_cost_centre_is_rejected(
    tmp_path: Path, run: str, found: str
) -> None:
    queued = f"resources: {{placement: {{queue: training}}}}\nrun: {run}\n"
    assert found in refusal(tmp_path, GOOD + queued)
