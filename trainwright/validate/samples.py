"""Which samples are looked at, and which two of them are compared with each other."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.experiment import Validation
from trainwright.validate.baseline import Reference
from trainwright.validate.bins import Cuts
from trainwright.validate.comparison import MISSING, UNSEEN, rule_name
from trainwright.validate.distribution import Pair
from trainwright.validate.findings import Against
from trainwright.validate.limits import MEASURES, Limit, learned_from, served
from trainwright.validate.profile import Profile, count_split, own_cuts, profile_splits
from trainwright.verdicts import NotJudged


@dataclass(frozen=True)
class Samples:
    """What was looked at.

    Attributes:
        profiles: The splits with rows, by name.
        pairs: What is compared, by what it is compared with.
        learned: The split that the model learns from, in bins of its own, and those; None if it has no rows.
    """

    profiles: dict[str, Profile]
    pairs: dict[Against, Pair]
    learned: tuple[Profile, Mapping[str, Cuts]] | None


def split_names(validation: Validation) -> list[str]:
    """Return the splits that are looked at, the reference of the drift first."""
    names = (validation.previous, validation.current, learned_from(validation), validation.serving)
    return [name for name in dict.fromkeys(names) if name]


@dataclass(frozen=True)
class Bench:
    """Where splits are looked at, and how.

    Attributes:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        schema: The reviewed schema; columns that it does not name are not read.
        numbers: Columns to count in bins, if they hold numbers.
        validation: On what the rows are read, and where statistics are kept.
    """

    folder: Path
    snapshot: Snapshot
    schema: Any
    numbers: Sequence[str]
    validation: Validation

    def profiles(self, names: Sequence[str]) -> dict[str, Profile]:
        """Look at splits with rows, counted in the bins of the first."""
        if not names:
            return {}
        runner, store = self.validation.runner, self.validation.statistics_store or ""
        return profile_splits(
            self.folder, self.snapshot, names, self.schema, self.numbers,
            runner=runner, store=store, new_columns=False,
        )  # fmt: skip

    def cuts_of(self, profile: Profile) -> dict[str, Cuts]:
        """Return where the numeric columns of a sample are cut by its own quantiles."""
        return own_cuts(profile.statistics, self.numbers)

    def counted(self, profile: Profile, cuts: Mapping[str, Cuts]) -> Profile:
        """Return a split with its rows counted in the given bins; columns that it has not are left out."""
        there = {column.name for column in self.snapshot.columns}
        known = {name: points for name, points in cuts.items() if name in there}
        runner, store = self.validation.runner, self.validation.statistics_store or ""
        counts = count_split(self.folder, self.snapshot, profile.split, known, runner=runner, store=store)
        return replace(profile, counts=counts)


def samples(bench: Bench, snapshot: Snapshot, validation: Validation, baseline: Reference | None) -> Samples:
    """Look at the splits, and pair those that are compared.

    Args:
        bench: Counts.
        snapshot: The manifest.
        validation: Which splits are compared.
        baseline: The accepted baseline; None if there is none.
    """
    present = [name for name in split_names(validation) if snapshot.splits.get(name)]
    profiles = bench.profiles(present)
    pairs: dict[Against, Pair] = {}
    previous, current = profiles.get(validation.previous), profiles.get(validation.current)
    of_previous: Mapping[str, Cuts] = bench.cuts_of(previous) if previous else {}
    if previous and current:
        pairs["previous"] = Pair("previous", current, previous, of_previous)
    if baseline and current:
        judged = bench.counted(current, baseline.cuts)
        pairs["baseline"] = Pair("baseline", judged, baseline.profile, baseline.cuts)
    learned = _learned(bench, profiles, validation, of_previous)
    serving = profiles.get(validation.serving or "")
    if learned and serving:
        profile, cuts = learned
        judged = serving if cuts is of_previous else bench.counted(serving, cuts)
        pairs["serving"] = Pair("serving", judged, profile, cuts)
    return Samples(profiles, pairs, learned)


def _learned(
    bench: Bench, profiles: Mapping[str, Profile], validation: Validation, of_previous: Mapping[str, Cuts]
) -> tuple[Profile, Mapping[str, Cuts]] | None:
    """Return the split that the model learns from, counted in bins of its own."""
    name = learned_from(validation)
    profile = profiles.get(name)
    if profile is None:
        return None
    if name == validation.previous and profile.counts:
        return profile, of_previous
    cuts = bench.cuts_of(profile)
    return bench.counted(profile, cuts), cuts


def plan_of(against: Against, limits: tuple[Limit, ...], schema: Any) -> tuple[Limit, ...]:
    """Return what is compared with one reference: with serving, only what is known when a model predicts."""
    return served(limits, schema) if against == "serving" else limits


def asked_for(
    validation: Validation, baseline: Reference | None, there: Container[str]
) -> dict[Against, str]:
    """Return what the data is to be compared with, and why it cannot be; empty text if it can.

    Args:
        validation: Which splits are compared.
        baseline: The accepted baseline; None if there is none.
        there: Splits with rows.
    """
    wanted: dict[Against, tuple[str, ...]] = {"previous": (validation.previous, validation.current)}
    if baseline:
        wanted["baseline"] = (validation.current,)
    if validation.serving:
        wanted["serving"] = (learned_from(validation), validation.serving)
    gone = {against: [name for name in names if name not in there] for against, names in wanted.items()}
    return {
        against: f"split {names[0]} has no rows, or is not there" if names else ""
        for against, names in gone.items()
    }


def nothing_compared(against: Against, limits: Sequence[Limit], reason: str) -> list[NotJudged]:
    """Say of every comparison with one reference that it could not be made."""
    return [
        NotJudged(name=rule_name(limit.column, measure, against), reason=reason)
        for limit in limits
        for measure in (
            MEASURES[limit.comparator],
            MISSING,
            *([UNSEEN] if limit.kind == "categories" else []),
        )
    ]
