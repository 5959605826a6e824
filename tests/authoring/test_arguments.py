"""From an experiment file to arguments: every path by where the file lies, every address as it is."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.authoring import arguments
from trainwright.authoring.submission.order import local_paths
from trainwright.configure.configuration import SECTIONS, Overrides, configure
from trainwright.errors import InputError

FLIGHTS = Path(__file__).resolve().parents[2] / "examples" / "flights"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_it(data: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Path:
        experiment = yaml.safe_load((FLIGHTS / "flights.yaml").read_text())
        for name, keys in {"data": data or {}, **sections}.items():
            experiment[name] = experiment[name] | keys
        (tmp_path / "schema.pbtxt").write_text("")
        (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment))
        return tmp_path / "experiment.yaml"

    return write_it


PLACES = {
    "source": {"source": "PLACE"},
    "store": {"store": "PLACE"},
    "remember": {"remember": "PLACE"},
    "quality.previous": {"quality": {"previous": "PLACE"}},
    "sql.password_file": {
        "format": "sql",
        "sql": {"select": "select 1", "tables": ["t"], "password_file": "PLACE"},
    },
}


def put(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        return {key: put(inner, place) for key, inner in value.items()}
    return place if value == "PLACE" else value


def found(given: dict[str, Any], key: str) -> Any:
    value: Any = given["data"]
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rows/part.parquet", "{here}/rows/part.parquet"),
        ("../rows", "{above}/rows"),
        ("/data/{date:%Y}/*.csv", "/data/{date:%Y}/*.csv"),
        ("gs://bucket/rows", "gs://bucket/rows"),
        ("sqlite:///rows.db", "sqlite:///{here}/rows.db"),
        ("sqlite:////data/rows.db", "sqlite:////data/rows.db"),
    ],
)
def test_a_path_in_the_section_data_is_relative_to_the_file(
    write: Write, tmp_path: Path, key: str, written: str, meant: str
) -> None:
    given = arguments.read(write(put(PLACES[key], written)))
    expected = meant.replace("{here}", str(tmp_path)).replace("{above}", str(tmp_path.parent))
    assert found(given, key) == expected


def test_a_key_with_a_parameter_of_its_own_stands_in_no_section(write: Write, tmp_path: Path) -> None:
    plain = arguments.read(write(training={"epochs": 7, "learning_rate": 0.5}, evaluation={"min_auc": 0.6}))
    given = arguments.lifted(plain, {"source", "epochs", "learning_rate", "min_auc", "claim"})
    assert given["source"] == plain["data"]["source"]
    assert (given["epochs"], given["learning_rate"], given["min_auc"]) == (7, 0.5, 0.6)
    assert given["data"].keys() == plain["data"].keys() - {"source"}
    assert given["training"].keys() == plain["training"].keys() - {"epochs", "learning_rate"}
    assert "min_auc" not in given["evaluation"]
    assert given["registry"] == plain["registry"]
    checked(given, tmp_path / "checked")


def test_epochs_stay_in_the_section_where_steps_end_the_training(write: Write, tmp_path: Path) -> None:
    plain = arguments.read(write(training={"epochs": 7, "steps": 100}))
    given = arguments.lifted(plain, arguments.LIFTED)
    assert "epochs" not in given
    assert given["training"]["epochs"] == 7
    checked(given, tmp_path / "checked")


def checked(given: dict[str, Any], folder: Path) -> None:
    """Check arguments as the first step of the pipeline does."""
    named = {name: given[name] for name in arguments.LIFTED if name in given}
    configure({name: given[name] for name in SECTIONS}, Overrides(schema=given["schema"], **named), folder)


@pytest.mark.parametrize("key", ["baseline", "statistics_store"])
def test_a_path_in_the_section_validation_is_relative_to_the_file(
    write: Write, tmp_path: Path, key: str
) -> None:
    assert key not in arguments.read(write())["validation"]
    given = arguments.read(write(validation={key: "accepted/here"}))
    assert given["validation"][key] == str(tmp_path / "accepted" / "here")


def test_schema_that_does_not_exist_is_allowed_only_where_the_run_writes_it(write: Write) -> None:
    path = write(validation={"on_missing_schema": "bootstrap"})
    (path.parent / "schema.pbtxt").unlink()
    assert arguments.read(path)["schema"] == str(path.parent / "schema.pbtxt")
    path = write(validation={"on_missing_schema": "hold"})
    (path.parent / "schema.pbtxt").unlink()
    with pytest.raises(InputError, match="schema_file cannot be read"):
        arguments.read(path)


def test_experiment_without_schema_and_features_passes_no_place_and_no_null(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(
        "data: {source: rows.csv, label: y, splits: {train: {fraction: 0.7}, evaluate: {fraction: 0.3}}}\n"
        "registry: {model: m, tracking_uri: 'sqlite:///m.db'}\n"
    )
    found = arguments.read(path)
    assert (found["schema"], found["features"]) == ("", {})
    assert "null" not in json.dumps(found)


def test_the_folder_one_stands_in_decides_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write({"store": "store", "remember": "seen"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    here = arguments.read(Path("experiment.yaml"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert arguments.read(Path(os.path.relpath(path))) == here


def test_a_link_to_the_data_is_not_followed(write: Write, tmp_path: Path) -> None:
    """Where a link leads may change; what it leads to is looked at when the run does."""
    (tmp_path / "real").mkdir()
    (tmp_path / "now").symlink_to(tmp_path / "real")
    assert arguments.read(write({"source": "now"}))["data"]["source"] == str(tmp_path / "now")


MISTAKES = {
    "a list as a key": (
        "epochs: 4",
        "? [a, b]\n  : 4",
        "a list or a mapping is no key, on line {line}, column 5",
    ),
    "a mapping as a key": ("epochs: 4", "? {a: b}\n  : 4", "a list or a mapping is no key"),
    "a date that is none": (
        "2014-01-01T05",
        "2014-13-41T05",
        "month must be in 1..12, on line {line}, column 11",
    ),
    "a key twice": ("seed: 0", "seed: 0\n  seed: 1", "first on line {line}, on line {next}, column 3"),
    "a tab": ("  epochs: 4", "\tepochs: 4", "Indent with blanks: YAML takes no tabs."),
    "an anchor": ("seed: 0", "seed: &s 0\n  epochs: *s", "aliases are not allowed"),
    "a list for a section": (
        "promotion:",
        "promotion: [staging]\nregister:",
        "promotion: must be a mapping of keys to values; found ['staging']",
    ),
    "a word for a number": ("epochs: 4", "epochs: four", "training.epochs: must be a valid integer"),
    "a switch for a number": ("epochs: 4", "epochs: yes", "training.epochs: must be a number; found True"),
    "a section that is none": ("training:", "trainings:", "trainings: unknown key; did you mean training?"),
    "a tag": ("seed: 0", "seed: !env SEED", "could not determine a constructor for the tag '!env'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_bad_input_and_says_where(tmp_path: Path, mistake: str) -> None:
    old, new, message = MISTAKES[mistake]
    text = (FLIGHTS / "flights.yaml").read_text()
    assert old in text
    (tmp_path / "experiment.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        arguments.load(tmp_path / "experiment.yaml")
    line = text[: text.index(old)].count("\n") + 1
    assert message.format(line=line, next=line + 1) in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"- a\n- b\n", "(the whole file): must be a mapping of keys to values; found ['a', 'b']"),
        (b"a: b\n" * 10_000_000, "the YAML has more than the 1,000,000 bytes allowed"),
        ("label: verspätet".encode("latin1"), "invalid trailing UTF-8 octet at byte 13"),
        (b"a: \x1b[31m", "control characters are not allowed at byte 3"),
        (b"x: " + b"[" * 20_000, "nested deeper than 100, on line 1, column 103"),
    ],
    ids=["empty", "comment", "list", "large", "latin1", "escape", "deep"],
)
def test_a_file_that_is_none_is_bad_input(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "experiment.yaml").write_bytes(content)
    with pytest.raises(InputError) as refused:
        arguments.load(tmp_path / "experiment.yaml")
    assert message in str(refused.value)


def overlay(experiment: Path, text: str) -> Path:
    path = experiment.with_name("cluster.yaml")
    path.write_text(text)
    return path


def test_an_overlay_changes_the_keys_it_names_and_no_other(write: Write) -> None:
    below = write()
    above = overlay(
        below,
        "base: experiment.yaml\ndata: {source: s3://team/flights.parquet}\nfeatures: {request: [carrier]}\n",
    )
    plain, laid_over = arguments.read(below), arguments.read(above)
    assert laid_over["data"] == plain["data"] | {"source": "s3://team/flights.parquet"}
    assert laid_over["features"] == plain["features"] | {"request": ["carrier"]}
    same = plain.keys() - {"data", "features"}
    assert {name: laid_over[name] for name in same} == {name: plain[name] for name in same}


def test_a_null_in_an_overlay_takes_a_section_away(write: Write) -> None:
    below = write()
    assert arguments.read_materialize(below)
    assert arguments.read_materialize(overlay(below, "base: experiment.yaml\nmaterialize: null\n")) == {}


@pytest.mark.parametrize(
    "name", ["../experiment.yaml", "cluster.yaml", "/etc/experiment.yaml", "7", "[a]", "''"]
)
def test_a_base_that_is_not_another_file_of_the_folder_is_rejected(write: Write, name: str) -> None:
    with pytest.raises(InputError, match="expected the name of another experiment file") as rejected:
        arguments.read(overlay(write(), f"base: {name}\n"))
    assert "cluster.yaml" in rejected.value.where


def test_a_base_that_is_missing_is_rejected(write: Write) -> None:
    with pytest.raises(InputError, match="cannot read the base of the experiment file"):
        arguments.read(overlay(write(), "base: nowhere.yaml\n"))


def test_a_base_with_a_base_is_an_error_that_names_all_three_files(write: Write) -> None:
    twice = overlay(write(), "base: experiment.yaml\n").with_name("twice.yaml")
    twice.write_text("base: cluster.yaml\n")
    with pytest.raises(InputError) as rejected:
        arguments.read(twice)
    expected = "cluster.yaml is itself over 'experiment.yaml'; only one level of base is read"
    assert rejected.value.what == expected
    assert rejected.value.where == f"{twice}, over cluster.yaml"
    assert "copy the keys of cluster.yaml" in rejected.value.hint


def test_a_wrong_key_of_an_overlay_is_an_error_that_names_both_files(write: Write) -> None:
    with pytest.raises(InputError) as rejected:
        arguments.read(overlay(write(), "base: experiment.yaml\ndata: {sauce: x}\n"))
    assert "sauce" in str(rejected.value)
    assert rejected.value.where.endswith("cluster.yaml, over experiment.yaml")


def test_the_flights_on_a_cluster_name_no_path_of_this_machine() -> None:
    given = arguments.read(FLIGHTS / "kubeflow.yaml")
    pipeline = FLIGHTS.parents[1] / "compiled" / "pipelines" / "train_and_register.yaml"
    taken = yaml.safe_load_all(pipeline.read_text()).__next__()["root"]["inputDefinitions"]["parameters"]
    assert list(local_paths({name: value for name, value in given.items() if name in taken})) == []


def test_registry_of_an_address_alone_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(arguments.read_registry("m", None, "audit", "sqlite:///mlflow.db"))
    assert found["model"] == "m"
    assert found["tracking_uri"] == f"sqlite:///{os.path.realpath(tmp_path)}/mlflow.db"
    assert found["audit"] == f"{os.path.realpath(tmp_path)}/audit"


def test_registry_options_win_over_the_file_and_the_name_over_both() -> None:
    found = json.loads(arguments.read_registry("another", FLIGHTS / "flights.yaml", "gs://acme/audit", ""))
    assert (found["model"], found["audit"]) == ("another", "gs://acme/audit")
    assert found["tracking_uri"].startswith("sqlite:////")
    assert json.loads(arguments.read_promotion(FLIGHTS / "flights.yaml"))["path"] == ["staging", "production"]


def test_registry_without_file_or_address_or_with_a_secret_is_rejected() -> None:
    with pytest.raises(InputError, match="nothing says where"):
        arguments.read_registry("m", None, "", "")
    with pytest.raises(InputError) as caught:
        arguments.read_registry("m", None, "", "https://me:hunter2@mlflow.example")
    assert "hunter2" not in str(caught.value)
