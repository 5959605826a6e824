"""One SELECT and nothing else: what a statement may hold, which tables it may read, how values come in.

The statement is parsed and written anew; that text is parsed again, checked node by node against lists of
what is known, and sent. So what runs is what was checked, also where a database would have read the author's
text in another way, and it is one that parser and writer agree on.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp

from trainwright.errors import InputError, PermissionRefused
from trainwright.sources.sql_words import CALLS, MOVING, NODES, OF_NOTHING, PASSING, ZONES

_MOST = 100_000
_PART = r'(?:"[^"]+"|[^\W\d][\w$]*)'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
_HINT = "Make a view of it in the database, and read that."

Name = tuple[str, ...]
"""A table's name: catalog, schema and name, as many as were said."""


@dataclass(frozen=True)
class Dialect:
    """How a kind of database writes and reads SQL.

    Attributes:
        name: As sqlglot names it.
        marker: What a bound value is written as; takes its name.
        doubled: A character that the driver takes for the start of a value, and that is written twice.
        folds_quoted: Whether names are the same in any case even in quotes.
    """

    name: str
    marker: str
    doubled: str = ""
    folds_quoted: bool = False


POSTGRES = Dialect("postgres", "%({})s", doubled="%")
SQLITE = Dialect("sqlite", ":{}", folds_quoted=True)


def checked(
    text: str, tables: Collection[str], parameters: Collection[str], dialect: Dialect, where: str
) -> str:
    """Check a statement, and return it as it is sent to the driver.

    Args:
        text: The statement; values are written ``:name``.
        tables: Tables that it may read, with their schema if they are written with it.
        parameters: Names of the values that are bound.
        dialect: The database's.
        where: The key of the experiment file that it stands under, for errors.

    Raises:
        InputError: It is not one SELECT, names a value that is not bound, or calls what is not known.
        PermissionRefused: It reads a table that is not on the list.
    """
    given = _parse(text, dialect, where)
    _require_named(given, where)
    written = _plain(given, dialect)
    tree = _parse(written, dialect, where)
    if _plain(tree, dialect) != written:  # sqlglot itself reads what it wrote in another way
        raise InputError(f"not understood as SQL of {dialect.name}: {text!r:.80}", where=where, hint=_HINT)
    for node in (*given.walk(), *tree.walk()):
        _require_known(node, where)
    _require_tables(tree, tables, dialect, where)
    return _write(tree, parameters, dialect, where)


def _plain(tree: exp.Expr, dialect: Dialect) -> str:
    return tree.sql(dialect=dialect.name, comments=False)


def _parse(text: str, dialect: Dialect, where: str) -> exp.Expr:
    if len(text) > _MOST:
        raise InputError(f"the statement has {len(text):,} characters, more than {_MOST:,}", where=where)
    if odd := re.search("[\0\ud800-\udfff]", text):
        raise InputError(f"the statement holds {odd[0]!r}, which is no text", where=where)
    try:
        found = [tree for tree in sqlglot.parse(text, read=dialect.name) if tree is not None]
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise InputError(
            f"not understood as SQL of {dialect.name}: {_first_line(error)}",
            where=where,
            hint=f"One plain SELECT is read. {_HINT}",
        ) from None
    if len(found) != 1:
        raise InputError(
            f"{len(found)} statements, but only one SELECT is allowed: {text!r:.80}", where=where
        )
    if not isinstance(found[0], exp.Select | exp.SetOperation):
        raise InputError(f"only one SELECT is allowed, not {found[0].key.upper()}: {text!r:.80}", where=where)
    return found[0]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _require_known(node: Any, where: str) -> None:
    kind = type(node).__name__
    if kind in PASSING or _moves(node):
        raise InputError(
            f"{node.sql()!r:.80} is another at every call, so the rows could not be read the same again",
            where=where,
            hint="Bind a value: data.sql.parameters.",
        )
    if isinstance(node, exp.Anonymous):
        if str(node.name).lower() not in CALLS or isinstance(node.parent, exp.Dot):
            raise InputError(
                f"function {node.name!r} is not known to be free of effects: {node.sql()!r:.80}",
                where=where,
                hint=_HINT,
            )
    elif kind not in NODES:
        raise InputError(
            f"only a plain SELECT is allowed, without {kind}: {node.sql()!r:.80}", where=where, hint=_HINT
        )


