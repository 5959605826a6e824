import json
import re
from pathlib import Path

import pytest

from trainwright.authoring import arguments
from trainwright.errors import InputError
from trainwright.experiment import Data, Experiment, Features, Resources, Window

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


def test_a_good_file_becomes_arguments_with_absolute_paths_and_texts(tmp_path: Path) -> None:
    given = arguments.read(written(tmp_path, GOOD))
    assert given["source"] == str(tmp_path / "rows.parquet")
    assert given["schema"] == "feature { name: 'x' }"
    assert given["commit"] == "none"
    assert f"sqlite:///{tmp_path}/mlflow.db" in given["registry"]
    assert Data.parse(given["data"], "data").splits["train"].start.isoformat() == "2013-01-01T00:00:00+00:00"


def test_what_the_evaluation_slices_by_is_asked_of_the_training_set(tmp_path: Path) -> None:
    given = arguments.read(written(tmp_path, GOOD + "evaluation: {slices: [origin, carrier]}\n"))
    assert Features.parse(given["features"], "features").needed == ("origin", "carrier")


def test_all_errors_are_reported_at_once_with_their_full_path(tmp_path: Path) -> None:
    text = GOOD.replace("label: late", "lable: late") + "training: {epochs: zero, learing_rate: 0.1}\n"
    message = refusal(tmp_path, text)
    assert "4 things are wrong" in message
    assert "data.lable: unknown key; did you mean label?" in message
    assert "data.label: missing" in message
    assert "training.learing_rate: unknown key; did you mean learning_rate?" in message
    assert "training.epochs: Input should be a valid integer" in message
    assert "'zero'" in message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("end: 2013-10-01", "end: 2013-10-02", "splits train and evaluate overlap from 2013-10-01"),
        ("start: 2013-10-01, end: 2013-11-01", "start: 2013-11-01, end: 2013-10-01", "the window is empty"),
        ("request: [origin]", "request: [origin, delay]", "['delay'] are known only afterwards"),
        ("request: [origin]", "request: [origin, late]", "features.request holds the label ['late']"),
        ("key: id", "key: id\n  key: other", "key 'key' stands twice, first on line 5"),
        ("key: id", "key: &a id\n  time: *a", "aliases are not allowed"),
        ("key: id", "key: !!python/object:os.system id", "not valid YAML"),
        ("schema_version: 1", "schema_version: 2", "schema_version: Input should be 1; got 2"),
        ("schema_version: 1", "training: {learning_rate: .inf}", "should be a finite number"),
        ("schema_version: 1", "evaluation: {split: nope}", "evaluation.split names split 'nope'"),
        ("schema_version: 1", "training: {predict: [train, evaluate]}", "which is learned from"),
        ("schema_version: 1", "training: {betas: [0.9, 1.0]}", "should be less than 1; got 1.0"),
        ("schema_version: 1", "resources: {gpus: 1}", "processes 2 use as many GPUs, and gpus is 1"),
        ("schema_version: 1", "resources: {gpus: 8}", "processes 2 use as many GPUs, and gpus is 8"),
        (
            "schema_version: 1",
            "training: {objective: {kind: regression, focal: 2, threshold: f1}}",
            "focal, threshold: for classes, and kind is regression",
        ),
        (
            "schema_version: 1",
            "training: {objective: {kind: multiclass, threshold: f1}}",
            "threshold f1 is for two classes, and kind is multiclass",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert message in refusal(tmp_path, GOOD.replace(old, new, 1))


def test_a_missing_file_says_where_and_what_next(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file") as refused:
        arguments.load(tmp_path / "none.yaml")
    assert str(tmp_path / "none.yaml") in str(refused.value)
    assert "flights.yaml" in str(refused.value)


def test_a_missing_schema_names_the_file_that_wants_it(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    (tmp_path / "schema.pbtxt").unlink()
    with pytest.raises(InputError, match="schema_file cannot be read") as refused:
        arguments.read(path)
    assert str(path) in str(refused.value)


def test_a_section_survives_its_json() -> None:
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


def test_a_section_that_is_not_json_names_the_parameter() -> None:
    with pytest.raises(InputError, match="not JSON") as refused:
        Data.parse("{", "parameter data")
    assert "parameter data" in str(refused.value)


@pytest.mark.parametrize("start", ["2013", "'2013'", "1356998400", "true", "January"])
def test_a_number_is_no_time_although_pydantic_takes_it_for_seconds_since_1970(
    tmp_path: Path, start: str
) -> None:
    message = refusal(tmp_path, GOOD.replace("{start: 2013-01-01,", f"{{start: {start},"))
    assert "data.splits.train.start: a time is written as 2013-01-31 or 2013-01-31T05:00:00Z" in message


def test_a_time_keeps_its_moment_whatever_its_zone_and_is_utc_without_one() -> None:
    times = ["2013-01-01", "2013-01-01 00:00", "2012-12-31T19:00:00-05:00", "2013-01-01T00:00:00Z"]
    windows = [Window.check({"start": time, "end": "2014-01-01"}, "test") for time in times]
    assert {window.start.isoformat() for window in windows} == {"2013-01-01T00:00:00+00:00"}


def test_a_split_with_the_name_that_rows_of_no_window_get_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace("    evaluate: {", "    unassigned: {"))
    assert "split unassigned is where rows of no split go" in message


def test_one_column_cannot_have_two_roles(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD.replace("time: at", "time: id"))
    assert "key id, time id and label late must be three columns" in message


@pytest.mark.parametrize(
    "template", ["logs.example/{name}", "https://a.example/{pod}", "javascript:alert(1)"]
)
def test_a_link_that_is_no_address_or_has_another_placeholder_is_rejected(template: str) -> None:
    with pytest.raises(InputError, match=re.escape(template)):
        Resources.parse(json.dumps({"links": {"logs": template}}), "resources")
