"""Check the types of the library with mypy, each package under an environment that has what it imports."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run import AT_A_TIME, AUTHORING, ROOT, environment_of_package, interpreter

HOLDS = {"launcher": "tune", "tabular": "torch"}
"""Environments whose packages are all in another, with which they share what mypy reads."""


def packages() -> dict[str, list[str]]:
    """Sort the library's packages, and the folders beside it, by environment."""
    groups: dict[str, list[str]] = {AUTHORING: ["components", "pipelines", "docs/site/reference.py"]}
    for path in sorted((ROOT / "trainwright").iterdir()):
        if is_package(path):
            environment = environment_of_package(path.with_suffix("").name)
            groups.setdefault(HOLDS.get(environment, environment), []).append(str(path.relative_to(ROOT)))
    return groups


def is_package(path: Path) -> bool:
    """Tell whether a path in the library is a module or a package."""
    return path.suffix == ".py" or (path / "__init__.py").exists()


def check(environment: str, paths: list[str]) -> subprocess.CompletedProcess[str]:
    """Run mypy over one environment's packages; what they import is followed but reported where it lives."""
    command = [sys.executable, "-m", "mypy", "--python-executable", str(interpreter(environment))]
    command += ["--cache-dir", f".mypy_cache/{environment}", "--follow-imports", "silent", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def main() -> int:
    """Check every package; 0 when mypy finds nothing."""
    groups = packages()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = list(pool.map(check, groups, groups.values()))
    for environment, outcome in zip(groups, outcomes, strict=True):
        print(f"{environment:<10} {outcome.stdout.strip()}{outcome.stderr.strip()}")  # noqa: T201
    return max(outcome.returncode for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
