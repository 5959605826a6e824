"""From an experiment file to arguments: every path by where the file lies, every address as it is."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.authoring import arguments

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
    value: Any = json.loads(given["data"])
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
    assert (given["source"] if key == "source" else found(given, key)) == expected


def test_the_place_of_the_source_is_in_no_key_but_its_own(write: Write) -> None:
    here, there = (arguments.read(write(put(PLACES["source"], place))) for place in ("rows", "elsewhere"))
    assert here["source"] != there["source"]
    assert here["data"] == there["data"]


@pytest.mark.parametrize("key", ["baseline", "statistics_store"])
def test_a_path_in_the_section_validation_is_relative_to_the_file(
    write: Write, tmp_path: Path, key: str
) -> None:
    assert json.loads(arguments.read(write())["validation"])[key] in {"", None}
    given = arguments.read(write(validation={key: "accepted/here"}))
    assert json.loads(given["validation"])[key] == str(tmp_path / "accepted" / "here")
    assert given["baseline"] == (str(tmp_path / "accepted" / "here") if key == "baseline" else "")


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
    assert arguments.read(write({"source": "now"}))["source"] == str(tmp_path / "now")
