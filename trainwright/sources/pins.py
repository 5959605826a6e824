"""Pins: which state of a table or a database is meant, written behind the ``#`` of its place."""

import re

from trainwright.errors import InputError

_PIN = re.compile(r"(?P<place>.+)#(?P<kind>[a-z0-9]+)=(?P<value>[0-9a-z]+)")


def pinned(place: str, kind: str, value: str) -> str:
    """Write a place with its pin: ``gs://bucket/table#version=12``."""
    return f"{place}#{kind}={value}"


def unpinned(source: str, kind: str) -> tuple[str, str]:
    """Part a place and the value of its pin, which is empty if it has none.

    Raises:
        InputError: It has a pin of another kind.
    """
    found = _PIN.fullmatch(source)
    if not found:
        return source, ""
    if found["kind"] != kind:
        raise InputError(
            f"{source!r:.200} is pinned by {found['kind']}, and not by {kind}",
            where="source",
            hint="Leave away what is behind the '#': resolve pins it anew.",
        )
    return found["place"], found["value"]
