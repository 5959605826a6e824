"""Where aliases point and versions stand after a promotion or a rollback; pure."""

from collections.abc import Collection, Mapping
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


def rolled_back(aliases: Mapping[str, str], state: State, gone: Collection[str] = ()) -> Standing:
    """Bring back what was in production before; the one before that is then the next to fall back on.

    Args:
        aliases: Version by alias.
        state: What the audit says.
        gone: Versions that were deleted in MLflow: they are passed over.

    Raises:
        InputError: Nothing was in production before.
    """
    line = state.succession
    if not line:  # aliases that were there before the audit began
        line = [aliases[alias] for alias in (PREVIOUS, PRODUCTION) if alias in aliases]
    out = aliases.get(PRODUCTION)
    earlier = line[:-1] if out and line[-1:] == [out] else line if not out else []
    earlier = [version for version in earlier if version not in gone]
    if not earlier:
        raise InputError(
            f"nothing was in production before version {out or 'none'}",
            where="rollback",
            hint="Promote another version instead.",
        )
    *before, back = earlier
    after = {alias: number for alias, number in aliases.items() if number != back and number not in gone}
    after |= {PRODUCTION: back}
    after.pop(PREVIOUS, None)
    if before:
        after[PREVIOUS] = before[-1]
    archived = {out: ARCHIVED} if out and out not in gone else {}
    return Standing(after, {back: PRODUCTION} | archived)
