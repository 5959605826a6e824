"""Small components that run in the two environments of the tests."""

from typing import NamedTuple

from kfp import dsl

red = dsl.component(base_image="trainwright/red:0.1.0", install_kfp_package=False)
blue = dsl.component(base_image="host:5000/team/trainwright/blue:0.1.0", install_kfp_package=False)


@red
def version_in_red() -> str:
    import clash

    return clash.VERSION


@blue
def version_in_blue() -> str:
    import clash

    return clash.VERSION


@red
def say(text: str) -> str:
    print("said", text)  # noqa: T201
    return text


@red
def types(numbers: list, table: dict, ratio: float, count: int) -> str:
    return repr([numbers, table, ratio, count])


@red
def counted() -> NamedTuple("Counted", [("count", int), ("word", str)]):
    return (3, "PASS")


@red
def folders(
    snapshot: dsl.Output[dsl.Dataset],
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    from pathlib import Path

    Path(snapshot.path).mkdir()
    Path(snapshot.path, "rows").write_text("1\n2\n")
    Path(report.path).write_text("<p>")
    Path(summary.path).write_text("# ok")
    metrics.log_metric("rows", 2)
    snapshot.metadata["place"] = snapshot.path
    return snapshot.path


@red
def content(snapshot: dsl.Input[dsl.Dataset]) -> str:
    from pathlib import Path

    return Path(snapshot.path, "rows").read_text()


@red
def gate(
    decision: str, verdict: dsl.Output[dsl.Artifact], report: dsl.Output[dsl.HTML], verb: str = "evaluate"
) -> str:
    from pathlib import Path

    from trainwright.tracking import Stopwatch

    Path(verdict.path).mkdir()
    Stopwatch().record(Path(verdict.path), verb, "recall gap 0.081 > 0.050", decision=decision)
    Path(report.path).write_text("<p>")
    return decision


@red
def hold(gate: str) -> str:
    return gate


@red
def fail(code: int, marks: str) -> str:
    import os
    import sys

    with open(marks, "a") as stream:
        stream.write("x")
    if code == 10:
        from trainwright.errors import InputError, reported

        with reported("fail"):
            raise InputError("column dep_hour is missing", where="flights.parquet", hint="Add it.")
    if code < 0:
        os.kill(os.getpid(), -code)
    if code == 1:
        raise ValueError("boom")
    print("ended on purpose", file=sys.stderr)  # noqa: T201
    sys.exit(code)


@red
def says_so(line: str, code: int) -> str:
    import sys

    print(line, file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)


@red
def says_once(line: str, code: int, marks: str) -> str:
    import sys
    from pathlib import Path

    print("second attempt" if Path(marks).exists() else line, file=sys.stderr, flush=True)  # noqa: T201
    Path(marks).touch()
    sys.exit(code)


@red
def resumed(lives: int, model: dsl.Output[dsl.Model]) -> str:
    import sys
    from pathlib import Path

    home = Path(model.path).with_name(".model.job-1")
    home.mkdir(parents=True, exist_ok=True)
    before = len(list(home.iterdir()))
    (home / str(before)).touch()
    assert not Path(model.path).exists()
    Path(model.path).mkdir()
    if before + 1 < lives:
        sys.exit(41)
    return str(before + 1)


@red
def close(status: dsl.PipelineTaskFinalStatus, root: str, job: str) -> str:
    print("closing", status.state, root, job)  # noqa: T201
    return f"{status.state} {status.pipeline_task_name} {status.error_code}"


@red
def surroundings() -> str:
    import json
    import os
    import sys
    import tempfile

    return json.dumps(
        {"path": sys.path, "temporary": tempfile.gettempdir(), "unset": "PYTHONHOME" in os.environ}
    )


@red
def sleepy() -> str:
    import time

    time.sleep(600)
    return ""


@red
def bring(source: str, snapshot: dsl.Output[dsl.Dataset]) -> str:
    import shutil
    import time
    from pathlib import Path

    from trainwright.tracking import Stopwatch

    Path(snapshot.path, "data", "empty").mkdir(parents=True)
    shutil.copy(source, Path(snapshot.path, "data", "rows"))
    snapshot.metadata["path"] = snapshot.path
    Stopwatch().record(Path(snapshot.path), "bring", f"brought at {time.time_ns()}")
    return Path(source).read_text()


@red
def count(
    snapshot: dsl.Input[dsl.Dataset], letter: str, marks: str, summary: dsl.Output[dsl.Markdown]
) -> int:
    from pathlib import Path

    with open(marks, "a") as stream:
        stream.write("count ")
    number = Path(snapshot.path, "data", "rows").read_text().count(letter)
    Path(summary.path).write_text(f"{number}\n")
    return number


@red
def tell(number: int, image: str = "") -> str:
    return f"{number} found"


@red
def written(name: dsl.OutputPath(str), number: dsl.OutputPath(int)):
    from pathlib import Path

    Path(name).write_text("a name")
    Path(number).write_text("3")


@red
def both(name: str, number: int) -> str:
    return f"{name} {number}"
