"""Check of a statement: one SELECT and nothing else, of allowed tables, with bound values.

The statement is parsed and written anew; that text is parsed again, checked node by node against an allow
list, and sent. So the database runs what was checked, also where it would have read the author's text
differently, and parser and writer agree on it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp

from trainwright.errors import InputError, PermissionRefused

_STRUCTURE = """
Select Union Except Intersect Subquery With CTE From Join Where Group Having Order Ordered Limit Offset
Distinct Fetch Table TableAlias Alias Aliases Column Identifier Star Paren Tuple Values Lateral
Rollup Cube GroupingSets Window WindowSpec Filter WithinGroup Case If
"""
_VALUES = """
Literal Boolean Null Placeholder Cast DataType DataTypeParam Interval IntervalSpan Var AtTimeZone Collate
"""
_OPERATORS = """
And Or Not Xor EQ NEQ GT GTE LT LTE Is In Between Like ILike SimilarTo RegexpLike RegexpILike Escape Exists
Any All NullSafeEQ NullSafeNEQ Add Sub Mul Div IntDiv Mod Pow Neg DPipe BitwiseAnd BitwiseOr BitwiseXor
BitwiseNot BitwiseLeftShift BitwiseRightShift Overlaps JSONExtract JSONExtractScalar JSONPath JSONPathRoot
JSONPathKey JSONPathSubscript
"""
_FUNCTIONS = """
Count CountIf Sum Avg Min Max Stddev StddevPop StddevSamp Variance VariancePop Corr CovarPop CovarSamp
LogicalAnd LogicalOr PercentileCont PercentileDisc Mode Median GroupConcat
RowNumber Rank DenseRank PercentRank CumeDist Ntile Lag Lead FirstValue LastValue NthValue
Abs Round Floor Ceil Trunc Ln Log Exp Sqrt Cbrt Sign Greatest Least Degrees Radians
Sin Cos Tan Asin Acos Atan Atan2 WidthBucket Coalesce Nullif
Lower Upper Length Substring Trim Replace Left Right Concat ConcatWs StrPosition Initcap Reverse
Repeat Pad Split SplitPart Chr Ascii Unicode Hex MD5 RegexpReplace Translate Space StartsWith
TimestampTrunc DateTrunc Extract TimeToStr StrToTime StrToDate StrToUnix UnixToTime TimeToUnix
TsOrDsToDate TsOrDsToTimestamp DateFromParts TimestampFromParts Date Datetime Timestamp Cast
DateAdd DateSub DateDiff TimestampAdd TimestampSub TimestampDiff Year Month Day Quarter Week DayOfWeek
DayOfYear
"""
NODES = frozenset((_STRUCTURE + _VALUES + _OPERATORS + _FUNCTIONS).split())
"""Kinds of nodes that a statement may hold."""

_CALLS = """
date_part to_number to_date to_timestamp make_date make_timestamp make_timestamptz make_interval
justify_days justify_hours btrim ltrim rtrim lpad rpad overlay octet_length bit_length char_length
regexp_count regexp_substr strpos split_part quote_literal left right sha256 encode div gcd lcm factorial
mod power pi cot sinh cosh tanh erf erfc min_scale scale trim_scale bool_and bool_or every regr_slope
regr_intercept regr_r2 regr_count regr_avgx regr_avgy jsonb_extract_path_text json_extract_path_text
jsonb_array_length json_array_length jsonb_typeof json_typeof num_nulls num_nonnulls nullif ifnull iif
instr printf total typeof unixepoch julianday strftime date time datetime substr hex likelihood likely
unlikely
"""
CALLS = frozenset(_CALLS.split())
"""Functions without a node kind in sqlglot, by name."""

_CHANGING = """
CurrentTimestamp CurrentDate CurrentTime CurrentDatetime Localtime Localtimestamp Rand Randn Uuid TableSample
"""
CHANGING = frozenset(_CHANGING.split())
"""Nodes whose value changes with every call, so that the same rows could not be read again."""

MOVING = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Texts that a database reads as the present, wherever it expects a time."""

ZONES = frozenset({"allballs", "utc", "gmt", "zulu", "z", "t"})
"""Other words that such a text may have."""

OF_NOTHING = frozenset({"date", "time", "datetime", "julianday", "unixepoch"})
"""Functions of SQLite that return the present without an argument."""


_MOST = 100_000
_PART = r'(?:"[^"]+"|[^\W\d][\w$]*)'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
_HINT = "Make a view of it in the database, and read that."

Name = tuple[str, ...]
"""A table's name: optionally catalog and schema, then the name."""


