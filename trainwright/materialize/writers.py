"""Writers of rows into an online store: ours into Redis, Feast's own into every other, or Feast's engine."""

import contextlib
import copy
import ctypes
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError, InputError, TransientError
from trainwright.featurestore import (
    SETTINGS,
    Online,
    OnlineView,
    address_towards,
    require_same_feast,
    spark_session,
)
from trainwright.materialize.encoding import (
    KEY_VERSION,
    SerializedRows,
    encode_values,
    fixed,
    join_parts,
    sizes_of,
    span,
    timestamps,
)
from trainwright.materialize.watermark import TimeWindow
from trainwright.tables.workers import Pool

LOCAL, SPARK, RAY = "local", "spark.engine", "ray.engine"
"""Feast's names of engines; ``local`` is this process."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = timedelta(microseconds=1)
_WHERE = f"{SETTINGS}: batch_engine"
_JOINED = "Ray runtime started"
_PR_SET_PDEATHSIG = 1
_REJECTED = re.compile("[Vv]ersion mismatch|Unknown keyword argument")
"""Ray's errors for a cluster of another version than ours, and for an option in ``ray_conf``."""


@dataclass(frozen=True)
class EngineRun:
    """One view's window for an engine; ``config`` is that of Feast's repository in ``folder``."""

    engine: str
    config: Any
    folder: Path
    view: OnlineView
    window: TimeWindow

    @property
    def failure(self) -> str:
        """The beginning of the message of a failure."""
        return f"Feast's engine {self.engine!r} failed on view {self.view.name!r}"


def run_engine(online: Online, view: OnlineView, window: TimeWindow) -> None:
    """Let the repository's engine materialize a window, and wait for it.

    Ray ends the process that drives it when it loses its cluster, so that is another one. Ray's engine
    reports success when nothing was written, so the check afterwards decides.
    """
    run = EngineRun(online.engine, online.feast.config, online.folder, view, window)
    if online.engine == SPARK:
        with spark_session(run.config.batch_engine.spark_conf, run.failure, _WHERE) as session:
            require_same_feast(session, _WHERE)
            _materialize(run)
    elif online.engine == RAY:
        pool = Pool(_drive, 1, describe=lambda run: run.failure, preload=[__name__], inline=False)
        list(pool.run([run]))
    else:
        _drive(run)


def _drive(run: EngineRun) -> None:
    """Materialize, and name the reason of a failure."""
    address = getattr(run.config.batch_engine, "ray_address", None)
    try:
        with _ray_node(address) if address else contextlib.nullcontext():
            _materialize(run)
    except InputError:
        raise
    except Exception as error:
        what = f"{run.failure}: {type(error).__name__}: {error}"
        if _REJECTED.search(what):
            hint = "Correct the option, or run the cluster with the versions of this step: docs/features.md."
            raise InputError(what, where=_WHERE, hint=hint) from error
        hint = "Nothing is lost: the watermark stays where it was, and the next run repeats the window."
        raise DependencyError(what, where=_WHERE, hint=hint) from error


def _materialize(run: EngineRun) -> None:
    """Call the engine alone.

    ``FeatureStore.materialize`` writes its own watermark and state into the registry, where a killed run
    leaves them wrong.
    """
    from feast import FeatureStore
    from feast.infra.common.materialization_job import MaterializationJobStatus, MaterializationTask

    view = copy.copy(run.view.feast)
    view.ttl = timedelta(0)  # Ray's engine leaves out rows that are older now, also in a backfill
    store: Any = FeatureStore(repo_path=str(run.folder), config=run.config)
    task = MaterializationTask(
        project=store.project,
        feature_view=view,
        start_time=run.window.start or _EPOCH,
        end_time=run.window.end - _INSTANT,  # Feast's windows include their end
        tqdm_builder=_quiet,
    )
    with contextlib.chdir(run.folder):  # an engine resolves relative paths against its own folder
        jobs = store.provider.batch_engine.materialize(store.registry, [task])
    for job in jobs:
        if job.status() == MaterializationJobStatus.ERROR:
            raise job.error()


@contextlib.contextmanager
def _ray_node(address: str) -> Iterator[None]:
    """Let this machine join a Ray cluster, without CPUs for its tasks.

    Only a node of the cluster can drive Ray Data: Ray's client (``ray://``) cannot, as of Ray 2.60.
    """
    try:
        answers = address_towards(address)
    except ValueError as error:
        hint = "Name HOST:PORT of the cluster's GCS, such as ray-head:6379: Ray's client cannot run Ray Data."
        raise InputError(str(error), where=f"{_WHERE}.ray_address", hint=hint) from None
    if not answers:
        raise ConnectionError(f"no Ray cluster answers at {address}")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={address}"]
    command += ["--num-cpus=0", "--disable-usage-stats"]
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  Ray sets it in its children this way, too
    ) as node:
        said = []
        for line in node.stdout or ():
            said.append(line)
            if _JOINED in line:
                break
        else:
            raise ConnectionError(f"this machine could not join the cluster at {address}: {''.join(said)}")
        try:
            yield
        finally:
            import ray  # type: ignore[import-not-found,unused-ignore]

            ray.shutdown()  # else Ray ends this process with its node
            node.kill()  # it has no work, and a node that is terminated waits for 30 s


