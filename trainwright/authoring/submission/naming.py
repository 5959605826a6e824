"""Names and descriptions that people read in the UI: of runs, pipelines and versions.

Nothing is found again by them: a run is known by the key in its description, a version by the digest that is
its unique name. So they may change, and a person may choose another one.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trainwright.errors import InputError

LONGEST = 128
"""Characters of a run's name."""

KEY_DIGITS = 6
DIGEST_DIGITS = 12
COMMIT_DIGITS = 7


def checked(name: str) -> str:
    """Return a run's name that a person has chosen.

    Raises:
        InputError: It is too long, or has letters that cannot be shown.
    """
    if len(name) > LONGEST or not name.isprintable() or name != name.strip():
        hint = f"1 to {LONGEST} printable characters, none of them a space at an end."
        raise InputError(f"{name[:LONGEST]!r} cannot be a run's name", where="--name", hint=hint)
    return name


def run(pipeline: str, arguments: Mapping[str, Any], key: str, now: datetime) -> str:
    """Return the name of a run: the model it is about, when it is submitted, and digits that tell it apart.

    Args:
        pipeline: The pipeline's name, for a run that is about no model.
        arguments: Of the run.
        key: The key of the submission.
        now: The moment in UTC.
    """
    return f"{model(arguments) or pipeline}"[: LONGEST // 2] + f" {now:%Y-%m-%d %H:%M} {key[:KEY_DIGITS]}"


def sentence(pipeline: str, arguments: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return the sentence that a run's description begins with.

    Args:
        pipeline: The pipeline's display name.
        arguments: Of the run.
        labels: Where it comes from.
    """
    about = f" for {name}" if (name := model(arguments)) else ""
    source = f" on {found}" if (found := arguments.get("source")) and isinstance(found, str) else ""
    commit = f", commit {found[:COMMIT_DIGITS]}" if (found := labels.get("commit")) else ""
    changed = " with uncommitted changes" if commit and labels.get("dirty") == "yes" else ""
    return " ".join(f"{pipeline}{about}{source}{commit}{changed}.".split())


def version(digest: str, labels: Mapping[str, str], now: datetime) -> str:
    """Return the display name of a pipeline's version: digest first, since lists cut the end off."""
    commit = labels.get("commit", "")[:COMMIT_DIGITS]
    return " ".join(part for part in (digest[:DIGEST_DIGITS], commit, f"{now:%Y-%m-%d}") if part)


def model(arguments: Mapping[str, Any]) -> str:
    """Return the registered model's name; empty if the arguments have none."""
    section = arguments.get("registry")
    found = arguments.get("model_name") or (section.get("model") if isinstance(section, Mapping) else "")
    return found if isinstance(found, str) and found.isprintable() else ""