@dataclass(frozen=True)
class Dialect:
    """SQL of a kind of database.

    Attributes:
        name: sqlglot's name.
        marker: Format of a bound value.
        doubled: A character that the driver reads as the start of a value, and that is escaped by doubling.
        folds_quoted: Whether quoted names are case-insensitive.
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
    """Check a statement, and return the text for the driver.

    Args:
        text: The statement; values are written ``:name``.
        tables: Tables that it may read, with their schema if they are written with it.
        parameters: Names of the bound values.
        dialect: The database's.
        where: The key of the experiment file, for errors.

    Raises:
        InputError: It is not one SELECT, has an unbound value, or calls a function that is not allowed.
        PermissionRefused: It reads a table that is not on the list.
    """
    original = _parse(text, dialect, where)
    for place in original.find_all(exp.Placeholder, exp.Parameter):
        if not place.name or place.args.get("jdbc") or not isinstance(place.this, str):
            raise InputError("a value without a name: values are written :name", where=where)
    written = _plain(original, dialect)
    tree = _parse(written, dialect, where)
    if _plain(tree, dialect) != written:  # sqlglot reads its own text differently
        raise InputError(f"not understood as SQL of {dialect.name}: {text!r:.80}", where=where, hint=_HINT)
    for node in (*original.walk(), *tree.walk()):
        _require_known(node, where)
    _require_tables(tree, tables, dialect, where)
    return _write(tree, parameters, dialect, where)


def tables_of(text: str, dialect: Dialect, where: str) -> tuple[str, ...]:
    """Return the names of the tables that a SELECT reads, in the order of the text.

    Raises:
        InputError: It is not one SELECT.
    """
    names = _tables_of(_parse(text, dialect, where), dialect)
    return tuple(dict.fromkeys(".".join(name) for name in names))


def require_fixed(parameters: Mapping[str, object]) -> None:
    """Reject a bound value that a database reads as the present time."""
    if moving := sorted(name for name, value in parameters.items() if _is_present(str(value))):
        raise InputError(
            f"values {moving} are another time at every call, so the rows could not be read the same again",
            where="data.sql.parameters",
            hint="Write the time that is meant, such as 2026-01-31.",
        )


def require_used(texts: Collection[str], parameters: Collection[str], dialect: Dialect) -> None:
    """Reject a value that no checked statement holds."""
    markers = {name: dialect.marker.format(name) for name in parameters}
    if unused := sorted(name for name, mark in markers.items() if not any(mark in text for text in texts)):
        raise InputError(
            f"values {unused} are bound to nothing: no statement holds them",
            where="data.sql.parameters",
            hint="In a statement a value is written :name.",
        )


def _plain(tree: exp.Expr, dialect: Dialect) -> str:
    return tree.sql(dialect=dialect.name, comments=False)


def _parse(text: str, dialect: Dialect, where: str) -> exp.Expr:
    if len(text) > _MOST:
        raise InputError(f"the statement has {len(text):,} characters, more than {_MOST:,}", where=where)
    if odd := re.search("[\0\ud800-\udfff]", text):
        raise InputError(f"the statement contains the invalid character {odd[0]!r}", where=where)
    try:
        found = [tree for tree in sqlglot.parse(text, read=dialect.name) if tree is not None]
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        said = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InputError(
            f"not understood as SQL of {dialect.name}: {said}",
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


def _require_known(node: Any, where: str) -> None:
    kind = type(node).__name__
    if kind in CHANGING or _is_present_time(node):
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


def _is_present_time(node: Any) -> bool:
    """Tell whether a node is the present time: the text 'now', or SQLite's date() without arguments."""
    if isinstance(node, exp.Literal) and node.is_string:
        return _is_present(str(node.this))
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower() in OF_NOTHING and not node.expressions
    return type(node).__name__.lower() in OF_NOTHING and not any(node.args.values())


def _is_present(text: str) -> bool:
    """Tell whether a database reads a text as the present time."""
    words = set(re.findall("[a-z]+", text.lower()))
    return bool(words & MOVING) and words <= MOVING | ZONES


def _require_tables(tree: exp.Expr, tables: Collection[str], dialect: Dialect, where: str) -> None:
    allowed = set[Name]()
    for text in tables:
        if not _TABLE.fullmatch(text):
            raise InputError(
                f"no name of a table: {text!r:.80}",
                where="data.sql.tables",
                hint='Write it as the statement does: flights, public.flights or public."Flights".',
            )
        allowed.add(_name_of(exp.to_table(text, dialect=dialect.name), dialect))
    refused = sorted({".".join(name) for name in _tables_of(tree, dialect) if name not in allowed})
    if refused:
        raise PermissionRefused(
            f"the statement reads {', '.join(refused)}, which it is not allowed to",
            where=where,
            hint=f"Allowed are {', '.join(tables)}: data.sql.tables.",
        )


def _tables_of(tree: exp.Expr, dialect: Dialect) -> Iterator[Name]:
    """Yield the tables that are read; a name of a WITH clause is none where it is visible."""
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
    """Return the names of WITH clauses that are visible to a node.

    A name is visible to the queries after it, and to its own only if that is recursive: otherwise its own
    reads the table of that name.
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
        elif outside is not None and (clause := outside.args.get("with_")) is not None:
            names |= {_folded(each.args["alias"].this, dialect) for each in clause.expressions}
            inside = outside
        else:
            inside = outside
    return names


def _write(tree: exp.Expr, parameters: Collection[str], dialect: Dialect, where: str) -> str:
    """Return the tree as SQL, with the driver's markers instead of ``:name``."""
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
