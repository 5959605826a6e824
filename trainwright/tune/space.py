"""The search space: values of a trial, and the sections that they make."""

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from optuna import Trial
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from trainwright.documents import canonical
from trainwright.errors import InputError
from trainwright.experiment import Training, Tuning, read_network
from trainwright.experiment.training import Dimension

_FIXED = (
    "training.split",
    "training.predict",
    "training.seed",
    "training.tracking",
    "training.checkpoints",
    "training.parallel",
    "training.guards.early_stopping",
    "training.feeding.cache",
)
"""Keys that all trials share: their data, their seed, where they run, and the rows that compare them."""

_KIND = "network.kind"
_OBJECTIVE = "training.objective"


@dataclass(frozen=True)
class SearchSpace:
    """The searched keys over the base configuration.

    Attributes:
        tuning: The section.
        network: Base section ``network`` as plain data; ``training`` likewise.
    """

    tuning: Tuning
    network: Mapping[str, Any]
    training: Mapping[str, Any]

    @classmethod
    def of(cls, tuning: Tuning, network: Mapping[str, Any], training: Mapping[str, Any]) -> "SearchSpace":
        """Check a space against the sections; both ends of a range and every choice must be valid.

        Raises:
            InputError: A key is unknown or fixed, or a value is not allowed; all are reported together.
        """
        space = cls(tuning, network, training)
        if problems := list(dict.fromkeys(space._problems())):
            raise InputError(
                "\n".join(problems),
                where="tuning.space",
                hint="Name keys of network and training, and values that they accept (docs/experiment.md).",
            )
        return space

    def _problems(self) -> Iterator[str]:
        tuning = self.tuning
        losses = tuning.pruner.kind != "none" or tuning.metric.endswith("_loss")
        for key in tuning.space:
            if key.partition(".")[0] not in {"network", "training"}:
                yield f"{key}: expected network.KEY or training.KEY"
            elif any(_is_below(key, fixed) for fixed in _FIXED):
                yield f"{key}: is the same in all trials, and cannot be searched"
            elif losses and _is_below(key, _OBJECTIVE):
                yield (
                    f"{key}: changes the loss itself, so the losses of trials cannot be compared; set "
                    "tuning.metric to held_out_auc or held_out_accuracy, and tuning.pruner.kind to none"
                )
            else:
                for params in self.ends(key):
                    yield from self._rejections(params)
        if tuning.sampler == "grid" and (count := self._grid_size()) > tuning.trials:
            yield f"sampler grid has {count:,} combinations, and tuning.trials is {tuning.trials:,}; raise it"

    def ends(self, key: str) -> Iterator[dict[str, Any]]:
        """Yield both ends of a key's range, or each choice, under every kind of network that may have it."""
        space = self.tuning.space
        one = space[key]
        fixed = {other: values[0] for other, values in one.when.items()}
        kinds = one.when.get(_KIND) or (space[_KIND].choice if _KIND in space else None)
        for value in one.choice or one.float or one.int or ():
            if kinds and key != _KIND:
                yield from ({**fixed, _KIND: kind, key: value} for kind in kinds)
            else:
                yield {**fixed, key: value}

    def _rejections(self, params: Mapping[str, Any]) -> Iterator[str]:
        network, training = self.sections(params)
        kind = f" (network.kind {params[_KIND]})" if _KIND in params else ""
        try:
            read_network(network)
        except InputError as error:
            yield from (f"{line.strip()}{kind}" for line in error.what.splitlines()[1:])
        try:
            Training.check(training, "training")
        except InputError as error:
            yield from (f"training.{line.strip()}" for line in error.what.splitlines()[1:])

    def sections(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the sections ``network`` and ``training`` of a trial.

        A trial with another kind of network has the defaults of that kind: the base configures its own kind.
        """
        network = deepcopy(dict(self.network))
        if params.get(_KIND, kind := network.get("kind", "mlp")) != kind:
            network = {}
        made = {"network": network, "training": deepcopy(dict(self.training))}
        for key, value in params.items():
            *path, last = key.split(".")
            target: dict[str, Any] = made
            for part in path:
                target = target.setdefault(part, {})
            target[last] = value
        return made["network"], made["training"]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Let a sampler choose the values of a trial; a key whose condition does not hold has none."""
        params: dict[str, Any] = {}
        for key, one in self._ordered():
            if all(params.get(other) in values for other, values in one.when.items()):
                params[key] = _suggest(trial, key, one)
        return params

    def encoded(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """Return a trial's values as Optuna stores them, with their distributions."""
        space = self.tuning.space
        values = {key: canonical(value) if space[key].choice else value for key, value in params.items()}
        return values, {key: distribution(space[key]) for key in params}

    def grid(self) -> list[dict[str, Any]]:
        """Return every combination once, in an order that the seed decides."""
        found: dict[str, dict[str, Any]] = {}
        ordered = list(self._ordered())
        for combination in itertools.product(*(_values(one) for _, one in ordered)):
            params: dict[str, Any] = {}
            for (key, one), value in zip(ordered, combination, strict=True):
                if all(params.get(other) in values for other, values in one.when.items()):
                    params[key] = value
            found[canonical(params)] = params
        combinations = list(found.values())
        random.Random(self.tuning.seed).shuffle(combinations)  # noqa: S311 - an order, not a secret
        return combinations

    def _grid_size(self) -> int:
        """Return the number of combinations without making them: ranges may be long."""
        space = self.tuning.space
        named = sorted({other for one in space.values() for other in one.when})
        total = 0
        for values in itertools.product(*(space[key].choice or () for key in named)):
            params = dict(zip(named, values, strict=True))
            total += math.prod(
                _length(one)
                for key, one in space.items()
                if key not in named and all(params[other] in allowed for other, allowed in one.when.items())
            )
        return total

    def _ordered(self) -> Iterator[tuple[str, Dimension]]:
        """Yield what conditions name before the keys that have conditions."""
        space = self.tuning.space
        yield from ((key, one) for key, one in space.items() if not one.when)
        yield from ((key, one) for key, one in space.items() if one.when)


def _is_below(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.")


def _length(one: Dimension) -> int:
    return len(one.choice) if one.choice else one.int[1] - one.int[0] + 1 if one.int else 1


def _values(one: Dimension) -> list[Any]:
    return list(one.choice) if one.choice else list(range(one.int[0], one.int[1] + 1)) if one.int else []


def distribution(one: Dimension) -> BaseDistribution:
    """Return the distribution of a searched key; Optuna stores a choice as its JSON text."""
    if one.choice:
        return CategoricalDistribution([canonical(value) for value in one.choice])
    if one.int:
        return IntDistribution(*one.int, log=one.log)
    low, high = one.float or (0.0, 0.0)
    return FloatDistribution(low, high, log=one.log)


def _suggest(trial: Trial, key: str, one: Dimension) -> Any:
    if one.choice:
        return json.loads(trial.suggest_categorical(key, [canonical(value) for value in one.choice]))
    if one.int:
        return trial.suggest_int(key, *one.int, log=one.log)
    low, high = one.float or (0.0, 0.0)
    return trial.suggest_float(key, low, high, log=one.log)
