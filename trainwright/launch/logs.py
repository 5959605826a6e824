"""Find the cause of a failure in the log of a process.

A log is read backwards from its end: torchrun writes one ``failed (exitcode: ...)`` line for each attempt in
the same container, and everything before the last but one belongs to an attempt that was recovered from.
"""

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from trainwright.redaction import ESCAPE

_ATTEMPT = re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+[^\n]*")
_ROOT = re.compile(
    r"^Root Cause \(first observed failure\):\s*\n\[\d+\]:\n"
    r"\s+time\s+: (?P<time>\S+)\n"
    r"\s+host\s+: \S+\n"
    r"\s+rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r"\s+exitcode\s+: (?P<code>-?\d+) \(pid: \d+\)[^\n]*\n"
    r"\s+error_file: [^\n]*\n"
    r"\s+traceback : (?P<said>[^\n]*(?:\n  (?! *\[\d+\]:)[^\n]*)*)",
    re.MULTILINE,
)
_RANK = re.compile(r"\[(?:rank|Rank |PG [^\]]*Rank )(\d+)\]", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)|\bXid[ =:]+(\d+)\b")
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program causes on a healthy GPU; NVIDIA's device plugin does not take out the node for these.

Source: NVIDIA/k8s-dra-driver-gpu and k8s-device-plugin, list of XIDs that do not make a GPU unhealthy.
"""

_CAUSES = (
    (
        "CUDA_OOM",
        re.compile(
            r"OutOfMemoryError: CUDA out of memory|CUDA out of memory\. Tried to allocate"
            r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
        ),
    ),
    (
        "NODE_GPU",
        re.compile(
            r"uncorrectable ECC error|GPU has fallen off the bus|CUDA_ERROR_ECC_UNCORRECTABLE"
            r"|cudaErrorDevicesUnavailable|CUDA error: (?:unknown error|device not ready)|GPU is lost"
            r"|system not yet initialized|cudaErrorSystemNotReady"
        ),
    ),
    (
        "HOST_OOM",
        re.compile(
            r"Memory cgroup out of memory|^(?:\[rank\d+\]: )?MemoryError\b"
            r"|DefaultCPUAllocator: can't allocate memory"
        ),
    ),
    ("INFRASTRUCTURE", re.compile(r"OSError: \[Errno (?:28|122)\] ")),
)
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout"
    r"|ran for \d+ milliseconds before timing out"
    r"|heartbeat monitor timed out|Terminating the process after attempting to dump debug info"
    r"|Timed out waiting \d+ms for (?:recv|send) operation"
)
_PEERS = re.compile(
    r"Connection (?:reset|closed) by peer|Connection was likely closed|DistStoreError|DistNetworkError"
    r"|ncclRemoteError|NCCL error: remote process exited|RendezvousConnectionError|RendezvousClosedError"
    r"|Broken pipe|The client socket has (?:timed out|failed to connect)|recvValueWithTimeout failed"
    r"|error \[[^\]]*\]:\d+: (?:Connection timed out|No route to host)"
)
_STOP_SIGNAL = re.compile(
    r"Received (?:15|(?:Signals\.)?SIGTERM) death signal"
    r"|SignalException: Process \d+ got signal: (?:15|(?:Signals\.)?SIGTERM)"
)
_LAST_LINE = re.compile(r"((?:\w+\.)*_*[A-Z]\w*(?:: .*)?)$")
_DECORATION = re.compile(rf"^\d{{4}}-\d\d-\d\dT[\d:.]+Z |{ESCAPE.pattern}", re.MULTILINE)
"""The time that the API writes before each line on request, and colours."""

_TRACEBACK = "Traceback (most recent call last):"
_MAX_FRAMES, _MAX_TRACEBACKS = 200, 50
_NOISE = re.compile(r"^(?:frame #\d+:|[-=^ ]+$|\s*\^+)")
"""C++ frames, underlines and rules."""

_TORCHRUN = re.compile(r"\b(?:SignalException|ChildFailedError)\b")
"""Errors of torchrun itself, whatever the cause."""


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """The first failure in torchrun's summary: rank, exit code (negative for a signal), traceback or message.

    ``at_s`` is in seconds since 1970 if its clock is set to UTC; None if torchrun wrote no time.
    """

    rank: int
    exit_code: int
    at_s: float | None
    said: str


@dataclass(frozen=True, kw_only=True)
class LogClue:
    """A log line that indicates a failure class; ``weak`` if it only shows that another process failed."""

    kind: str
    line: str
    rank: int | None = None
    weak: bool = False


@dataclass(frozen=True, kw_only=True)
class LogFindings:
    """The findings in one log.

    ``clue`` is the most informative line, ``told_to_stop`` tells that the agent received SIGTERM, and
    ``tail`` has the last informative lines.
    """

    root: RootCause | None = None
    clue: LogClue | None = None
    told_to_stop: bool = False
    tail: tuple[str, ...] = ()


def parse_log(text: str, *, lines: int = 8) -> LogFindings:
    """Parse the end of a log, and keep ``lines`` of it as its tail."""
    last = _DECORATION.sub("", text)
    ends = [match.end() for match in _ATTEMPT.finditer(last)]
    last = last[ends[-2] :] if len(ends) > 1 else last
    written = [line.rstrip() for line in last.splitlines() if line.strip()]
    root = _root_cause(last)
    tail = written
    if root:  # without torchrun's own summary
        summaries = [index for index, line in enumerate(written) if _ATTEMPT.search(line)]
        tail = written[: summaries[-1]] if summaries else written
    return LogFindings(
        root=root,
        clue=_strong_clue(written) or _timeout_clue(written) or _root_clue(root) or _traceback_clue(written),
        told_to_stop=bool(_STOP_SIGNAL.search(last)),
        tail=tuple([line for line in tail if not _NOISE.match(line)][-lines:]),
    )


def find_clue(text: str) -> LogClue | None:
    """Return the clue in a single message, such as that of a Python error."""
    written = [line for line in text.splitlines() if line.strip()]
    found = _strong_clue(written) or _timeout_clue(written)
    peers = next((line for line in written if _PEERS.search(line)), "")
    return found or (LogClue(kind="INFRASTRUCTURE", line=peers, weak=True) if peers else None)


def _root_cause(text: str) -> RootCause | None:
    found = list(_ROOT.finditer(text))
    if not found:
        return None
    block, at_s = found[-1], None
    with contextlib.suppress(ValueError):
        at_s = datetime.strptime(block["time"], "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    said = block["said"].strip()
    said = "" if said.startswith("To enable traceback see") else said
    return RootCause(rank=int(block["rank"]), exit_code=int(block["code"]), at_s=at_s, said=said)


def _strong_clue(written: list[str]) -> LogClue | None:
    """Return the first line that can only be a cause."""
    for line in written:
        for kind, pattern in _CAUSES:
            if pattern.search(line):
                return LogClue(kind=kind, line=line.strip(), rank=_rank(line))
        if (xid := _XID.search(line)) and int(xid[1] or xid[2]) not in _APPLICATION_XIDS:
            return LogClue(kind="NODE_GPU", line=line.strip(), rank=_rank(line))
    return None


def _timeout_clue(written: list[str]) -> LogClue | None:
    """Return the first line in which a rank gave up waiting for the others."""
    line = next((line for line in written if _TIMEOUT.search(line)), None)
    return LogClue(kind="NCCL_TIMEOUT", line=line.strip(), rank=_rank(line)) if line else None


def _root_clue(root: RootCause | None) -> LogClue | None:
    """Return the error of torchrun's root cause, if it left a traceback."""
    if root is None or not root.said.startswith(_TRACEBACK):
        return None
    line = root.said.splitlines()[-1].strip()
    weak = bool(_PEERS.search(line))
    return LogClue(kind="INFRASTRUCTURE" if weak else "USER_EXCEPTION", line=line, rank=root.rank, weak=weak)


def _traceback_clue(written: list[str]) -> LogClue | None:
    """Return the error at the end of the first traceback that is not torchrun's own."""
    weak = None
    starts = [start for start, line in enumerate(written) if _TRACEBACK in line]
    for start in starts[:_MAX_TRACEBACKS]:
        line = written[start]
        error = _last_traceback_line(
            written[start + 1 : start + 1 + _MAX_FRAMES], line.partition(_TRACEBACK)[0]
        )
        if error is None or _TORCHRUN.search(error):
            continue
        if not _PEERS.search(error):
            return LogClue(kind="USER_EXCEPTION", line=error, rank=_rank(line))
        weak = weak or LogClue(kind="INFRASTRUCTURE", line=error, rank=_rank(line), weak=True)
    return weak


def _last_traceback_line(rest: list[str], prefix: str) -> str | None:
    """Return the last line of a traceback, which lines of other processes may interrupt."""
    bodies = (line[len(prefix) :] for line in rest if line.startswith(prefix))
    ends = (_LAST_LINE.match(body) for body in bodies if not body.startswith(" "))
    return next((found[1] for found in ends if found), None)


def _rank(line: str) -> int | None:
    found = _RANK.search(line)
    return int(found[1]) if found else None