def _moves(node: Any) -> bool:
    """Tell whether a node is the present in disguise: the text 'now', or SQLite's date() of nothing."""
    if isinstance(node, exp.Literal) and node.is_string:
        return is_present(str(node.this))
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower() in OF_NOTHING and not node.expressions
    return type(node).__name__.lower() in OF_NOTHING and not any(node.args.values())


def is_present(text: str) -> bool:
    """Tell whether a database reads a text as a time that is another at every call."""
    words = set(re.findall("[a-z]+", text.lower()))
    return bool(words & MOVING) and words <= MOVING | ZONES


def _require_named(tree: exp.Expr, where: str) -> None:
    for place in tree.find_all(exp.Placeholder, exp.Parameter):
        if not place.name or place.args.get("jdbc") or not isinstance(place.this, str):
            raise InputError("a value without a name: values are written :name", where=where)


def _require_tables(tree: exp.Expr, tables: Collection[str], dialect: Dialect, where: str) -> None:
    allowed = {_allowed(table, dialect) for table in tables}
    refused = sorted({".".join(name) for name in _tables_of(tree, dialect) if name not in allowed})
    if refused:
        raise PermissionRefused(
            f"the statement reads {', '.join(refused)}, which it is not allowed to",
            where=where,
            hint=f"Allowed are {', '.join(tables)}: data.sql.tables.",
        )


def _allowed(text: str, dialect: Dialect) -> Name:
    if not _TABLE.fullmatch(text):
        raise InputError(
            f"no name of a table: {text!r:.80}",
            where="data.sql.tables",
            hint='Write it as the statement does: flights, public.flights or public."Flights".',
        )
    return _name_of(exp.to_table(text, dialect=dialect.name), dialect)


def _tables_of(tree: exp.Expr, dialect: Dialect) -> Iterator[Name]:
    """Give the tables that are read; a name that WITH gives is none where it can be seen."""
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            if not isinstance(table.this, exp.Anonymous | exp.Func):
                yield (table.sql(dialect=dialect.name),)
            continue
        name = _name_of(table, dialect)
        if len(name) > 1 or name[0] not in _seen_from(table, dialect):
            yield name


def _name_of(table: exp.Table, dialect: Dialect) -> Name:
    if not all(isinstance(part, exp.Identifier) for part in table.parts):
        raise ValueError("it has too many parts")
    return tuple(_folded(part, dialect) for part in table.parts)


def _folded(name: Any, dialect: Dialect) -> str:
    return str(name.name) if name.args.get("quoted") and not dialect.folds_quoted else str(name.name).lower()


def _seen_from(table: exp.Expr, dialect: Dialect) -> set[str]:
    """Return the names that WITH clauses give, as seen from one place.

    A name is seen by the queries after it, and by its own only if that is recursive: otherwise the table
    of that name is what is read there.
    """
    names: set[str] = set()
    inside: exp.Expr | None = table
    while inside is not None:
        outside = inside.parent
        if isinstance(outside, exp.With):
            for earlier in outside.expressions:
                if earlier is inside and not outside.recursive:
                    break
                names.add(_folded(earlier.args["alias"].this, dialect))
                if earlier is inside:
                    break
            inside = outside.parent
        elif outside is not None and (given := outside.args.get("with_")) is not None:
            names |= {_folded(each.args["alias"].this, dialect) for each in given.expressions}
            inside = outside
        else:
            inside = outside
    return names


def _write(tree: exp.Expr, parameters: Collection[str], dialect: Dialect, where: str) -> str:
    """Write the tree as SQL, with the driver's own marks in place of ``:name``."""
    marks: dict[str, str] = {}
    for place in list(tree.find_all(exp.Placeholder)):
        marks[f"trainwright_value_{len(marks)}_"] = str(place.name)
        place.replace(exp.Var(this=f"trainwright_value_{len(marks) - 1}_"))
    if unknown := sorted(set(marks.values()) - set(parameters)):
        raise InputError(
            f"values {unknown} are not bound", where=where, hint="Give them under data.sql.parameters."
        )
    text = _plain(tree, dialect)
    if dialect.doubled:
        text = text.replace(dialect.doubled, dialect.doubled * 2)
    for mark, name in marks.items():
        if text.count(mark) != 1:
            raise InputError(f"the statement holds {mark!r}, which has a meaning here", where=where)
        text = text.replace(mark, dialect.marker.format(name))
    return text


def unused(texts: Collection[str], parameters: Collection[str], dialect: Dialect) -> list[str]:
    """Return the names of values that none of some checked statements takes."""
    return sorted(
        name for name in parameters if not any(dialect.marker.format(name) in text for text in texts)
    )
