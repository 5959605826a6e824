"""The fingerprint of one value by its definition, a step at a time and without Arrow."""

import datetime as dt
import math
import struct
from decimal import Decimal

ALL = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
DOMAINS = {"null": 1, "integer": 2, "real": 3, "large": 4, "decimal": 5, "time": 6, "bytes": 7}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Value = None | bool | int | float | str | bytes | Decimal | dt.datetime | dt.date


def mix(z: int) -> int:
    """The ``nextInt`` finalizer of SplitMix64, as its authors wrote it."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL
    return z ^ (z >> 31)


def slow_fingerprint(value: Value, seed: int = 0) -> int:
    domain, data = words_of(value)
    key = mix((seed + mix(DOMAINS[domain])) & ALL)
    if value is None:
        return mix(key)
    padded = data + b"\0" * (-len(data) % 8 or (8 if not data else 0))
    total = key + len(data)
    for index in range(len(padded) // 8):
        word = int.from_bytes(padded[8 * index : 8 * index + 8], "little")
        total += mix(word ^ mix((key + (index + 1) * GOLDEN) & ALL))
    return mix(total & ALL)


def words_of(value: Value) -> tuple[str, bytes]:
    """Name a value's domain, and write it as bytes."""
    if value is None:
        return "null", b""
    if isinstance(value, str | bytes):
        return "bytes", value.encode() if isinstance(value, str) else value
    if isinstance(value, dt.date):  # a datetime is one, too
        return "time", time_words(value)
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value) or not fits(int(value))):
        return "real", struct.pack("<d", math.nan if math.isnan(value) else value)
    if isinstance(value, Decimal) and (value != int(value) or not fits(int(value))):
        return "decimal", decimal_words(value)
    number = int(value)
    return ("integer", struct.pack("<q", number)) if fits(number) else ("large", struct.pack("<Q", number))


def time_words(value: dt.date) -> bytes:
    moment = value if isinstance(value, dt.datetime) else dt.datetime(*value.timetuple()[:3], tzinfo=dt.UTC)
    ticks = (moment - EPOCH) // dt.timedelta(microseconds=1)
    return struct.pack("<qq", ticks // 1_000_000, ticks % 1_000_000 * 1_000)


def fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 63


def decimal_words(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    magnitude, scale = int("".join(map(str, digits))), -exponent
    while scale > 0 and magnitude % 10 == 0:
        magnitude, scale = magnitude // 10, scale - 1
    return magnitude.to_bytes(32, "little") + struct.pack("<Q", 2 * scale + sign)
