"""The trial of a model: a clean process loads it and scores its example, and what it said is kept."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trainwright.artifacts import Model, Trial
from trainwright.documents import digest_file
from trainwright.errors import MARK, InputError, ModelRefused
from trainwright.report.markdown import escape, table
from trainwright.tracking import Stopwatch, environment

_KEPT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "LANG")
"""Variables that a process needs to start at all; no other is handed on."""


@dataclass(frozen=True)
class _Answer:
    """The answer of the clean process."""

    passed: bool
    said: str
    scores: str


def try_model(
    model: Path, model_version: str, folder: Path, summary: Path, *, timeout_s: float = 600
) -> Trial:
    """Load a model in a clean process, score its input example, and write down what came of it.

    Args:
        model: The model's folder.
        model_version: The digest its manifest must have.
        folder: For ``trial.json`` and ``record.json``, which are written whatever came of it.
        summary: Markdown file.
        timeout_s: After so long without an answer, the model counts as one that gives none.

    Returns:
        The trial, which passed.

    Raises:
        InputError: There is no such model, or it has no input example.
        ModelRefused: It cannot be loaded, or does not answer as it says.
    """
    watch = Stopwatch()
    _require_version(model, model_version)
    answer = _ask(model.resolve(), model_version, timeout_s)
    trial = Trial(
        model=model_version,
        input_example=digest_file(model / "input_example.json"),
        passed=answer.passed,
        said=answer.said,
        scores=answer.scores,
        environment=environment(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    summary.parent.mkdir(parents=True, exist_ok=True)
    rows = [("model", model_version), ("environment", environment().name), ("answer", answer.said)]
    said = "answered" if answer.passed else "did not answer as it says"
    summary.write_text(f"**The model {said}** in a clean process.\n\n{table(('what', 'value'), rows)}")
    watch.record(
        folder,
        "smoke_test",
        f"{'loaded in a clean process' if answer.passed else 'REFUSED'}: {escape(answer.said)}",
        inputs={"model": model_version},
        outputs={"trial": trial.digest},
        parents=[model],
    )
    trial.write(folder)
    if not answer.passed:
        raise ModelRefused(
            f"the model cannot be served as it was written: {answer.said}",
            where=str(model),
            hint="Mend the architecture or how it is exported, and train again.",
        )
    return trial


def _require_version(model: Path, model_version: str) -> None:
    found = Model.read(model).digest
    if found != model_version:
        raise InputError(
            f"cached input changed: model {found[:12]}, expected {model_version[:12]}", where=str(model)
        )
    if not (model / "input_example.json").is_file():
        raise InputError(
            "the model has no input_example.json to be tried on",
            where=str(model),
            hint="Train it with the train component, or write the file and name it in the manifest.",
        )


def _ask(model: Path, model_version: str, timeout_s: float) -> _Answer:
    """Start the clean process; whatever becomes of it is an answer."""
    command = [sys.executable, "-I", "-m", "trainwright.smoke_test", str(model), model_version]
    with TemporaryDirectory() as scratch:
        plain = {name: os.environ[name] for name in _KEPT if name in os.environ}
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter and module
                command,
                cwd=scratch,
                env=plain | {"HOME": scratch},
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _Answer(False, f"no answer within {timeout_s:g} s", "")
    if done.returncode == 0:
        answer = json.loads(done.stdout.splitlines()[-1])
        return _Answer(True, answer["said"], answer["scores"])
    return _Answer(False, _failed(done.returncode, done.stderr), "")


def _failed(code: int, said: str) -> str:
    if code < 0:
        return f"the process was killed by signal {-code}"
    marked = [line.removeprefix(MARK) for line in said.splitlines() if line.startswith(MARK)]
    return str(json.loads(marked[-1])["what"]) if marked else f"it ended with {code}: {said.strip()[-300:]}"
