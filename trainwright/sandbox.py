"""Run a module of this package where it can do little: no network, few files, limited memory and time.

It is for code that reads what somebody else wrote, such as a model. On Linux, Landlock limits the files and
seccomp the system calls; neither needs a right. The limit of time holds everywhere. Where a protection is
missing, the module runs nevertheless: :class:`SandboxResult` says which protections were in force.
"""

import ctypes
import json
import os
import platform
import resource
import runpy
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainwright.documents import read_json
from trainwright.errors import ERRORS, InternalError, ModelRefused, TrainwrightError, clean, last_record
from trainwright.imports import collect_rarely

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "OMP_NUM_THREADS")
"""Variables that a process needs to start at all; the process gets no others, so no secrets."""

_PACKAGE = str(Path(__file__).resolve().parent)
_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/sys"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/sys"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/os-release", "/etc/passwd", "/etc/nsswitch.conf"),
    *("/dev/zero", "/dev/random", "/dev/urandom"),
)
"""What every process may read, besides its interpreter and packages."""

_OUT_OF_MEMORY = ("can't allocate memory", "MemoryError", "bad_alloc", "failed to map segment")


_MAX_ANSWER = 1 << 20
"""Characters of an answer: digests, counts and names of columns."""


@dataclass(frozen=True)
class Limits:
    """Folders and files that the process may read and write, bytes of memory, and seconds."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    memory: int
    seconds: float


@dataclass(frozen=True)
class SandboxResult:
    """The JSON object in the last line of standard output, or the error; and the protections in force."""

    answer: dict[str, Any]
    protections: tuple[str, ...]
    error: TrainwrightError | None = None


def model_limits(model: Path, *read: Path, write: Sequence[Path] = (), seconds: float) -> Limits:
    """Return the limits of a process that scores rows: memory for four copies of the model, and 8 GiB."""
    size = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    places = (str(path.resolve()) for path in (model, *read))
    return Limits(tuple(places), tuple(str(path.resolve()) for path in write), (8 << 30) + 4 * size, seconds)


def run(
    module: str, arguments: Sequence[str], limits: Limits, interpreter: str = sys.executable
) -> SandboxResult:
    """Run ``python -m MODULE ARGUMENTS`` in a process of its own, within limits, and return its answer.

    The error is ``ModelRefused`` if the process exceeded a limit or was killed, else the reported one.
    """
    with TemporaryDirectory(prefix="trainwright-") as scratch:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        folder = str(Path(scratch).resolve())
        inside = json.dumps(asdict(limits) | {"write": [*limits.write, folder]})
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [interpreter, "-I", "-m", "trainwright.sandbox", inside, module, *arguments],
            cwd=folder,
            env=env | {"HOME": folder, "TMPDIR": folder, "OMP_WAIT_POLICY": "PASSIVE"},  # leave waiting cores
            capture_output=True,
            text=True,
            check=False,
        )
    first, _, output = done.stdout.partition("\n")
    protections = tuple(map(str, read_json(first))) if first.startswith("[") else ()
    if done.returncode:
        return SandboxResult({}, protections, _error(done, limits))
    last = output.rstrip().rpartition("\n")[2]
    try:
        return SandboxResult({**read_json(last, max_bytes=_MAX_ANSWER)}, protections)
    except (ValueError, TypeError):
        problem = ModelRefused(f"its process answered with what is no JSON object: {clean(last, 200)!r}")
        return SandboxResult({}, protections, problem)


def _error(done: subprocess.CompletedProcess[str], limits: Limits) -> TrainwrightError:
    """Return the error of a process that failed."""
    hint = "Look at the model's operators and sizes; if it needs this, run it on a larger machine."
    if done.returncode == -signal.SIGALRM:
        return ModelRefused(f"no answer within {limits.seconds:g} s", hint=hint)
    if done.returncode < 0:
        return ModelRefused(f"the process was killed by signal {-done.returncode}", hint=hint)
    record = last_record(done.stderr, done.returncode) or {}
    what = record.get("what") or clean(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    if any(word in what for word in _OUT_OF_MEMORY):
        limit = f"{limits.memory / 2**30:.1f} GiB"
        return ModelRefused(f"it needs more memory than its limit of {limit}", hint=hint)
    kind = ERRORS[record["code"]] if record else InternalError
    return kind(what, where=record.get("where", ""), hint=record.get("hint", ""))


# In the process itself, before anything that starts threads is imported: each protection holds for one thread
# and those that it starts.


def main(arguments: Sequence[str]) -> None:
    """Limit this process, print the protections as one line of JSON, and become the module."""
    collect_rarely()
    limits = Limits(**json.loads(arguments[0]))
    sys.stdout.write(json.dumps(protect(limits)) + "\n")
    sys.stdout.flush()
    sys.argv = list(arguments[1:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def protect(limits: Limits) -> list[str]:
    """Limit this process, and return what is in force, for the record of the step."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)  # without a handler, it ends the process
    found = [f"time limit {limits.seconds:g} s"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        memory = limits.memory if hard == resource.RLIM_INFINITY else min(limits.memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        found.append(f"memory limit {memory / 2**30:.1f} GiB")
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        found += _limit_files(libc, limits)
        found += _deny_network(libc)
    else:
        found.append("memory is not limited")
    absent = {"files": "files are not limited", "network": "network is not denied"}
    return found + [text for name, text in absent.items() if not any(name in entry for entry in found)]


_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 2, 1 << 3, 1 << 1, 1 << 14, 1 << 15
_MAKE_LINKS_AND_DEVICES = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
"""Rights to make devices, sockets, pipes and symbolic links, which whoever reads the output would follow."""
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights of the file system by version of Landlock; 16 since version 5."""
_SCOPES_SINCE, _SCOPES = 6, 3  # abstract Unix sockets, and signals to other processes


def _limit_files(libc: ctypes.CDLL, limits: Limits) -> Iterator[str]:
    """Let this process open only the files of its limits."""
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    handled = (1 << _RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", handled, 0, _SCOPES if version >= _SCOPES_SINCE else 0)
    size = 24 if version >= _SCOPES_SINCE else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    read, files = _READ_FILE | _READ_DIR, _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
    allowed = dict.fromkeys((*_SYSTEM, sys.prefix, sys.base_prefix, *sys.path, _PACKAGE, *limits.read), read)
    allowed |= {"/dev/null": files} | dict.fromkeys(limits.write, handled & ~_MAKE_LINKS_AND_DEVICES)
    for place, rights in allowed.items():
        path = Path(place or ".")
        if not path.exists():
            continue
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        granted = rights & handled & (~0 if path.is_dir() else files)
        if libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", granted, opened), 0):
            raise InternalError(f"Landlock rejects a rule for {place}: {os.strerror(ctypes.get_errno())}")
        os.close(opened)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0:
        yield f"files limited by Landlock {version}"
    os.close(ruleset)


_MACHINES = {
    # AUDIT_ARCH; socket, ptrace, process_vm_readv, process_vm_writev, execve, execveat
    "x86_64": (0xC000003E, (41, 101, 310, 311, 59, 322)),
    "aarch64": (0xC00000B7, (198, 117, 270, 271, 221, 281)),
}
_IO_URING_SETUP, _X32 = 425, 0x40000000
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # EPERM for what is denied
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06


def _deny_network(libc: ctypes.CDLL) -> Iterator[str]:
    """Deny this process new sockets, other processes' memory, and other programs."""
    if platform.machine() not in _MACHINES:
        return
    architecture, calls = _MACHINES[platform.machine()]
    denied = (*calls, _IO_URING_SETUP)
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines += [(_AT_LEAST, len(denied) + 1, 0, _X32)]
    lines += [(_EQUAL, len(denied) - place, 0, call) for place, call in enumerate(denied)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0:
        yield "network denied by seccomp"


if __name__ == "__main__":
    main(sys.argv[1:])
