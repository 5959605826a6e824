"""Where aliases point and versions stand after a promotion or a rollback; pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.errors import InputError
from trainwright.registry.entries import State
from trainwright.registry.names import ARCHIVED, PREVIOUS, PRODUCTION


@dataclass(frozen=True)
class Standing:
    """Version by alias, and stage by version for those that move."""

    aliases: dict[str, str]
    stages: dict[str, str]


def promoted(aliases: Mapping[str, str], version: str, to: str) -> Standing:
    """Bring a version to a stage. What stood there is archived; the last in production can be had back."""
    after = {alias: number for alias, number in aliases.items() if number != version}
    stages = {version: to}
    if to == ARCHIVED:
        return Standing(after, stages)
    if displaced := after.get(to):
        stages[displaced] = ARCHIVED
    if to == PRODUCTION and displaced:
        after[PREVIOUS] = displaced
    after[to] = version
    return Standing(after, stages)


def rolled_back(aliases: Mapping[str, str], state: State) -> Standing:
    """Bring back what was in production before; the one before that is then the next to fall back on.

    Raises:
        InputError: Nothing was in production before.
    """
    line = state.succession
    if not line:  # aliases that were there before the audit began
        line = [aliases[alias] for alias in (PREVIOUS, PRODUCTION) if alias in aliases]
    if len(line) < 2 or line[-1] != aliases.get(PRODUCTION):  # noqa: PLR2004 - the present one and another
        raise InputError(
            f"nothing was in production before version {aliases.get(PRODUCTION) or 'none'}",
            where="rollback",
            hint="Promote another version instead.",
        )
    *_, back, out = line
    after = {alias: number for alias, number in aliases.items() if number != back or alias == PREVIOUS}
    after |= {PRODUCTION: back}
    after.pop(PREVIOUS, None)
    if len(line) > 2:  # noqa: PLR2004
        after[PREVIOUS] = line[-3]
    return Standing(after, {back: PRODUCTION, out: ARCHIVED})
