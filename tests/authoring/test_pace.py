"""How fast a step is to work is no part of what it makes; everything else that it is told is."""

import dataclasses
from typing import Any

import pytest

from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.pipeline_spec import Step
from trainwright.local.invocation import decisive

DATA: dict[str, Any] = {"key": "id", "runner": {"engine": "processes", "workers": 2}}


@pytest.fixture
def ingest() -> Step:
    (step,) = pipeline_spec.read(catalog.component("ingest")).steps
    return step


def of(step: Step, data: object) -> dict[str, Any]:
    return decisive(step, {"source": "a", "data": data})


def test_the_number_of_workers_of_ingest_decides_nothing_and_all_else_does(ingest: Step) -> None:
    first = of(ingest, DATA)
    assert first == of(ingest, DATA | {"runner": {"engine": "processes", "workers": 9}})
    assert first == {"source": "a", "data": {"key": "id", "runner": {"engine": "processes"}}}
    assert first != of(ingest, DATA | {"runner": {"engine": "beam", "workers": 2}})
    assert first != of(ingest, DATA | {"key": "other"})
    assert first != of(ingest, DATA | {"workers": 2})


@pytest.mark.parametrize("change", ["command", "env"])
def test_in_other_code_of_the_same_name_every_parameter_decides(ingest: Step, change: str) -> None:
    container = dict(ingest.container)
    if change == "command":
        container["command"] = [part.replace("made.digest", "data") for part in container["command"]]
    else:
        container["env"] = [{"name": "LANG", "value": "C"}]
    other = dataclasses.replace(ingest, container=container)
    assert other.container != ingest.container
    assert of(other, DATA) == {"source": "a", "data": DATA}


@pytest.mark.parametrize("name", [name for name in catalog.names() if name != "ingest"])
def test_in_any_other_component_every_parameter_decides(name: str) -> None:
    (step,) = pipeline_spec.read(catalog.component(name)).steps
    assert of(step, DATA) == {"source": "a", "data": DATA}


@pytest.mark.parametrize("data", ["", 3, None, {"runner": 4}, {"runner": {"engine": "beam"}}, []], ids=str)
def test_what_is_no_such_section_is_left_as_it_is(ingest: Step, data: object) -> None:
    assert of(ingest, data)["data"] == data
