"""Print a benchmark's result; store its table beside this module and its line in ``docs/benchmarks.md``."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

TABLES = Path(__file__).parent
PAGE = TABLES.parents[1] / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Each benchmark runs trainwright and the named peer in one run: `make bench NAME=<file>` runs one, `make bench`
all. It exits with 1 if it misses its goal. Ratios matter more than absolute times. The tables are in
`benchmarks/results/`. Where no machine is named, it is {machine}.

| benchmark | result | date |
|---|---|---|
"""


def publish(name: str, header: Sequence[str], rows: Sequence[Sequence[object]], line: str, met: bool) -> int:
    """Print a table and the line that sums it up, store both, and return the exit code.

    Args:
        name: The benchmark's file, without its ending; its earlier result is replaced.
        header: Column names of the table.
        rows: The table.
        line: One line, ``name: figure (goal …)``.
        met: Whether the goal is met.
    """
    table = _table(header, rows)
    print(f"{table}\n\n{line}")
    verdict = line if met else f"**Missed.** {line}"
    when = f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}"
    (TABLES / f"{name}.md").write_text(f"# {name}\n\n{verdict}\n\n{table}\n\n*{when}*\n")
    PAGE.write_text(page())
    return 0 if met else 1


def page() -> str:
    """Return the page: a row for each stored result."""
    rows = []
    for path in sorted(TABLES.glob("*.md")):
        parts = path.read_text().strip().split("\n\n")
        rows.append((path.stem, parts[1].replace(f"{path.stem}: ", ""), parts[-1].strip("*")))
    machines = Counter(when.split(", ", 1)[1] for _, _, when in rows)
    usual = machines.most_common(1)[0][0]
    lines = (f"| `{name}` | {result} | {when.removesuffix(f', {usual}')} |\n" for name, result, when in rows)
    return HEAD.format(machine=usual) + "".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"
