"""One run as a comparison sees it: its settings, its seed, what it was judged on, and its figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.artifacts import Record
from trainwright.documents import canonical
from trainwright.errors import InputError
from trainwright.evaluate.measured import HIGHER, LOWER, Measure, Measured
from trainwright.verdicts import Verdict

PLACES = ("", "verdict", "evaluate/verdict")
"""Where the verdict lies in a folder that is given: it is the verdict's, the step's or the run's."""

_SEED = "training.seed"
_NOT_ASKED = ("launched_by.", _SEED)
_JUDGING = ("threshold", "thresholds", "averaging")
"""Settings of the evaluation that change the figures themselves; its limits do not."""

_UPSTREAM = frozenset({"join", "ingest"})
_WHEREABOUTS = frozenset({"source", "repository", "store", "remember", "hosts", "version", "runner", "mode"})
"""Settings that say where data lies or how it is moved; what it is, its digest says."""

_BETTER = {"AUC": HIGHER, "auc": HIGHER, "accuracy": HIGHER, "calibration error": LOWER}


@dataclass(frozen=True)
class Run:
    """One judged training.

    Attributes:
        name: What it is called in the comparison: the folder's name.
        folder: What was given.
        seed: Of the training.
        settings: Everything that was asked of it but the seed, by dotted name.
        upstream: Settings of the steps that made the training set; they count where that differs.
        training_set: Digest of what it was fitted on.
        data: What it was judged on: equal for equal rows.
        rows: How many rows those are; 0 if unknown.
        measures: Its figures by name.
        started: When it was judged, ISO 8601.
        library: Digest of the library that trained it.
    """

    name: str
    folder: Path
    seed: int
    settings: Mapping[str, str]
    upstream: Mapping[str, str]
    training_set: str
    data: str
    rows: int
    measures: Mapping[str, Measure] = field(repr=False)
    started: str = ""
    library: str = ""


def read_run(folder: Path) -> Run:
    """Read a run from its folder, or from that of its evaluation.

    Raises:
        InputError: There is no verdict of an evaluation, or its record does not lead to a training.
    """
    place = _verdict_folder(folder)
    verdict, record = Verdict.read(place), Record.read(place)
    if record.step != "evaluate":
        raise InputError(f"a verdict of {record.step}, not of evaluate", where=str(place))
    chain = list(_chain(record))
    train = next((entry for entry in chain if entry.step == "train"), None)
    if train is None:
        raise InputError(
            "its record names no training: settings and seed are unknown",
            where=str(place),
            hint="Compare folders of runs that trainwright made; predictions from elsewhere have no seed.",
        )
    settings = dict(_flat(train.config))
    measured = _measured(place, verdict)
    return Run(
        name=folder.resolve().name,
        folder=folder,
        seed=int(settings.get(_SEED, "0")),
        settings={key: value for key, value in settings.items() if not key.startswith(_NOT_ASKED)}
        | {f"evaluation.{key}": text for key, text in _flat(record.config) if key in _JUDGING},
        upstream=_upstream(chain),
        training_set=train.inputs.get("training_set", ""),
        data=_data(verdict, record, measured),
        rows=measured.rows if measured else 0,
        measures={entry.name: entry for entry in (measured.measures if measured else _rules(verdict))},
        started=record.started,
        library=train.environment.library_sha256,
    )


def _verdict_folder(folder: Path) -> Path:
    for place in PLACES:
        if (folder / place / Verdict.FILE).is_file():
            return folder / place
    if not folder.is_dir():
        raise InputError(
            "there is no such folder", where=str(folder), hint="Give folders such as runs/1rqz9p."
        )
    raise InputError(
        f"no {Verdict.FILE} of an evaluation: not in the folder, in its verdict/ or in its evaluate/verdict/",
        where=str(folder),
        hint="Give folders of runs that came as far as evaluate, such as runs/1rqz9p.",
    )


def _chain(record: Record) -> Iterator[Record]:
    yield record
    for parent in record.parents:
        yield from _chain(parent)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name every setting by its dotted path; lists stay whole, what is absent has no name."""
    for key, value in sorted(config.items()):
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None and value != {}:
            yield f"{prefix}{key}", value if isinstance(value, str) else canonical(value)


def _upstream(chain: list[Record]) -> dict[str, str]:
    return {
        f"{record.step}.{key}": text
        for record in chain
        if record.step in _UPSTREAM
        for key, text in _flat(record.config)
        if key.partition(".")[0] not in _WHEREABOUTS
    }


def _measured(place: Path, verdict: Verdict) -> Measured | None:
    if not (place / Measured.FILE).is_file():
        return None
    measured, judged = Measured.read(place), verdict.judged.get("predictions", "")
    if measured.predictions != judged:
        raise InputError(
            f"{Measured.FILE} is of predictions {measured.predictions[:12]}, the verdict of {judged[:12]}",
            where=str(place),
            hint="One of the two was changed or copied here; run evaluate again.",
        )
    return measured


def _rules(verdict: Verdict) -> Iterator[Measure]:
    """Read what a verdict alone tells: the numbers that its rules were about."""
    for rule in verdict.rules:
        better = _BETTER.get(rule.name, LOWER if "gap" in rule.name else "")
        yield Measure(name=rule.name, value=rule.value, better=better)


def _data(verdict: Verdict, record: Record, measured: Measured | None) -> str:
    if measured:
        return measured.rows_digest
    if not (training_set := verdict.judged.get("predictions.training_set")):
        return f"{verdict.judged.get('predictions', '')} (predictions of unknown rows)"
    return f"{training_set} split {record.config.get('split', '')}"
