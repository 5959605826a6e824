"""Patterns over names: ``*`` and ``?`` within a folder, ``[..]`` for one character, ``**`` over folders.

The same rules hold for a disk and for object stores: a name that starts with ``.`` or ``_`` is hidden, and a
wildcard never finds it; a pattern that starts with the same character does.
"""

import re
from collections.abc import Callable

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
    """
    if pattern.endswith("**"):
        pattern += "/*"
    *folders, last = pattern.split("/")
    ways = "".join(f"(?:{_NOT_HIDDEN}[^/]+/)*" if name == "**" else f"{_segment(name)}/" for name in folders)
    found = re.compile(f"{ways}{_segment(last)}", re.DOTALL)
    endings = suffixes if last.endswith("*") else ()
    return lambda path: found.fullmatch(path) is not None and (not endings or path.lower().endswith(endings))


def _segment(pattern: str) -> str:
    """Write one folder's or file's pattern as a regular expression that never crosses a slash."""
    text, rest = _NOT_HIDDEN if pattern[:1] in {"*", "?", "["} else "", pattern
    while rest:
        group = re.match(r"\[(!?)(\]?[^\]/]*)\]", rest)
        if group and group[2]:
            inside = re.sub(r"([\\\[&~|^])", r"\\\1", group[2])
            text += f"(?!/)[{'^' if group[1] else ''}{inside}]"
            rest = rest[group.end() :]
            continue
        text += {"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0]))
        rest = rest[1:]
    return text
