"""Writer of rows into Redis in Feast's layout: one hash a key, one field a feature, built from arrays.

Feast 0.67 sends one command a row and makes every value a Python object; this is 11 times as fast. A script
on the server takes some hundred rows at a time, and compares and writes each row in one step, so a row never
replaces a newer one, whoever else writes. While a run writes, its fencing token stands beside the rows; a
call that does not find it writes nothing. That detects a run that was paused while another took over, and a
store that was emptied.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError, TransientError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.encoding import SerializedRows, fixed, join_parts, sizes_of, span, timestamps

SCRIPT_ROWS = 500
"""Rows of one call: some milliseconds of the server's one thread."""

IN_FLIGHT = 4
"""Calls sent before the first one's reply is read, so that both sides work at once."""

SCRIPT = """
local stamp, count, ttl = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('TRAINWRIGHT_FENCED') end
redis.call('EXPIRE', KEYS[1], ARGV[2])

local function number(text, at)
  local low, scale, first = 0, 1, at
  while true do
    local byte = string.byte(text, at)
    if at - first < 5 then
      low = low + (byte % 128) * scale
      scale = scale * 128
    end
    at = at + 1
    if byte < 128 then break end
  end
  if at - first == 10 then low = low - 34359738368 end
  return low, at
end

local function instant(text)
  local seconds, nanos, at = 0, 0, 1
  while at <= #text do
    local field = string.byte(text, at)
    if field == 8 then seconds, at = number(text, at + 1) else nanos, at = number(text, at + 1) end
  end
  return seconds, nanos
end

local function replaces(new, old)
  if not old or old == new then return true end
  local new_seconds, new_nanos = instant(new)
  local old_seconds, old_nanos = instant(old)
  return new_seconds > old_seconds or (new_seconds == old_seconds and new_nanos >= old_nanos)
end

local form, rows, at = '<' .. string.rep('I4c0', count + 1), ARGV[6 + count], 1
local command, written = {'HSET', '', stamp, ''}, 0
for index = 1, count do command[3 + 2 * index] = ARGV[5 + index] end
for index = 2, #KEYS do
  local values = {struct.unpack(form, rows, at)}
  at = values[count + 2]
  local key, new = KEYS[index], values[1]
  if replaces(new, redis.call('HGET', key, stamp)) then
    command[2], command[4] = key, new
    for feature = 1, count do command[4 + 2 * feature] = values[1 + feature] end
    redis.call(unpack(command))
    if ttl > 0 then redis.call('EXPIRE', key, ttl) end
    written = written + 1
  end
end
return written
"""
"""Feast's timestamps are Protobuf: seconds (field 1) and nanoseconds (field 2) as varints. A number of ten
bytes is negative; its low 35 bits identify it, and stay exact in Lua's doubles. All rows come as one
argument, each part after its size in 4 bytes: an argument of its own would cost the server more than the
part."""

TOKEN_S = 86_400
"""Seconds that the fencing token of a killed run stays."""

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"

_ANSWER_S = 60.0
"""Seconds that Redis has for an answer, unless Feast's connection string says otherwise."""

_FENCED = "TRAINWRIGHT_FENCED"
_END = b"\r\n"


class RedisWriter:
    """Writer of one view into Redis. It fails where Redis does not answer, or takes no scripts."""

    name = "redis, from arrays"

    def __init__(self, online: Online, view: OnlineView, require_lease: Callable[[], None]) -> None:
        from redis.exceptions import RedisError

        self._online, self._view, self._require_lease = online, view, require_lease
        self._token_key = f"trainwright.writing.{online.project}.{view.name}".encode()
        self._token = secrets.token_hex(16).encode()
        try:
            client = online.feast.provider.online_store._get_client(online.feast.config.online_store)
            client.connection_pool.connection_kwargs.setdefault("socket_timeout", _ANSWER_S)
            self._digest = str(client.script_load(SCRIPT)).encode()
            client.set(self._token_key, self._token, ex=TOKEN_S)
            self._pool = client.connection_pool
            self._connection = self._pool.get_connection()
        except RedisError as error:
            raise _down(error) from error
        self._fields = len(view.features)
        self._head = self._arguments()

    def write(self, rows: SerializedRows) -> int:
        """Write rows, each unless a newer one is there; return how many were written."""
        from redis.exceptions import RedisError

        # A run that takes over from here on replaces the token, and the script fences us
        self._require_lease()
        written = waiting = 0
        try:
            for call in self._calls(rows):
                if waiting == IN_FLIGHT:
                    written, waiting = written + self._reply(), waiting - 1
                self._connection.send_packed_command(call)
                waiting += 1
            written += sum(self._reply() for _ in range(waiting))
        except RedisError as error:
            self._connection.disconnect()
            if _FENCED not in str(error):
                raise _down(error) from error
            raise TransientError(
                "the fencing token of this run is gone: another run took over, or the store was emptied "
                "meanwhile",
                where="the online store",
                hint="Nothing is lost: the next run writes the same rows again.",
            ) from error
        return written

    def close(self) -> None:
        """Remove the fencing token, and return the connection."""
        from redis.exceptions import RedisError

        with suppress(RedisError):
            self._connection.send_command("EVAL", RELEASE, 1, self._token_key, self._token)
            self._connection.read_response()
        self._pool.release(self._connection)

    def _reply(self) -> int:
        return int(self._connection.read_response())

    def _arguments(self) -> bytes:
        """Return the arguments that every call starts with."""
        from feast.infra.online_stores.helpers import _mmh3, compute_versioned_name

        config = self._online.feast.config
        versions = config.registry.enable_online_feature_view_versioning
        name = compute_versioned_name(self._view.feast, versions)
        fields = [_mmh3(f"{name}:{feature}") for feature in self._view.features]
        ttl = config.online_store.key_ttl_seconds or 0
        numbers = [b"%d" % len(fields), b"%d" % ttl]
        head = [self._token, b"%d" % TOKEN_S, f"_ts:{name}".encode(), *numbers, *fields]
        return b"".join(map(_bulk, head))

    def _calls(self, rows: SerializedRows) -> Iterator[list[bytes | memoryview]]:
        """Yield the script's calls in Redis' wire format."""
        project = self._online.project.encode()
        columns = [timestamps(rows.event), *rows.values.values()]
        keys = _bulks(join_parts(rows.keys, project))
        sizes = [fixed(b"", sizes_of(column).astype("<u4")) for column in columns]
        parts = join_parts(*(part for pair in zip(sizes, columns, strict=True) for part in pair))
        for first in range(0, rows.count, SCRIPT_ROWS):
            last = min(first + SCRIPT_ROWS, rows.count)
            number, content = last - first, span(parts, first, last)
            words = 3 + (1 + number) + (5 + self._fields + 1)
            head = b"*%d\r\n" % words + _bulk(b"EVALSHA") + _bulk(self._digest)
            head += _bulk(b"%d" % (1 + number)) + _bulk(self._token_key)
            size = b"$%d\r\n" % len(content)
            yield [head, span(keys, first, last), self._head + size, content, _END]


def _bulk(content: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(content), content)


def _bulks(contents: pa.Array) -> pa.Array:
    known, place = np.unique(sizes_of(contents), return_inverse=True)
    heads = pa.array([b"$%d\r\n" % size for size in known.tolist()], pa.binary())
    return join_parts(heads.take(pa.array(place)), contents, _END)


def _down(error: Exception) -> DependencyError:
    return DependencyError(
        f"Redis failed: {type(error).__name__}: {error}",
        where="the online store",
        hint="Nothing is lost: run again when it answers, and the same rows are written again.",
    )
