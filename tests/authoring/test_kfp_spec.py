"""What kfp.local cannot run is refused before anything starts, all of it in one error."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
from kfp import dsl

from trainwright.authoring import pipeline_spec
from trainwright.errors import InputError
from trainwright.local import kfp_spec

red = dsl.component(base_image="trainwright/red:0.1.0", install_kfp_package=False)
Compile = Callable[..., Path]


@red
def say(text: str) -> str:
    return text


@red
def say_or(text: str = "") -> str:
    return text


@red
def make(data: dsl.Output[dsl.Dataset]):
    pass


@red
def read(data: dsl.Input[dsl.Dataset]) -> str:
    return ""


@red
def listed() -> NamedTuple("Listed", [("items", list)]):
    return ([],)


@red
def joined(items: list) -> str:
    return ""


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def foreign() -> str:
    return ""


@dsl.container_component
def container():
    return dsl.ContainerSpec(image="trainwright/red:0.1.0", command=["true"])


@dsl.pipeline
def inner_with_text(text: str) -> None:
    say(text=text)


@dsl.pipeline
def either(text: str) -> dsl.Dataset:
    with dsl.If(text == "a"):
        one = make()
    with dsl.Else():
        two = make()
    return dsl.OneOf(one.outputs["data"], two.outputs["data"])


def other_image() -> None:
    foreign()


def a_container() -> None:
    container()


def one_of_artifacts() -> None:
    read(data=either(text="a").output)


def loop_over_a_named_output() -> None:
    with dsl.ParallelFor(listed().outputs["items"]) as item:
        say(text=item)


def loop_item_in_an_f_string_of_an_inner_loop() -> None:
    with dsl.ParallelFor(["a"]) as outer, dsl.ParallelFor(["b"]) as inner:
        say(text=f"{outer}-{inner}")


def item_of_a_dict_in_an_f_string() -> None:
    with dsl.ParallelFor([{"k": "a"}]) as item:
        say(text=f"<{item.k}>")


def collected_from_a_loop_in_a_loop() -> None:
    with dsl.ParallelFor(["a"]), dsl.ParallelFor(["b"]) as inner:
        said = say(text=inner)
    joined(items=dsl.Collected(said.output))


def f_string_for_a_nested_pipeline() -> None:
    inner_with_text(text=f"<{say(text='a').output}>")


def condition_with_a_quote() -> None:
    with dsl.If(say(text="a").output == "it's"):
        say(text="b")


def condition_with_an_operator() -> None:
    with dsl.If(say(text="a").output == "this && that"):
        say(text="b")


def ignored_failure() -> None:
    say_or(text=say(text="a").output).ignore_upstream_failure()


@dsl.pipeline(pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
def workspace() -> None:
    say(text=dsl.WORKSPACE_PATH_PLACEHOLDER)


REFUSED: dict[Callable[..., Any], str] = {
    other_image: "no environment is known for image python:3.11; known are blue, red",
    a_container: "only Python functions run without Docker",
    one_of_artifacts: "one of several artifacts",
    loop_over_a_named_output: "loops over the named output items",
    loop_item_in_an_f_string_of_an_inner_loop: "take loop items out of f-strings",
    item_of_a_dict_in_an_f_string: "take loop items out of f-strings",
    collected_from_a_loop_in_a_loop: "collects from a loop inside a loop",
    f_string_for_a_nested_pipeline: "is given an f-string",
    condition_with_a_quote: "not a plain word",
    condition_with_an_operator: "not a plain word",
    ignored_failure: "ignores the failure of say",
    workspace: "workspace",
}


def check(path: Path, arguments: dict[str, Any] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        kfp_spec.check(pipeline_spec.read(path), arguments or {}, ("red", "blue"))
    assert caught.value.code == 10
    return caught.value.what


@pytest.mark.parametrize("pipeline", REFUSED, ids=list(REFUSED.values()))
def test_what_kfp_gets_wrong_is_rejected_by_name(
    compile_pipeline: Compile, pipeline: Callable[..., Any]
) -> None:
    assert REFUSED[pipeline] in check(compile_pipeline(pipeline, "pipeline"))


def test_pipeline_that_takes_an_artifact_cannot_be_the_start(compile_pipeline: Compile) -> None:
    assert "it takes artifacts (data)" in check(compile_pipeline(read, "read"))


@pytest.mark.covers("B1")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "argument count: missing (NUMBER_INTEGER)"),
        ({"count": 1, "colour": "red"}, "argument colour: unknown; did you mean color?"),
        ({"count": "1"}, "argument count: expected NUMBER_INTEGER, got '1'"),
        ({"count": True}, "argument count: expected NUMBER_INTEGER, got True"),
        ({"count": 1, "color": "{" + "{$.x}}"}, "argument color: holds {{$"),
        ({"count": 1, "color": "a" * 100_001}, "argument color: is 100,001 bytes long"),
        ({"count": 1, "color": "it's red"}, "argument color: a condition reads it"),
        ({"count": 1, "color": os.fsdecode(b"\xff")}, "argument color: is not text"),
        ({"count": 1, "ratio": float("nan")}, "argument ratio: nan is no JSON"),
    ],
)
def test_arguments_are_checked_before_anything_runs(
    compile_pipeline: Compile, arguments: dict[str, Any], problem: str
) -> None:
    def pipeline(count: int, color: str = "red", ratio: float = 1.0) -> None:
        with dsl.If(color == "red"):
            say(text=f"{count} {ratio}")

    assert problem in check(compile_pipeline(pipeline), arguments)


def test_optional_parameter_without_a_value_is_rejected(compile_pipeline: Compile) -> None:
    @red
    def maybe(text: Optional[str] = None) -> str:  # noqa: UP045 - kfp reads no other spelling
        return str(text)

    assert "pass '' for absent" in check(compile_pipeline(maybe, "maybe"))


def test_everything_that_is_wrong_is_named_at_once(compile_pipeline: Compile) -> None:
    def pipeline(count: int) -> None:
        foreign()
        with dsl.ParallelFor(listed().outputs["items"]) as item:
            say(text=item)

    what = check(compile_pipeline(pipeline), {"color": "red"})
    assert all(
        part in what for part in ("argument color", "argument count", "python:3.11", "named output items")
    )


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("PASS", True),
        ("gs://bucket/a-b_c.d@1", True),
        (3, True),
        (["PASS", "HOLD"], True),
        ("", True),
        ("it's", False),
        ("x' or 'b' == 'b", False),
        ("a && b", False),
        ("pipelinechannel--x", False),
        (["PASS", "'"], False),
        ("back\\slash", False),
        ("new\nline", False),
    ],
)
def test_only_plain_words_can_be_compared(value: Any, plain: bool) -> None:
    assert kfp_spec.is_plain(value) == plain


@pytest.mark.covers("B71")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "not valid YAML"),
        ("a: 1", "not a compiled pipeline"),
        ("", "not a compiled pipeline"),
        ("root: {}", "not a pipeline that kfp 2.17 compiled"),
    ],
)
def test_file_that_is_no_compiled_pipeline_is_rejected(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        pipeline_spec.read(path)
    for nothing in (tmp_path / "other.yaml", tmp_path, path / "inside.yaml"):
        with pytest.raises(InputError, match="no such compiled pipeline"):
            pipeline_spec.read(nothing)
