"""What kfp.local does wrong, and the local runner works around.

Each defect is shown on kfp itself. A test that fails after an upgrade of kfp names a work-around in
``trainwright.authoring`` that is no longer needed.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl
from kfp.local import status

from tests.authoring.probe import Probe, judge, make, pages, read, say, take

Local = Callable[..., None]


def test_defect_the_name_of_the_interpreter_is_replaced_inside_of_parameters(
    kfp_local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pipeline() -> None:
        say(text="image python3.11-slim")

    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what kfp's own runner leaves behind goes here
    kfp_local(pipeline, None)
    (output,) = (tmp_path / "root").rglob("executor_output.json")
    assert "image python3.11-slim" not in output.read_text()


def test_defect_integers_in_lists_and_dicts_become_floats(kfp_local: Local) -> None:
    def pipeline() -> None:
        take(numbers=[64, 32], table={"epochs": 3})

    probe = Probe()
    kfp_local(pipeline, probe)
    assert repr(probe.given("take")["numbers"]) == "[64.0, 32.0]"
    assert repr(probe.given("take")["table"]) == "{'epochs': 3.0}"


def test_defect_an_integer_in_an_f_string_becomes_a_float(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text=f"{judge(text='a').outputs['count']} rows")

    probe = Probe(outputs={"judge": {"decision": "x", "count": 3}})
    kfp_local(pipeline, probe)
    assert probe.given("say")["text"] == "3.0 rows"


def test_defect_a_condition_on_a_named_output_skips_its_branch_in_silence(kfp_local: Local) -> None:
    def pipeline() -> None:
        with dsl.If(judge(text="a").outputs["decision"] == "PASS"):
            say(text="b")

    probe = Probe(outputs={"judge": {"decision": "PASS", "count": 3}})
    kfp_local(pipeline, probe)
    assert probe.names() == ["judge"]


def test_defect_a_condition_evaluates_the_text_it_compares(kfp_local: Local) -> None:
    def pipeline() -> None:
        with dsl.If(say(text="a").output == "PASS"):
            judge(text="b")

    probe = Probe(outputs={"say": {"Output": "x' or 'b' == 'b"}})
    kfp_local(pipeline, probe)
    assert "judge" in probe.names(), "the text is not PASS, and the branch was taken"


def test_defect_a_group_that_takes_artifacts_only_loses_them(kfp_local: Local) -> None:
    @dsl.pipeline
    def inner(data: dsl.Input[dsl.Dataset]) -> None:
        read(data=data)

    def pipeline() -> None:
        inner(data=make().outputs["data"])

    with pytest.raises(ValueError, match="not found"):
        kfp_local(pipeline, Probe())


def test_defect_a_loop_over_a_named_output_fails(kfp_local: Local) -> None:
    def pipeline() -> None:
        with dsl.ParallelFor(pages().outputs["items"]) as item:
            say(text=item)

    with pytest.raises(ValueError, match="not found"):
        kfp_local(pipeline, Probe(outputs={"pages": {"items": ["a"]}}))


def test_defect_a_loop_item_in_an_f_string_of_an_inner_loop_is_not_passed_on(kfp_local: Local) -> None:
    def pipeline() -> None:
        with dsl.ParallelFor(["a"]) as outer, dsl.ParallelFor(["b"]) as inner:
            say(text=f"{outer}-{inner}")

    with pytest.raises(RuntimeError, match="finished with status"):
        kfp_local(pipeline, Probe())


def test_defect_an_f_string_for_a_nested_pipeline_is_never_filled_in(kfp_local: Local) -> None:
    @dsl.pipeline
    def inner(text: str) -> None:
        judge(text=text)

    def pipeline() -> None:
        inner(text=f"<{say(text='a').output}>")

    probe = Probe(outputs={"say": {"Output": "b"}})
    kfp_local(pipeline, probe)
    assert probe.given("judge")["text"] == "<null>"


def test_defect_one_of_several_artifacts_fails(kfp_local: Local) -> None:
    @dsl.pipeline
    def inner(text: str) -> dsl.Dataset:
        with dsl.If(text == "a"):
            one = make()
        with dsl.Else():
            two = make()
        return dsl.OneOf(one.outputs["data"], two.outputs["data"])

    def pipeline() -> None:
        read(data=inner(text="a").output)

    with pytest.raises(ValueError, match="Expected 1 artifact"):
        kfp_local(pipeline, Probe())


def test_defect_the_time_of_the_run_cannot_be_asked_for(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text=dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER)

    with pytest.raises(IndexError):
        kfp_local(pipeline, Probe())


def test_defect_a_failed_task_is_tried_again_whatever_its_exit_code(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text="a").set_retry(1, backoff_duration="0s")

    probe = Probe(failing=("say",))
    with pytest.raises(RuntimeError):
        kfp_local(pipeline, probe)
    assert probe.names() == ["say", "say"]


def test_defect_the_cache_of_kfp_gives_a_stale_answer_for_a_changed_file(
    kfp_local: Local, tmp_path: Path
) -> None:
    data = tmp_path / "data"

    class Reader(Probe):
        def call(self, command: list[str]) -> status.Status:
            result = super().call(command)
            place = Path(self.calls[-1][1]["outputs"]["outputFile"])
            artifact = {"name": "data", "uri": str(data), "metadata": {}}
            written = {
                "make": {"artifacts": {"data": {"artifacts": [artifact]}}},
                "read": {"parameterValues": {"Output": data.read_text()}},
            }
            place.write_text(json.dumps(written[place.parent.name]))
            return result

    def pipeline() -> None:
        made = make().set_caching_options(False)
        say(text=read(data=made.outputs["data"]).output).set_caching_options(False)

    class Said(Reader):
        def call(self, command: list[str]) -> status.Status:
            return Probe.call(self, command) if "say" in command else super().call(command)

    probe = Said()
    for content in ("one", "two"):
        data.write_text(content)
        kfp_local(pipeline, probe, enable_caching=True)
    assert [data["inputs"]["parameterValues"]["text"] for name, data in probe.calls if name == "say"] == [
        "one",
        "one",
    ]


def test_defect_independent_tasks_are_not_run_at_the_same_time(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text="a")
        judge(text="b")

    class Slow(Probe):
        under_way, most = 0, 0

        def call(self, command: list[str]) -> status.Status:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            time.sleep(0.05)
            self.under_way -= 1
            return super().call(command)

    slow = Slow()
    kfp_local(pipeline, slow)
    assert slow.most == 1


def test_defect_the_runner_leaves_a_temporary_folder_a_task(
    kfp_local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pipeline() -> None:
        say(text="a")

    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    kfp_local(pipeline, None)
    assert [name for name in os.listdir(tmp_path / "scratch") if name.startswith("tmp.")]