def _end_with_parent() -> None:
    """Let the kernel end this process, and Ray all below it, also when the parent was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _quiet(length: int) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(total=length, disable=True)


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
    """Writer of a view into Redis in Feast's layout: one hash a key, one field a feature, built from arrays.

    Feast 0.67 sends one command a row and makes every value a Python object; this is 11 times as fast. A
    script on the server takes some hundred rows at a time, and compares and writes each row in one step, so a
    row never replaces a newer one, whoever else writes. While a run writes, its fencing token stands beside
    the rows; a call that does not find it writes nothing. That detects a run that was paused while another
    took over, and a store that was emptied.
    """

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


RequireLease = Callable[[], None]
"""Raises unless this run still holds its lease; every writer calls it right before it writes."""

FEAST_ROWS = 10_000
"""Rows that Feast's writer gets at a time; by default it takes all, in gigabytes of Python objects."""

MAX_REDIS_FEATURES = 1000
"""What fits on the stack of Redis' Lua, with a margin."""

_NO_TABLE = re.compile(r"no such table|relation .* does not exist|UndefinedTable", re.IGNORECASE)


def keeps_newer_rows(online: Online, view: OnlineView) -> bool:
    """Tell whether the writer compares times in the store, so that no row replaces a newer one.

    That is our Redis writer. Feast's SQLite and PostgreSQL stores let an older row replace a newer one.
    """
    config = online.feast.config
    return (
        online.store == "redis"
        and online.engine == LOCAL
        and config.entity_key_serialization_version == KEY_VERSION
        and config.online_store.redis_type != "redis_cluster"
        and len(view.features) <= MAX_REDIS_FEATURES
    )


class FeastWriter:
    """Feast's own writer, in bounded batches. The store's own rule decides which row stays.

    The values are encoded by us and parsed into Feast's messages: its converter rounds integers beyond 2^53
    beside a null, and takes a batch of empty bytes for nulls.
    """

    def __init__(self, online: Online, view: OnlineView, require_lease: RequireLease) -> None:
        self.name = f"{online.store}, by Feast itself"
        self._online, self._view, self._require_lease = online, view, require_lease
        path = getattr(online.feast.config.online_store, "path", None)
        if online.store == "sqlite" and path and not (online.folder / path).exists():
            raise _never_applied(online, f"no such file {path}")

    def write(self, rows: SerializedRows) -> int:
        """Pass rows to Feast's store; return how many."""
        from feast.utils import _validate_vector_field_lengths

        store, view = self._online.feast, self._view
        try:
            _validate_vector_field_lengths(rows.table, view.feast)
        except ValueError as error:
            raise InputError(str(error), where="the offline files") from None
        messages = list(self._messages(rows))
        for first in range(0, rows.count, FEAST_ROWS):
            self._require_lease()
            batch = messages[first : first + FEAST_ROWS]
            try:
                store.provider.online_write_batch(store.config, view.feast, batch, None)
            except Exception as error:
                if any(_NO_TABLE.search(str(link)) for link in (error, error.__cause__) if link):
                    raise _never_applied(self._online, str(error)) from error
                what = f"Feast could not write to {self._online.store}: {type(error).__name__}: {error}"
                hint = "Nothing is lost: run again when it answers, and the same rows are written again."
                raise DependencyError(what, where="the online store", hint=hint) from error
        return rows.count

    def close(self) -> None:
        """Do nothing: Feast's connection is closed with the repository."""

    def _messages(
        self, rows: SerializedRows
    ) -> Iterator[tuple[Any, dict[str, Any], datetime, datetime | None]]:
        """Build Feast's messages: entity key, values, event time and creation time of each row."""
        from feast.protos.feast.types.EntityKey_pb2 import EntityKey
        from feast.protos.feast.types.Value_pb2 import Value

        names, features = list(self._view.keys), list(rows.values)
        keys = [
            encode_values(name, kind, rows.table.column(name)).to_pylist()
            for name, kind in self._view.keys.items()
        ]
        values = [column.to_pylist() for column in rows.values.values()]
        created = rows.created.to_pylist() if rows.created is not None else [None] * rows.count
        for index, event in enumerate(rows.event.tolist()):
            key = EntityKey(join_keys=names, entity_values=[Value.FromString(part[index]) for part in keys])
            pairs = zip(features, values, strict=True)
            row = {name: Value.FromString(column[index]) for name, column in pairs}
            known = created[index]
            yield key, row, _time(event), None if known is None else _time(known)


OnlineWriter: TypeAlias = RedisWriter | FeastWriter
"""Writer of one view's rows into an online store."""


def writer_for(online: Online, view: OnlineView, require_lease: RequireLease) -> OnlineWriter:
    """Return the writer for the repository's online store."""
    writer = RedisWriter if keeps_newer_rows(online, view) else FeastWriter
    return writer(online, view, require_lease)


def _time(micros: int) -> datetime:
    return (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None)  # Feast takes it as UTC


def _never_applied(online: Online, said: str) -> InputError:
    return InputError(
        f"the online store has no table of this view: it was never applied here: {said.strip():.200}",
        where=f"the online store ({online.store})",
        hint="Run `trainwright features plan`, review it, and then `trainwright features apply`.",
    )
