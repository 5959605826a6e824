"""Whether the kernel killed a process of this container for want of memory."""

import re
from pathlib import Path


def kills(proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many processes of this process's control group the kernel has killed for memory so far.

    Read before and after, it tells an out-of-memory kill from any other SIGKILL, which look the same.

    Args:
        proc: Where the process file system is mounted.
        mounted: Where the control groups are mounted, version 1 or 2.

    Returns:
        The count; None where it cannot be read.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text()
    except OSError:
        return None
    places = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            places += [mounted / inside / "memory.events", mounted / "memory.events"]
        elif "memory" in controllers.split(","):
            place = mounted / "memory"
            places += [place / inside / "memory.oom_control", place / "memory.oom_control"]
    return next((count for place in places if (count := _count(place)) is not None), None)


def _count(path: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
