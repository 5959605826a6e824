"""Trace a result back to the bytes it was made from, through the chain of run records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainwright.artifacts import Record

VERSIONS = ("source", "data", "training_set", "model", "predictions")
"""Outputs of steps that identify data and models, from the source on."""

_TRACED = frozenset({*VERSIONS, "features", "registration"})
"""Outputs of steps that a lineage shows."""

_EVIDENCE = ("verdict", "trial")
"""Ends of the names of inputs that say whether a step may use others, and are no part of what it made."""

SHOWN = 12
"""Digits of a digest that are shown; the documents have all 64."""


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """One step of the lineage: digests by name of what a step made, and of what it made them from."""

    step: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def derivation_of(record: Record, step: str = "") -> Derivation | None:
    """Return what a step made from what; None if it made neither data nor a model."""
    return derive(step or record.step, record.inputs, record.outputs)


def derive(step: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Derivation | None:
    """Return likewise for the digests by name that a step read and made."""
    made = {name: digest for name, digest in outputs.items() if name in _TRACED}
    read = {
        name: digest
        for name, digest in inputs.items()
        if not (name.startswith("file ") or name.endswith(_EVIDENCE)) and made.get(name) != digest
    }
    return Derivation(step=step, inputs=read, outputs=made) if made else None


def ancestors(records: Iterable[Record]) -> list[Record]:
    """Return records and all that they were made from, each once, the latest first."""
    waiting, seen, found = list(records), set(), []
    while waiting:
        record = waiting.pop(0)
        if record.digest not in seen:
            seen.add(record.digest)
            found.append(record)
            waiting.extend(record.parents)
    return sorted(found, key=lambda record: record.started, reverse=True)


def environment_locks(records: Iterable[Record]) -> dict[str, str]:
    """Return the lock that each step's environment was made from, by step; empty text if it is not known."""
    return {record.step: record.environment.lock_sha256 for record in reversed(list(records))}


HEADER = ("step", "made", "from", "environment", "what it found")
"""Names of the columns of :func:`rows`."""


def rows(records: Sequence[Record]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield one row a step for a table of a lineage, in the order of the records."""
    for record in records:
        place = record.environment
        lock = f"lock {place.lock_sha256[:SHOWN]}" if place.lock_sha256 else "lock unknown"
        yield (
            record.step,
            _digests(record.outputs),
            _digests(record.inputs),
            f"{place.name}, Python {place.python}, trainwright {place.library}, {lock}",
            record.headline,
        )


def _digests(named: dict[str, str]) -> str:
    return ", ".join(f"{name} {digest[:SHOWN]}" for name, digest in named.items()) or "-"
