"""Label and field selectors."""

import re
from collections.abc import Callable

from tests.launch.standin.answers import bad
from tests.launch.standin.resources import Object

Test = Callable[[Object], bool]

_SET = re.compile(r"\s*([\w./-]+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_EQUAL = re.compile(r"\s*([\w./-]+)\s*(=|==|!=)\s*([\w./-]*)\s*")
_PRESENT = re.compile(r"\s*(!?)\s*([\w./-]+)\s*")


def labels(text: str) -> Test:
    """Read a label selector.

    Raises:
        Refused: It cannot be read.
    """
    tests = [_label_test(part) for part in re.split(r",(?![^()]*\))", text) if part.strip()]
    return lambda body: all(test(body["metadata"].get("labels") or {}) for test in tests)


def _label_test(part: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET.fullmatch(part):
        key, how, values = found[1], found[2], {value.strip() for value in found[3].split(",")}
        return lambda have: (have.get(key) in values) == (how == "in")
    if found := _EQUAL.fullmatch(part):
        key, how, value = found.groups()
        return lambda have: (have.get(key) == value) == (how != "!=")
    if found := _PRESENT.fullmatch(part):
        absent, key = found.groups()
        return lambda have: (key in have) != bool(absent)
    odd = part.split()[1] if len(part.split()) > 1 else part
    raise bad(f"unable to parse requirement: found '{odd}', expected: in, notin, =, ==, !=, gt, lt")


def fields(text: str) -> Test:
    """Read a field selector such as ``metadata.name=a,status.phase!=Running``.

    Raises:
        Refused: It cannot be read.
    """
    wanted: list[tuple[list[str], bool, str]] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([\w.]+)(=|==|!=)(.*)", part.strip())
        if not found:
            raise bad(f"invalid selector: '{part}'; can't understand '{part}'")
        wanted.append((found[1].split("."), found[2] != "!=", found[3]))
    return lambda body: all((_at(body, path) == value) == equal for path, equal, value in wanted)


def _at(body: Object, path: list[str]) -> str:
    found: object = body
    for step in path:
        found = found.get(step, "") if isinstance(found, dict) else ""
    return "" if found is None else str(found)
