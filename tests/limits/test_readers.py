"""Readers of outside input: each returns or raises a typed error with an exit code, whatever comes."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.limits.offenders import BYTES, JSON, SHORT, YAML, any_text, plain, texts
from trainwright import credentials
from trainwright.artifacts import Listing, Record, Snapshot
from trainwright.authoring import arguments, compile
from trainwright.authoring.interfaces import read as read_index
from trainwright.authoring.pipeline_spec import read as read_pipeline
from trainwright.authoring.submission.connection import document
from trainwright.authoring.submission.order import local_paths
from trainwright.command import Parser
from trainwright.documents import read_json
from trainwright.errors import InputError, InternalError, TrainwrightError
from trainwright.experiment import (
    Data,
    Evaluation,
    Experiment,
    Features,
    Registry,
    Resources,
    Training,
    Validation,
)
from trainwright.experiment.network import read_network
from trainwright.storage.access import Access
from trainwright.storage.store import retry_after_s, store_of
from trainwright.storage.uris import local_path, remote
from trainwright.verdicts import Verdict
from trainwright.yaml_reader import read_yaml, read_yaml_documents


@contextlib.contextmanager
def typed() -> Iterator[None]:
    try:
        yield
    except TrainwrightError as error:
        code = error.code
    else:
        return
    assert code != InternalError.code


def examples(values: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Add each historic offender as an explicit example."""

    def add(test: Any) -> Any:
        for value in values:
            test = example(value)(test)
        return test

    return add


@pytest.mark.covers("A20")
@SHORT
@given(texts)
@examples(JSON)
def test_json_text_is_read_or_rejected(text: str) -> None:
    with typed():
        read_json(text)
    for kind in (Snapshot, Listing, Record, Verdict):
        with typed():
            kind.parse(text)
    document(text)
    list(local_paths(text))


@SHORT
@given(st.binary(max_size=80))
@examples(BYTES)
def test_json_of_any_bytes_is_read_or_rejected(content: bytes) -> None:
    with typed():
        read_json(content)
    document(content)


@pytest.mark.covers("A20")
@SHORT
@given(texts)
@examples(YAML + JSON)
def test_yaml_text_is_read_or_rejected_with_its_place(text: str) -> None:
    with typed():
        read_yaml(text, where="x.yaml")
    with typed():
        read_yaml_documents(text, aliases=True)


@SHORT
@given(st.binary(max_size=80))
@examples(BYTES)
def test_yaml_of_any_bytes_is_read_or_rejected(content: bytes) -> None:
    with typed():
        read_yaml(content)


@pytest.mark.parametrize("text", [*YAML, *JSON], ids=range(len(YAML) + len(JSON)))
@pytest.mark.parametrize(
    "read",
    [
        arguments.load,
        read_pipeline,
        compile.read_images,
        read_index,
        lambda path: arguments.of_pipeline(path, None, []),
    ],
    ids=["experiment", "pipeline", "images.json", "index", "arguments"],
)
def test_file_of_a_person_is_read_or_rejected(
    read: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(TrainwrightError) as rejected:
        read(path)
    assert rejected.value.code == InputError.code


@pytest.mark.parametrize("content", BYTES)
def test_file_that_is_no_text_is_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    for read in (arguments.load, read_pipeline, compile.read_images, read_index):
        with pytest.raises(InputError):
            read(path)


@pytest.mark.covers("B8")
def test_alias_bomb_and_python_object_are_rejected_unbuilt() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{f'*a{n}, ' * 9}]\n" for n in range(30))
    with pytest.raises(InputError, match="aliases are not allowed, on line 2"):
        read_yaml(bomb)
    merges = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}\n" for n in range(30))
    with pytest.raises(InputError, match="merge keys are not allowed"):
        read_yaml(merges, aliases=True)
    with pytest.raises(InputError, match="could not determine a constructor"):
        read_yaml("x: !!python/object/apply:os.system [id]")


def test_error_of_yaml_names_line_and_column() -> None:
    with pytest.raises(InputError, match=r"not a value of the type bool, on line 2, column 4"):
        read_yaml("a: 1\nx: !!bool x")
    with pytest.raises(InputError, match=r"nested deeper than 100, on line 1, column 101"):
        read_yaml("[" * 20_000)


