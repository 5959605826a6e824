"""A parameter that contains a secret is rejected before anything is written or shown."""

import base64
import json
import random
import string
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.authoring.steps import say
from trainwright import credentials, redaction
from trainwright.authoring import arguments
from trainwright.errors import InputError, as_record
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
    "https://store.example/rows.csv?page=2&tokenizer=bert&monkey=value",
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
    assert "  a: this contains a secret in the query of an address\n" in str(refused.value)
    assert "  b.1: this contains a password in an address\n" in str(refused.value)


SECRETS = {
    "a token as the user of a repository": "https://ghx" + "0123456789abcdef@github.com/team/features.git",
    "a key as the user of a bucket": f"s3://{PLANTED}@bucket/rows",
    "AccessToken": f"https://store.example/a.csv?AccessToken={PLANTED}",
    "an Azure signature behind others": f"https://x.blob.example/a?sv=1&se=2&sp=r&sig={PLANTED}",
    "Hugging Face": "hf_" + "xQwErTyUiOpAsDfGhJkLzXcVbNmQwErTyU",
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS, temporary": "ASIA" + "IOSFODNN7EXAMPLE",
    "GitHub": "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "GitHub, fine-grained": "github_pat_" + "11ABCDEFG0123456789_abcdefghij",
    "GitLab": "glpat-" + "abcdefghij0123456789",
    "Google": "AIza" + "SyA-0123456789abcdefghijklmnopqrstu",
    "OpenAI": "sk-proj-" + "abcDEF0123456789ghiJKL0123456789",
    "Anthropic": "sk-ant-api03-" + "abcDEF0123456789ghiJKL0123456789",
    "Stripe": "sk_live_" + "abcdefghij0123456789abcd",
    "Slack": "xoxb-" + "123456789012-abcdefABCDEF",
    "Databricks": "dapi" + "0123456789abcdef0123456789abcdef",
    "Azure storage": "AccountName=x;AccountKey=" + "a0B1" * 21 + "aa==;EndpointSuffix=core",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r",
    "a header": "Authorization: Bearer abcdef0123456789abcdef",
    "a private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\n-----END PRIVATE KEY-----",
    "a private key of OpenSSH": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz",
    "a connection string": f"host=db user=reader password={PLANTED}",
    "a connection string of ODBC": f"Driver=x;UID=reader;PWD={PLANTED};",
}


@pytest.mark.covers("A7")
@pytest.mark.parametrize("kind", SECRETS)
def test_secret_in_any_parameter_is_named_by_place_and_kind_only(kind: str) -> None:
    text = SECRETS[kind]
    for data in (
        {"a": {"deep": [1, text]}},
        {"a": json.dumps({"deep": [1, f"before {text} after"]})},
    ):
        with pytest.raises(InputError, match=r"a\.deep\.1: this contains an? ") as refused:
            credentials.require_none(data, where="x", plain=True)
        shown = "".join(traceback.format_exception(refused.value)) + json.dumps(as_record(refused.value, "x"))
        assert text not in shown
        assert PLANTED not in shown
    assert text not in redaction.redacted(f"log line with {text} in it")
    with pytest.raises(InputError, match=r"a\.key 1: this contains") as refused:
        credentials.require_none({"a": {text: 1}}, where="x", plain=True)
    assert text not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["password", "db_password", "api_key", "APIKEY", "client-secret", "aws_secret_access_key"]
)
def test_value_with_the_name_of_a_secret_is_rejected(name: str) -> None:
    with pytest.raises(InputError, match=f"a.{name}: this is the value of a secret") as refused:
        credentials.require_none({"a": {name: "correct-horse"}}, where="x")
    assert "correct-horse" not in str(refused.value)


def strings_of_the_repository() -> Iterator[str]:
    """Yield every word and every quoted text of the examples, pages, fixtures and compiled pipelines."""
    root = FLIGHTS.parents[1]
    kinds = {".yaml", ".yml", ".json", ".jsonl", ".md", ".csv", ".pbtxt", ".toml", ".lock", ".in", ".txt"}
    for folder in ("examples", "docs", "tests", "components", "deploy", "images"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in kinds and path.is_file() and "node_modules" not in path.parts:
                text = path.read_text(errors="replace")
                yield from (line for line in text.splitlines() if len(line) < 5_000)


def test_no_text_of_the_repository_looks_like_a_secret() -> None:
    found = {
        text[:200]: kinds for text in strings_of_the_repository() if (kinds := redaction.secrets_in(text))
    }
    planted = {text for text in found if any(word in text for word in ("PLANTED", "hunter2", "***"))}
    assert {text: found[text] for text in found.keys() - planted} == {}


def test_digests_identifiers_and_names_of_columns_are_no_secrets() -> None:
    numbers = random.Random(7)  # noqa: S311 - no cryptography
    letters = string.ascii_letters + string.digits
    for _ in range(20_000):
        raw = numbers.randbytes(32)
        texts = [
            raw.hex(),
            raw.hex()[:40],
            f"sha256:{raw.hex()}",
            str(uuid.UUID(bytes=raw[:16])),
            base64.b64encode(raw).decode(),
            base64.urlsafe_b64encode(raw).decode(),
            "".join(numbers.choices(letters, k=40)),
            f"hf_tokenized_{raw.hex()[:12]}",
            f"task-{raw.hex()[:16]}/sk_{raw.hex()[:8]}",
        ]
        assert not redaction.secrets_in(" ".join(texts))


Edit = Callable[[dict[str, Any], str], object]
PLACES: dict[str, Edit] = {
    "data.source": lambda data, uri: data["data"].update(source=uri),
    "data.store": lambda data, uri: data["data"].update(store=uri),
    "data.quality.previous": lambda data, uri: data["data"].update(quality={"previous": uri}),
    "features.repository": lambda data, uri: data["features"].update(repository=uri),
    "validation.baseline": lambda data, uri: data["validation"].update(baseline=uri),
    "registry.tracking_uri": lambda data, uri: data["registry"].update(tracking_uri=uri),
    "run.page": lambda data, uri: data.update(run={"page": uri}),
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
    with pytest.raises(InputError, match=f"{place}: this contains a password in an address") as refused:
        arguments.read(path)
    assert PLANTED not in "".join(traceback.format_exception(refused.value))


def test_an_experiment_reads_nothing_over_plain_http_but_may_talk_to_mlflow_and_link_to_kubeflow(
    tmp_path: Path,
) -> None:
    for place in ("data.source", "features.repository", "validation.baseline"):
        with pytest.raises(InputError, match=f"{place}: http:// is not encrypted"):
            arguments.load(experiment(tmp_path, PLACES[place], "http://data.example/rows.csv"))
    server = "http://mlflow.mlflow:5000"
    read = arguments.load(experiment(tmp_path, PLACES["registry.tracking_uri"], server))
    assert read.registry.tracking_uri == server
    read = arguments.load(experiment(tmp_path, PLACES["run.page"], "http://localhost:8080"))
    assert read.run.page == "http://localhost:8080"


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

    with pytest.raises(InputError, match="text: this contains a password in an address") as refused:
        run(pipeline, {"text": BAD["keys of a bucket"]})
    assert PLANTED not in "".join(traceback.format_exception(refused.value))
    assert not (tmp_path / "runs").exists()
