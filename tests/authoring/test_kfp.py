"""What the local runner relies on in kfp.

Each fact is shown on kfp itself, with a task handler that runs nothing. A test that fails after an upgrade of
kfp says which part of ``trainwright.authoring`` to look at again.
"""

import json
from collections.abc import Callable
from pathlib import Path

import kfp
import pytest
from kfp import dsl
from kfp.local import status

from tests.authoring.probe import Probe, close, judge, make, read, say
from trainwright.local import kfp_local

Local = Callable[..., None]


def test_this_is_a_version_of_kfp_that_these_tests_were_written_for() -> None:
    assert kfp.__version__.startswith(kfp_local.VERSIONS)


def test_handler_is_looked_up_by_name_when_a_task_is_run(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text="a")

    first, second = Probe(), Probe()
    kfp_local(pipeline, first)
    kfp_local(pipeline, second)
    assert first.names() == second.names() == ["say"]


def test_command_arrives_with_every_placeholder_filled_in(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text=f"{say(text='a').output} in {dsl.PIPELINE_TASK_NAME_PLACEHOLDER}")

    probe = Probe(outputs={"say": {"Output": "b"}})
    kfp_local(pipeline, probe)
    assert all("{{$" not in part for command in probe.commands for part in command)
    assert probe.given("say-2")["text"] == "b in say-2"


def test_lightweight_component_is_started_through_sh_and_python3_of_the_path(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text="a")

    probe = Probe()
    kfp_local(pipeline, probe)
    assert probe.commands[0][:2] == ["sh", "-ec"]
    assert "python3 -m kfp.dsl.executor_main" in probe.commands[0][2]


def test_outputs_are_read_from_the_file_that_the_executor_input_names(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text=judge(text="x").outputs["decision"])

    probe = Probe(outputs={"judge": {"decision": "from the file"}})
    kfp_local(pipeline, probe)
    assert probe.given("say")["text"] == "from the file"


def test_folder_of_a_task_is_named_after_its_component_and_its_turn(kfp_local: Local) -> None:
    def pipeline() -> None:
        with dsl.ParallelFor(["a", "b"]) as item:
            say(text=item)

    probe = Probe()
    kfp_local(pipeline, probe)
    assert sorted(probe.names()) == ["for-loop-2-iteration-0/say", "for-loop-2-iteration-1/say"]


def test_artifact_goes_on_with_the_uri_that_the_step_returned(kfp_local: Local, tmp_path: Path) -> None:
    def pipeline() -> None:
        read(data=make().outputs["data"])

    class Moved(Probe):
        def call(self, command: list[str]) -> status.Status:
            result = super().call(command)
            place = Path(self.calls[-1][1]["outputs"]["outputFile"])
            if place.parent.name == "make":
                artifact = {"name": "data", "uri": "/elsewhere/data", "metadata": {"rows": 3}}
                place.write_text(json.dumps({"artifacts": {"data": {"artifacts": [artifact]}}}))
            return result

    probe = Moved()
    kfp_local(pipeline, probe)
    (given,) = dict(probe.calls)["read"]["inputs"]["artifacts"]["data"]["artifacts"]
    assert given["uri"] == "/elsewhere/data"
    assert given["type"]["schemaTitle"] == "system.Dataset"


@pytest.mark.parametrize(("failing", "state"), [((), "SUCCEEDED"), (("say",), "FAILED")])
def test_exit_handler_runs_last_and_is_given_the_state(
    kfp_local: Local, failing: tuple[str, ...], state: str
) -> None:
    def pipeline() -> None:
        with dsl.ExitHandler(close()):
            judge(text=say(text="a").output)

    probe = Probe(failing=failing, outputs={"say": {"Output": "b"}})
    if failing:
        with pytest.raises(RuntimeError, match="finished with status"):
            kfp_local(pipeline, probe)
    else:
        kfp_local(pipeline, probe)
    assert probe.names()[-1] == "close"
    assert probe.given("close")["status"]["state"] == state


@pytest.mark.parametrize(("decision", "reached"), [("PASS", True), ("HOLD", False)])
def test_condition_on_a_plain_word_takes_the_right_branch(
    kfp_local: Local, decision: str, reached: bool
) -> None:
    def pipeline() -> None:
        with dsl.If(say(text="a").output == "PASS"):
            judge(text="b")

    probe = Probe(outputs={"say": {"Output": decision}})
    kfp_local(pipeline, probe)
    assert ("judge" in probe.names()) == reached


def test_lightweight_component_needs_no_pip_when_it_is_told_so(kfp_local: Local) -> None:
    def pipeline() -> None:
        say(text="a")

    probe = Probe()
    kfp_local(pipeline, probe)
    assert "pip install" not in " ".join(probe.commands[0])
