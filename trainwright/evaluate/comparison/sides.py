"""Runs of the same settings are one side of a comparison; what differs between sides is their title."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainwright.errors import InputError
from trainwright.evaluate.comparison.runs import Run

_NAMED = 4
_LONGEST = 60
TRAINING_SET = "training set"


@dataclass(frozen=True)
class Side:
    """All runs that were asked for the same but for the seed.

    Attributes:
        letter: A short name: A is the side of the first run that was given, which others are compared with.
        title: The settings in which it differs from other sides.
        differing: The same, by name: every setting that differs between any two sides.
        runs: By seed, one each.
        left_out: Runs whose seed a later run of the same settings has.
    """

    letter: str
    title: str
    differing: Mapping[str, str]
    runs: Mapping[int, Run]
    left_out: tuple[Run, ...] = ()


def group(runs: Sequence[Run]) -> list[Side]:
    """Put runs into sides, in the order in which the sides were first given.

    Raises:
        InputError: Runs were judged on different data, or the same run was given twice.
    """
    _require_once(runs)
    _require_same_data(runs)
    settings = _settings(runs)
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run, asked in zip(runs, settings, strict=True):
        groups.setdefault(tuple(sorted(asked.items())), []).append(run)
    names = sorted({name for asked in settings for name in asked if _differs(name, settings)})
    return [
        _side(_letter(index), {name: dict(asked).get(name, "not set") for name in names}, members)
        for index, (asked, members) in enumerate(groups.items())
    ]


def _require_once(runs: Sequence[Run]) -> None:
    places = [run.folder.resolve() for run in runs]
    if twice := sorted({str(run.folder) for run in runs if places.count(run.folder.resolve()) > 1}):
        raise InputError(f"given twice: {', '.join(twice)}", hint="Name every run once.")


def _require_same_data(runs: Sequence[Run]) -> None:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.data, []).append(run)
    if len(found) > 1:
        said = "; ".join(
            f"{_short(data)}: {', '.join(run.name for run in members)}" for data, members in found.items()
        )
        raise InputError(
            f"judged on {len(found)} different sets of rows, whose numbers do not compare: {said}",
            hint="Compare runs of one data version and one split, or judge them on the same rows.",
        )


def _short(data: str) -> str:
    digest, _, rest = data.partition(" ")
    return f"{digest[:12] or 'unknown data'} {rest}".strip()


def _settings(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return what each run was asked for; the steps before training count where their result differs."""
    if len({run.training_set for run in runs}) == 1:
        return [dict(run.settings) for run in runs]
    return [{**run.settings, **run.upstream, TRAINING_SET: run.training_set[:12]} for run in runs]


def _differs(name: str, settings: Sequence[Mapping[str, str]]) -> bool:
    return len({asked.get(name) for asked in settings}) > 1


def _letter(index: int) -> str:
    """Name sides A to Z, then AA, AB and so on."""
    first, last = divmod(index, 26)
    return (_letter(first - 1) if first else "") + chr(ord("A") + last)


def _side(letter: str, differing: Mapping[str, str], members: Sequence[Run]) -> Side:
    latest: dict[int, Run] = {}
    for run in sorted(members, key=lambda run: run.started):
        latest[run.seed] = run
    kept = dict(sorted(latest.items()))
    left_out = tuple(run for run in members if kept[run.seed] is not run)
    return Side(letter, _title(differing), differing, kept, left_out)


def _title(differing: Mapping[str, str]) -> str:
    if not differing:
        return "all settings the same"
    shown = [
        f"{_brief(name, differing)} {_cut(value)}"
        for name, value in itertools.islice(differing.items(), _NAMED)
    ]
    more = len(differing) - _NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _brief(name: str, differing: Mapping[str, str]) -> str:
    """Drop the sections of a setting's name where the last part alone is clear."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in differing) == 1 else name


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"
