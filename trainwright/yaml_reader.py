"""The one reader of YAML: bounded, without surprises, and with line and column in every error.

It needs PyYAML, which the environments of some steps do not have.
"""

from pathlib import Path
from typing import Any

import yaml

from trainwright.errors import InputError

MAX_BYTES = 16 << 20
"""Largest YAML that is read unless the caller sets another limit; a compiled pipeline has 0.1 MB."""

MAX_DEPTH, MAX_NODES = 100, 1_000_000
"""Deepest nesting, and most values; an alias counts as one."""

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(
    source: Path | str | bytes, *, where: str = "", max_bytes: int = MAX_BYTES, aliases: bool = False
) -> Any:
    """Read the one document of a YAML file, or of its text; None if it is empty.

    Raises:
        InputError: It is larger or deeper than allowed or no YAML, or has a key twice, an alias, a value that
            is not of its tag, a number beyond a double, a NUL, or half of a surrogate pair. The message never
            shows more of the text than the problem, since it may hold a secret.
        OSError: The file cannot be read.
    """
    documents = read_yaml_documents(source, where=where, max_bytes=max_bytes, aliases=aliases)
    if len(documents) > 1:
        raise InputError(
            f"not valid YAML: {len(documents)} documents, expected one",
            where=where or (str(source) if isinstance(source, Path) else ""),
            hint="Remove the line --- and what follows it.",
        )
    return documents[0] if documents else None


def read_yaml_documents(
    source: Path | str | bytes, *, where: str = "", max_bytes: int = MAX_BYTES, aliases: bool = False
) -> list[Any]:
    """Read all documents; see :func:`read_yaml`."""
    content: str | bytes
    if isinstance(source, Path):
        where = where or str(source)
        with source.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    else:
        content = source
    if len(content) > max_bytes:
        raise InputError(f"the YAML has more than the {max_bytes:,} bytes allowed", where=where)
    try:
        _require_bounded(content, aliases=aliases)
        return list(yaml.load_all(content, _Loader))
    except yaml.MarkedYAMLError as error:  # its own text shows the line, and with it what may be a secret
        mark = error.problem_mark
        place = f", on line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem, hint = f"{error.problem or error.context}{place}", ""
        if mark and "\t" in _line(content, mark.line)[: mark.column + 1]:
            hint = "Indent with blanks: YAML takes no tabs."
    except yaml.reader.ReaderError as error:  # a byte that is no UTF-8, or an invalid character
        problem, hint = f"{error.reason} at byte {error.position:,}", "Save it as UTF-8."
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        problem, hint = f"{type(error).__name__}", "Save it as UTF-8."
    raise InputError(f"not valid YAML: {problem}", where=where, hint=hint)


def _line(content: str | bytes, number: int) -> str:
    text = content if isinstance(content, str) else content.decode(errors="replace")
    return (text.split("\n")[number : number + 1] or [""])[0]


def _require_bounded(content: str | bytes, *, aliases: bool) -> None:
    """Reject what is deep or large before any of it is built."""
    depth = 0
    for nodes, event in enumerate(yaml.parse(content, _PARSER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        problem = ""
        if depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH}"
        elif nodes > MAX_NODES:
            problem = f"more than {MAX_NODES:,} values"
        elif isinstance(event, yaml.AliasEvent) and not aliases:
            problem = "aliases are not allowed"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]


class _Loader(_PARSER):  # type: ignore[misc]
    """YAML without surprises: a key that stands twice or a value that is not of its tag is an error."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int) and not isinstance(value, bool):
                float(value)  # fails for an integer beyond a double
            elif isinstance(value, str):
                value.encode()  # fails for half of a surrogate pair
            problem = "a NUL character" if isinstance(value, str) and "\0" in value else ""
        except (KeyError, AttributeError, IndexError, TypeError):  # of PyYAML, for !!bool x, !!timestamp x
            problem = f"not a value of the type {str(node.tag).rpartition(':')[2]}"
        except (ValueError, OverflowError) as error:  # 2013-13-41 looks like a date, and is none
            problem = str(error)
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self._require_distinct_keys(node)
        return dict(super().construct_mapping(node, deep))

    def _require_distinct_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[Any, yaml.Mark] = {}
        for key_node, _ in node.value:
            if key_node.tag.endswith(":merge"):  # a few of them with aliases make billions of values
                problem = "merge keys are not allowed"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            key, problem = self.construct_object(key_node, deep=True), ""
            if isinstance(key, list | dict | set):
                problem = "a list or a mapping is no key"
            elif key in seen:
                problem = f"key {key!r} stands twice, first on line {seen[key].line + 1}"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen[key] = key_node.start_mark
