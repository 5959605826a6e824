import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainwright import errors


def every(kind: type[errors.TrainwrightError]) -> Iterator[type[errors.TrainwrightError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:  # a package's own error has the code of its parent
            yield from every(child)


def test_every_error_ends_with_the_code_that_the_tree_documents() -> None:
    documented = {}
    for line in (errors.__doc__ or "").splitlines():
        if line.strip().startswith(("├─", "└─")):
            _, name, code, *_ = line.split()
            documented[name] = int(code)
    actual = {kind.__name__: kind.code for kind in every(errors.TrainwrightError)}
    actual.pop("TrainwrightError")
    assert actual == documented


def test_an_error_of_ours_says_what_where_and_what_next_and_exits_with_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped, errors.reported("ingest"):
        raise errors.DataRefused(
            "0 rows in split 'evaluate'", where="flights.parquet", hint="widen the window"
        )
    assert stopped.value.code == 11
    text = capsys.readouterr().err
    assert (
        "DataRefused: 0 rows in split 'evaluate'\n  at    flights.parquet\n  next  widen the window" in text
    )
    [line] = [row for row in text.splitlines() if row.startswith(errors.MARK)]
    assert json.loads(line.removeprefix(errors.MARK)) == {
        "error": "DataRefused",
        "code": 11,
        "component": "ingest",
        "what": "0 rows in split 'evaluate'",
        "where": "flights.parquet",
        "hint": "widen the window",
        "retryable": False,
    }


def test_an_error_that_is_not_ours_keeps_its_traceback_and_exits_with_70(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped, errors.reported("train"):
        _ = {}["weights"]  # type: ignore[var-annotated]
    assert stopped.value.code == 70
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "KeyError: 'weights'" in text


def test_a_full_disk_is_no_bug_but_a_dependency_that_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, errors.reported("train"):
        Path("/dev/full").write_text("weights")
    assert stopped.value.code == 21
    text = capsys.readouterr().err
    assert "DependencyError: there is no room to write: No space left on device" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("length", [10, 5_000])
def test_a_failed_step_leaves_its_error_line_in_the_termination_message(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "termination-log"
    monkeypatch.setattr(errors, "TERMINATION_LOG", str(place))
    with pytest.raises(SystemExit), errors.reported("ingest"):
        raise errors.InputError("ü" * length, where="ö" * length, hint="Rename it.")
    assert not place.exists(), "outside of a pod nothing is written"
    place.write_text("earlier and longer " * 400)
    with pytest.raises(SystemExit), errors.reported("ingest"):
        raise errors.InputError("ü" * length, where="ö" * length, hint="Rename it.")
    assert place.stat().st_size <= 4_096
    found = errors.record_in(f"main: Error (exit code 1): {place.read_text()}")
    assert found is not None
    assert (found["code"], found["hint"], found["what"][:10]) == (10, "Rename it.", "ü" * 10)


def test_a_step_that_works_prints_nothing_and_does_not_exit(capsys: pytest.CaptureFixture[str]) -> None:
    with errors.reported("ingest"):
        pass
    assert capsys.readouterr() == ("", "")


def test_crash_of_a_step_or_of_its_child_leaves_no_core_file(tmp_path: Path) -> None:
    program = (
        "import os, resource, subprocess, sys\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)\n"
        "from trainwright.errors import reported\n"
        "with reported('step'):\n"
        "    print(resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)\n"
        "    subprocess.run([sys.executable, '-c', 'import os; os.abort()'])\n"
        "    os.abort()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGABRT, done.stderr
    assert int(done.stdout) <= 1, "Linux dumps into a pipe for 0, not for 1"
    assert list(tmp_path.iterdir()) == []
