"""What a SELECT may be made of: everything else is refused, so that nothing new slips through.

The names are those of sqlglot's syntax tree. Of functions, those count whose result depends on their
arguments alone: none that writes, sleeps, reads a file, runs a text as SQL, or tells another time or
number at every call.
"""

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
"""Functions that sqlglot knows no kind of, by their names."""

PASSING = {
    "CurrentTimestamp",
    "CurrentDate",
    "CurrentTime",
    "CurrentDatetime",
    "Localtime",
    "Localtimestamp",
    "Rand",
    "Randn",
    "Uuid",
    "TableSample",
}
"""What is another at every call, so that the same rows could not be read again."""

MOVING = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Texts that a database reads as a time, another one at every call, wherever it expects a time."""

ZONES = frozenset({"allballs", "utc", "gmt", "zulu", "z", "t"})
"""Words that such a text may have besides."""

OF_NOTHING = frozenset({"date", "time", "datetime", "julianday", "unixepoch"})
"""Functions of SQLite that tell the present when they are given nothing."""
