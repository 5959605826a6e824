"""No secret gets into a run: an address that carries one is refused before anything is written or shown."""

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.authoring.steps import say
from trainwright.authoring import arguments, credentials
from trainwright.errors import InputError
from trainwright.local.runner import Outcome

PLANTED = "hunter2-PLANTED"
FLIGHTS = Path(__file__).resolve().parents[2] / "examples" / "flights"

BAD = {
    "a password": f"postgresql://reader:{PLANTED}@db.example/flights",
    "a password and a port": f"postgresql+psycopg://reader:{PLANTED}@db.example:5432/flights?sslmode=require",
    "keys of a bucket": f"s3://AKIA0123456789:{PLANTED}@bucket/rows",
    "a signed URL of S3": f"https://bucket.example/a.csv?X-Amz-Expires=60&X-Amz-Signature={PLANTED}",
    "a signed URL of Google": f"https://store.example/a.csv?X-Goog-Signature={PLANTED}",
    "a signed URL of Azure": f"https://store.example/a.csv?se=2026&sig={PLANTED}",
    "a token": f"https://store.example/a.csv?access_token={PLANTED}",
    "an API key": f"https://store.example/a.csv?api-key={PLANTED}",
    "a password behind the address": f"postgresql://db.example/flights?user=reader&password={PLANTED}",
}

GOOD = [
    "gs://bucket/flights/{date:%Y/%m}/*.parquet",
    "s3://bucket/rows?versionId=abc",
    "https://store.example/rows.csv?page=2&key=value",
    "postgresql://reader@db.example/flights",
    "sqlite:///../runs/mlflow.db",
    "mailto:someone@example.com: 3",
    "data/a:b@c.csv",
    "http://mlflow.mlflow:5000",
]


@pytest.mark.parametrize("kind", BAD)
def test_an_address_that_carries_a_secret_is_refused_without_repeating_it(kind: str) -> None:
    with pytest.raises(InputError, match=r"data\.source: ") as refused:
        credentials.require_none({"data": json.dumps({"source": BAD[kind]})}, where="an argument")
    assert PLANTED not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("address", GOOD)
def test_an_ordinary_address_is_accepted(address: str) -> None:
    credentials.require_none([address, {"deep": [address]}], where="an argument", plain=True)


def test_every_place_is_named_at_once() -> None:
    with pytest.raises(InputError) as refused:
        credentials.require_none({"a": BAD["a token"], "b": [1, BAD["a password"]]}, where="x", plain=True)
    assert "  a: this https:// address carries a secret, access_token\n" in str(refused.value)
    assert "  b.1: this postgresql:// address carries a password\n" in str(refused.value)


Edit = Callable[[dict[str, Any], str], object]
PLACES: dict[str, Edit] = {
    "data.source": lambda data, uri: data["data"].update(source=uri),
    "data.store": lambda data, uri: data["data"].update(store=uri),
    "data.quality.previous": lambda data, uri: data["data"].update(quality={"previous": uri}),
    "features.repository": lambda data, uri: data["features"].update(repository=uri),
    "validation.baseline": lambda data, uri: data["validation"].update(baseline=uri),
    "registry.tracking_uri": lambda data, uri: data["registry"].update(tracking_uri=uri),
    "somewhere.else": lambda data, uri: data.update(somewhere={"else": uri}),
}


def experiment(folder: Path, edit: Edit, uri: str) -> Path:
    data = yaml.safe_load((FLIGHTS / "flights.yaml").read_text())
    edit(data, uri)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(data))
    return folder / "experiment.yaml"


@pytest.mark.parametrize("place", PLACES)
def test_an_experiment_with_a_secret_anywhere_is_refused(tmp_path: Path, place: str) -> None:
    path = experiment(tmp_path, PLACES[place], BAD["a password"])
    with pytest.raises(
        InputError, match=f"{place}: this postgresql:// address carries a password"
    ) as refused:
        arguments.read(path)
    assert PLANTED not in "".join(traceback.format_exception(refused.value))


def test_an_experiment_reads_nothing_over_plain_http_but_may_talk_to_mlflow(tmp_path: Path) -> None:
    for place in ("data.source", "features.repository", "validation.baseline"):
        with pytest.raises(InputError, match=f"{place}: http:// is not encrypted"):
            arguments.load(experiment(tmp_path, PLACES[place], "http://data.example/rows.csv"))
    server = "http://mlflow.mlflow:5000"
    read = arguments.load(experiment(tmp_path, PLACES["registry.tracking_uri"], server))
    assert read.registry.tracking_uri == server


def test_broken_yaml_is_named_by_its_place_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(f'schema_version: 1\ndata:\n  source: "{PLANTED}\n  key: [a\n')
    with pytest.raises(InputError, match=r"not valid YAML: .* on line \d+, column \d+") as refused:
        arguments.load(path)
    assert PLANTED not in "".join(traceback.format_exception(refused.value))


@pytest.mark.covers("A7")
def test_a_run_with_a_secret_in_an_argument_is_refused_before_its_folder_is_made(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    def pipeline(text: str) -> None:
        say(text=text)

    with pytest.raises(InputError, match="text: this s3:// address carries a password") as refused:
        run(pipeline, {"text": BAD["keys of a bucket"]})
    assert PLANTED not in "".join(traceback.format_exception(refused.value))
    assert not (tmp_path / "runs").exists()
