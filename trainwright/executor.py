"""Run the function of a component of this library: ``python3 -m trainwright.executor``, with kfp's arguments.

A compiled pipeline names the function, and the image has its source. Kubeflow Pipelines writes what a
pipeline carries nine times into the workflow of a run, for which Argo has 1 MiB.
"""

import argparse
import ast
import json
import os
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from trainwright import COMPONENTS
from trainwright.errors import DependencyError, reported
from trainwright.imports import collect_rarely

_OF_THE_PLATFORM = re.compile(r"pipelinechannel--.*|(cpu|memory|accelerator)_\w+")
"""Inputs that Kubeflow Pipelines adds for the sizes of a pod."""


def load(name: str) -> Callable[..., Any]:
    """Return the function of a component without its decorator, which compiles it: a step has no compiler."""
    from kfp import dsl

    path = COMPONENTS / name / "component.py"
    if not path.is_file():
        raise _mismatch(f"it has no component {name!r}")
    definitions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    for node in definitions:
        node.decorator_list.clear()
    names: dict[str, Any] = {"dsl": dsl, "NamedTuple": NamedTuple}
    code = compile(ast.Module([*definitions], []), str(path), "exec")
    exec(code, names)  # noqa: S102  # nosec B102 - a file of the library
    function: Callable[..., Any] = names[name]
    return function


def require_known(function: Callable[..., Any], inputs: Collection[str]) -> None:
    """Reject inputs that the function does not have: kfp would ignore them."""
    unknown = {name for name in inputs if not _OF_THE_PLATFORM.fullmatch(name)} - {*function.__annotations__}
    if unknown:
        raise _mismatch(f"{function.__name__} has no input {', '.join(sorted(unknown))}")


def _mismatch(what: str) -> DependencyError:
    return DependencyError(
        f"the step's image is of another version than its pipeline: {what}",
        where=str(COMPONENTS),
        hint="Build the images from the commit of the pipeline: make images.",
    )


def main() -> None:
    """Run the function that the arguments name, as ``kfp.dsl.executor_main`` does."""
    collect_rarely()
    os.environ["_KFP_RUNTIME"] = "true"  # kfp then imports only what a step needs
    from kfp.dsl.executor import Executor

    parser = argparse.ArgumentParser()
    parser.add_argument("--executor_input", type=json.loads, required=True)
    parser.add_argument("--function_to_execute", required=True)
    arguments = parser.parse_args()
    with reported(arguments.function_to_execute):
        function = load(arguments.function_to_execute)
        inputs = arguments.executor_input.get("inputs", {})
        require_known(function, {*inputs.get("parameterValues", {}), *inputs.get("artifacts", {})})
        Executor(executor_input=arguments.executor_input, function_to_execute=function).execute()


if __name__ == "__main__":
    main()
