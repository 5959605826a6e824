"""The smoke test of a model: a clean process loads it and scores its example; the result is stored."""

from pathlib import Path

from trainwright import sandbox
from trainwright.artifacts import Model, Trial
from trainwright.artifacts.model import target_kind
from trainwright.documents import digest_file, read_json
from trainwright.errors import InputError, ModelRefused
from trainwright.report.markdown import escape, table
from trainwright.tracking import Stopwatch, environment


def try_model(
    model: Path, model_version: str, folder: Path, summary: Path, *, timeout_s: float = 600
) -> Trial:
    """Load a model in a clean process, score its input example, and write the result.

    Args:
        model: The model's folder.
        model_version: Expected digest of its manifest.
        folder: Output folder of ``trial.json`` and ``record.json``, also of a model that fails.
        summary: Markdown output.
        timeout_s: Limit for the answer.

    Returns:
        The trial, which passed.

    Raises:
        InputError: There is no such model, or it has no input example.
        ModelRefused: It cannot be loaded, or its scores do not match its signature.
    """
    watch = Stopwatch()
    _check_model(model, model_version)
    said, scores, measured, protections = _answer(model.resolve(), model_version, timeout_s)
    trial = Trial(
        model=model_version,
        input_example=digest_file(model / "input_example.json"),
        said=said,
        scores=scores,
        measured=measured,
        environment=environment(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    summary.parent.mkdir(parents=True, exist_ok=True)
    problems = trial.problems(target_kind(read_json(model / "signature.json")))
    said = "; ".join(problems) or said
    rows = [("model", model_version), ("environment", environment().name), ("answer", said)]
    rows += [("protections", "; ".join(protections))]
    result = "did not answer as it says" if problems else "answered"
    summary.write_text(f"**The model {result}** in a clean process.\n\n{table(('what', 'value'), rows)}")
    watch.record(
        folder,
        "smoke_test",
        f"{'REFUSED' if problems else 'loaded in a clean process'}: {escape(said)}",
        config={"protections": list(protections)},
        inputs={"model": model_version},
        outputs={"trial": trial.digest},
        parents=[model],
    )
    trial.write(folder)
    if problems:
        raise ModelRefused(
            f"the model cannot be served as it was written: {said}",
            where=str(model),
            hint="Mend the architecture or how it is exported, and train again.",
        )
    return trial


def _check_model(model: Path, model_version: str) -> None:
    found = Model.read(model).digest
    if found != model_version:
        raise InputError(
            f"cached input changed: model {found[:12]}, expected {model_version[:12]}", where=str(model)
        )
    for name in ("input_example.json", "signature.json"):
        if not (model / name).is_file():
            raise InputError(
                f"the model has no {name} to be tried with",
                where=str(model),
                hint="Train it with the train component, or write the file and name it in the manifest.",
            )


def _answer(
    model: Path, model_version: str, timeout_s: float
) -> tuple[str, str, dict[str, float], tuple[str, ...]]:
    """Return the answer of the clean process or its error, scores' digest and numbers, and protections."""
    limits = sandbox.model_limits(model, seconds=timeout_s)
    done = sandbox.run("trainwright.smoke_test", [str(model), model_version], limits)
    if done.error:
        return done.error.what, "", {}, done.protections
    answer = done.answer
    return answer["said"], answer["scores"], answer["measured"], done.protections
