"""Patterns over names: ``*`` and ``?`` within a folder, ``[..]`` for one character, ``**`` over folders.

The same rules hold for a disk and for object stores: a name that starts with ``.`` or ``_`` is hidden, and a
wildcard never finds it; a pattern that starts with the same character does.
"""

import re
from collections.abc import Callable

from trainwright.errors import InputError

HIDDEN = (".", "_")
_WILD = re.compile(r"[*?\[]")
_NOT_HIDDEN = r"(?![._])"


def wild(text: str) -> bool:
    """Tell whether a text has a character that stands for others."""
    return _WILD.search(text) is not None


def fixed(pattern: str) -> str:
    """Return what every match starts with: the pattern up to its first wildcard."""
    return _WILD.split(pattern, maxsplit=1)[0]


def counts(name: str, suffixes: tuple[str, ...]) -> bool:
    """Tell whether a file is part of a folder: nothing on its way hidden, one of the endings in any case."""
    hidden = any(part.startswith(HIDDEN) for part in name.split("/"))
    return not hidden and (not suffixes or name.lower().endswith(suffixes))


def matcher(pattern: str, suffixes: tuple[str, ...] = ()) -> Callable[[str], bool]:
    """Return what tells whether a path matches.

    Args:
        pattern: A path with wildcards.
        suffixes: One of these is asked for where the pattern leaves the ending open: ``day=*/*`` takes the
            tables there, and not what lies beside them.

    Raises:
        InputError: It is no pattern, such as ``[z-a]``.
    """
    if pattern == "**" or pattern.endswith("/**"):
        pattern += "/*"
    *folders, last = re.sub(r"(?:(?<=/)|^)(?:\*\*/)+", "**/", pattern).split("/")
    ways = "".join(f"(?:{_NOT_HIDDEN}[^/]+/)*" if name == "**" else f"{_segment(name)}/" for name in folders)
    try:
        found = re.compile(f"{ways}{_segment(last)}", re.DOTALL)
    except re.error as error:
        raise InputError(f"{pattern!r:.200} is no pattern: {error}", where="source") from None
    endings = suffixes if last.endswith("*") else ()
    return lambda path: found.fullmatch(path) is not None and (not endings or path.lower().endswith(endings))


def _segment(pattern: str) -> str:
    """Write one folder's or file's pattern as a regular expression that never crosses a slash.

    What lies between two stars is taken where it comes first, and never given back: so a match takes no
    longer than the text times the pattern, however many stars there are.
    """
    parts, rest = [""], pattern
    while rest:
        group = re.match(r"\[(!?)(\]?[^\]/]*)\]", rest)
        if group and group[2]:
            inside = re.sub(r"([\\\[&~|^])", r"\\\1", group[2])
            parts[-1] += f"(?!/)[{'^' if group[1] else ''}{inside}]"
            rest = rest[group.end() :]
            continue
        if rest[0] == "*":
            parts.append("")
        else:
            parts[-1] += "[^/]" if rest[0] == "?" else re.escape(rest[0])
        rest = rest[1:]
    hidden = _NOT_HIDDEN if pattern[:1] in {"*", "?", "["} else ""
    between = "".join(f"(?>[^/]*?{part})" for part in parts[1:-1])
    return f"{hidden}{parts[0]}{between}" + (f"[^/]*{parts[-1]}" if len(parts) > 1 else "")