@SHORT
@given(plain | texts)
@examples(JSON)
@example("[" * 900 + "]" * 900)
def test_search_for_secrets_ends(value: Any) -> None:
    with typed():
        credentials.require_none({"x": value}, where="test")


SECTIONS = (Data, Validation, Features, Training, Resources, Evaluation, Registry, Experiment)
KEYS = sorted({key for kind in SECTIONS for key in kind.model_fields})


@SHORT
@given(
    st.dictionaries(
        st.sampled_from(sorted({key for kind in SECTIONS for key in kind.model_fields})), plain, max_size=6
    )
)
@example({"source": "a\0b"})
@example({"source": "\ud800"})
@example({"learning_rate": 10**400})
@example({"epochs": 10**400})
@example({"splits": {"train": {"fraction": 10**400}}})
@example({"author": "\ud800", "model": "\0"})
def test_section_of_any_values_is_read_or_rejected(values: dict[str, Any]) -> None:
    for kind in SECTIONS:
        with typed():
            kind.check(values, "test")
    with typed():
        read_network(values)


@SHORT
@given(texts)
@examples(JSON)
def test_section_of_any_text_is_read_or_rejected(text: str) -> None:
    with typed():
        Data.parse(text, "test")
    with typed():
        read_network(text)


@SHORT
@given(any_text(30), any_text(30))
@example("epochs=" + "1" * 5000, "")
@example("epochs=" + "[" * 100_000, "")
@example('data_section={"a": 1e400}', "2026-13-41")
@example("epochs=NaN", "\u0661\u0669\u0669\u0669-\u0660\u0661-\u0660\u0661")
def test_parameter_and_date_of_the_command_line_are_read_or_rejected(param: str, day: str) -> None:
    compiled = Path("compiled/pipelines/promote_model.yaml").resolve()
    with typed():
        arguments.of_pipeline(compiled, None, [param, f"epochs={param}"], "")
    with typed():
        date_only = arguments.of_pipeline(compiled, None, [], day)
        assert not day or date.fromisoformat(str(date_only["date"]))


SCHEMES = ("https://", "s3://", "gs://", "minio://", "file://", "")
ADDRESSES = (
    "https://[fe80::1%25eth0]/x",
    "https://[::1",
    "https://host:99999/x",
    "https://host:x/x",
    "https://host:" + "9" * 5000 + "/x",
    "https:///x",
    "https://a\0b/x",
    "https://a\r\nX-Name: b/x",
    "https://bücher..example/x",
    "https://xn--/x",
    "https://" + "a" * 300 + "/x",
    "https://" + "a." * 500 + "/x",
    "https://%00/x",
    "https://.metadata.google.internal/",
    "s3://bucket/\ud800",
    "file://host/x",
    "file:///%00",
    "x\0y",
    "gs://",
    "https://[v1.x]/x",
    "https://1.2.3.4.5/x",
    "https://0x7f.1/x",
    "https://[::ffff:999.1.1.1]/x",
)


@SHORT
@given(
    st.builds(
        "{}{}".format,
        st.sampled_from(["https://", "s3://", "gs://", "minio://", "file://", ""]),
        any_text(40),
    )
)
@examples(ADDRESSES)
def test_address_of_any_text_is_read_or_rejected(uri: str) -> None:
    with typed():
        local_path(uri)
    with typed():
        place = remote(uri)
        if place and place.scheme == "https":
            store_of(place, Access(hosts=(place.bucket,)))


@SHORT
@given(st.text(max_size=40))
@example("9" * 5000)
@example("\xb2")
@example("Foo, 99 Bar 99999 99:99:99 GMT")
@example("Mon, 01 Jan 0001 00:00:00 +2359")
@example("Mon, 31 Dec 9999 23:59:59 -2359")
def test_retry_after_of_any_text_is_a_wait(value: str) -> None:
    assert retry_after_s(value) >= 0


@SHORT
@given(st.lists(any_text(12), max_size=5))
@example(["--count", "9" * 5000])
@example(["--count", "\ud800"])
def test_words_of_a_command_line_are_read_or_rejected(words: list[str]) -> None:
    command = Parser(add_help=False)
    command.add_argument("--count", type=int)
    with typed():
        command.parse_args(words)
