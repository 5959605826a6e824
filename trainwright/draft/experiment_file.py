"""Write the experiment file of a draft: short, with comments, and quoted where YAML would misread a value."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_](?:[\w./ -]*[\w./])?|[./]+[\w./-]*\w", re.ASCII)
_URI = re.compile(r"[a-z]+://[\w./*-]+", re.ASCII)
_MISREAD = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_COMMENT_AT = 32


@dataclass(frozen=True)
class Commented:
    """A value with a comment behind it."""

    value: Any
    comment: str


def render(title: str, sections: Mapping[str, Any]) -> str:
    """Return the text of an experiment file.

    Args:
        title: Its first comment.
        sections: Values by key; a mapping of the second level has one line for each key, a deeper one is
            written in one line.
    """
    lines = [f"# {title}"]
    for name, value in sections.items():
        lines += _lines(name, value, 0)
    return "\n".join(lines) + "\n"


def _lines(name: str, value: Any, depth: int) -> list[str]:
    comment = ""
    if isinstance(value, Commented):
        value, comment = value.value, value.comment
    block = isinstance(value, Mapping) and (depth == 0 or name == "splits") and name != "network"
    head = f"{'  ' * depth}{name}:" + ("" if block else f" {scalar(value)}")
    lines = [f"{head:<{_COMMENT_AT}} # {comment}" if comment else head]
    if block:
        for key, entry in value.items():
            lines += _lines(key, entry, depth + 1)
    return lines


def scalar(value: Any) -> str:
    """Return a value in one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {scalar(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, datetime):
        return f"{value.replace(tzinfo=None).isoformat()}Z"
    if isinstance(value, str):
        plain = (_PLAIN.fullmatch(value) and value.lower() not in _MISREAD) or _URI.fullmatch(value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
