"""Print the result of a benchmark and store it in ``docs/benchmarks.md``, one section a benchmark."""

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Each benchmark runs trainwright and the named peer in one run. `make bench NAME=<file>` runs one,
`make bench` all. A benchmark writes its section here and exits with 1 if it misses its goal. Ratios matter
more than absolute times.
"""


def publish(name: str, header: Sequence[str], rows: Sequence[Sequence[object]], line: str, met: bool) -> int:
    """Print a table and the line that sums it up, write both into the page, and return the exit code.

    Args:
        name: The benchmark's file, without its ending; its section is replaced.
        header: Column names of the table.
        rows: The table.
        line: One line, ``name: figure (goal …)``.
        met: Whether the goal is met.
    """
    table = _table(header, rows)
    print(f"{table}\n\n{line}")
    verdict = line if met else f"**Missed.** {line}"
    when = f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}"
    section = f"## {name}\n\n{verdict}\n\n{table}\n\n*{when}*\n"
    _write(name, section)
    return 0 if met else 1


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def _write(name: str, section: str) -> None:
    text = PAGE.read_text() if PAGE.exists() else HEAD
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    others = [part.rstrip() + "\n" for part in parts[1:] if not part.startswith(f"## {name}\n")]
    PAGE.write_text("\n".join([HEAD, *sorted([*others, section])]))
