"""Run the tests, each folder in the environment of the code that it tests, and end with one line of counts.

``python tests/run.py [pytest's options] [paths]``; without paths, everything. Four pytests run at a time:
tests wait for processes, servers and clocks, and fewer leave the cores idle. Tests of a long environment
are divided over several, and the longest pytests begin first. Each prints its output as a whole. Up to three
tests that failed beside others run once more alone; one that then passes is named as unstable
(docs/decisions/0012). A test that hangs ends its pytest with a traceback of every thread, and counts as one
of them.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from xml.etree import ElementTree  # only reads what pytest wrote a moment ago

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".environments"
AUTHORING = "authoring"
PACKAGE_ENVIRONMENTS = {
    "transforms": "torch",
    "serving": "torch",
    "featurestore": "feast",
    "engines": "feast",
    "engine": "ingest",
    "examples": "feast",
    "report": "tabular",
    "tables": "tabular",
    "storage": "tabular",
    "retries": "tabular",
    "sources": "ingest",
    "draft": "ingest",
    "significance": "tabular",
    "drift": "tabular",
    "launch": "launcher",
    "cluster": "launcher",
    "tracking": "mlflow",
    "registry": "mlflow",
    "tune": "tune",
    "service": "service",
}
"""Which environment runs the tests of which package; else a verb's metadata says so, else it is this one."""

ALONE = {
    ("evaluate", "test_engines.py"): "tabular-engines",
    ("score", "test_engines.py"): "torch-engines",
    ("join", "test_answers.py"): "engines",
}
"""The environment of a file that is named alone; with its folder, it runs in the folder's.

Without paths, it runs in both, where ``make engines`` has made its own.
"""

CARRIED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers")
START = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main())"
"""Start pytest from behind the environment's own packages, so that it hides none of them."""

SECONDS_OF_A_TEST, SECONDS_OF_A_PART = 1.0, 500.0
"""A test of a file that SLOW does not name takes about so long, and one pytest is given about so much.

Each further pytest imports everything and makes the fixtures of a session once more.
"""

SLOW: dict[str, float] = {
    "api/test_examples.py": 540,
    "engines/test_engines.py": 400,
    "evaluate/test_constant_prediction.py": 40,
    "evaluate/test_engines.py": 150,
    "ingest/test_engines.py": 80,
    "ingest/test_flink.py": 120,
    "join/test_answers.py": 60,
    "launch/test_agent.py": 150,
    "launch/test_cluster_adoption.py": 100,
    "launch/test_cluster_scenarios.py": 110,
    "materialize/test_interruptions.py": 110,
    "materialize/test_runs.py": 100,
    "pipelines/test_alerts.py": 150,
    "pipelines/test_canary_model.py": 60,
    "pipelines/test_pages.py": 170,
    "pipelines/test_reuse.py": 110,
    "pipelines/test_train_and_register.py": 330,
    "pipelines/test_training_set_gate.py": 60,
    "pipelines/test_tune_and_register.py": 150,
    "registry/test_by_hand.py": 50,
    "registry/test_promotion.py": 90,
    "registry/test_server.py": 110,
    "reproduce/test_reproduce.py": 350,
    "score/test_baseline.py": 80,
    "score/test_engines.py": 250,
    "service/test_logged.py": 60,
    "service/test_openapi.py": 70,
    "smoke_test/test_trial.py": 70,
    "summarize/test_run_log.py": 150,
    "tracking/test_shipping.py": 80,
    "train/test_checkpoint_processes.py": 75,
    "train/test_curves.py": 100,
    "train/test_defaults.py": 85,
    "train/test_elastic.py": 125,
    "train/test_kills.py": 120,
    "train/test_parallel.py": 140,
    "train/test_program.py": 115,
    "train/test_stopping.py": 200,
    "tune/test_controller.py": 105,
    "validate/test_flink.py": 70,
    "validate/test_null_distribution.py": 90,
    "validate/test_statistics.py": 80,
    "validate/test_traps.py": 40,
}
"""Seconds of the slow folders and files when four pytests share two cores: their ratio is what counts."""

FAILURES, NO_TESTS = 1, 5
"""What pytest ends with when tests failed, and when there were none."""

AT_A_TIME = 4
MOST_AGAIN = 3
"""More failures than these are no chance: nothing runs again."""

AGAIN = ("--last-failed", "--last-failed-no-failures=none")

HANGS = ("-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true")
"""A test that takes longer than ten minutes hangs. The longest takes two."""

TOGETHER = tuple(
    f"tests/pipelines/test_{name}.py"
    for name in ("features_elsewhere", "pages", "train_and_register", "training_set_gate")
)
"""Files that one pytest runs, because their tests look at the same long run."""

_TEST = re.compile(r"^ *def test_", re.MULTILINE)
_FRAME = re.compile(r'^  File ".*/tests/.*, line \d+ in .*$', re.MULTILINE)
"""A line of a test in the traceback of one that hangs."""

WITH_VALUE = {"-k", "-m", "-o", "-p", "-c", "--deselect", "--ignore"}
"""Options whose value is the next argument, whatever it looks like."""

PART_LIMIT = 3000
"""Seconds that one pytest may take. The longest takes six minutes; a busy machine is given more."""


@dataclass(frozen=True)
class Part:
    """Paths that one pytest runs in an environment; parts of the same environment have different numbers."""

    environment: str
    number: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What one part's tests came to, and whether pytest ran to its end."""

    part: Part
    passed: int
    failed: int
    skipped: int
    whole: bool
    said: str


def environment_of(path: str) -> str:
    """Return the environment that the tests at a path, such as ``tests/join/test_x.py::test_y``, run in."""
    parts = Path(os.path.relpath(ROOT / path.partition("::")[0], ROOT / "tests")).parts
    return ALONE.get(parts) or environment_of_package(parts[0]) if parts else AUTHORING


def environment_of_package(name: str) -> str:
    """Return the environment of a package; a verb's is the image of the job it submits, else its own.

    ``tune`` submits the job of `train`, and its own code needs the packages of its own image.
    """
    metadata = ROOT / "components" / name / "metadata.yaml"
    if name in PACKAGE_ENVIRONMENTS or not metadata.exists():
        return PACKAGE_ENVIRONMENTS.get(name, AUTHORING)
    images = dict(re.findall(r"^  (image|job_image): (\S+)", metadata.read_text(), re.MULTILINE))
    return images.get("job_image") or images["image"]


def everything() -> list[str]:
    """List the folders and files below tests/ that hold tests."""
    here = ROOT / "tests"
    found = [path for path in sorted(here.iterdir()) if path.is_dir() and any(path.rglob("test_*.py"))]
    alone = [here.joinpath(*parts) for parts, name in ALONE.items() if interpreter(name).exists()]
    return [str(path.relative_to(ROOT)) for path in (*found, *sorted(here.glob("test_*.py")), *alone)]


def interpreter(environment: str) -> Path:
    """Return the Python of an environment."""
    return Path(sys.executable) if environment == AUTHORING else ENVIRONMENTS / environment / "bin" / "python"


def carry_pytest() -> Path:
    """Link pytest and what it needs into one folder, for environments that do not have them."""
    folder = ENVIRONMENTS / "pytest"
    folder.mkdir(parents=True, exist_ok=True)
    for name in CARRIED:
        for top in {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}:
            target, link = Path(str(distribution(name).locate_file(top))), folder / top
            if top != "__pycache__" and link.resolve() != target.resolve():
                fresh = folder / f".{top}.{os.getpid()}"
                fresh.symlink_to(target)
                fresh.replace(link)
    return folder


def surroundings() -> dict[str, str]:
    """Return the variables that pytest runs with.

    Compiled files are written and found again, or each of the hundreds of Pythons that tests start would
    compile what it imports. Threads of torch and of numpy's BLAS that spin while they wait take the core of
    the other pytest.
    """
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"OMP_NUM_THREADS": "1"} | found


def run(part: Part, options: Sequence[str], *, may_be_empty: bool) -> Outcome:
    """Run one part's tests and count them."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "junit.xml"
        command = [str(interpreter(part.environment)), "-c", START, str(ENVIRONMENTS / "pytest"), "-q"]
        command += ["-o", f"cache_dir=.pytest_cache/{part.environment}-{part.number}"]
        command += [*HANGS, "--continue-on-collection-errors", "--junitxml", str(report)]
        command += [*options, *part.paths]
        output = Path(scratch) / "output.txt"  # not a pipe: a process that a test leaves would keep it open
        with output.open("w") as file:
            start = partial(subprocess.run, command, cwd=ROOT, env=surroundings(), check=False)
            try:
                code = start(stdout=file, stderr=file, timeout=PART_LIMIT).returncode
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
        ended_well = code in {0, FAILURES, *([NO_TESTS] if may_be_empty else [])}
        broken = not ended_well or not report.exists()
        passed, failed, skipped = count(report)
        printed = output.read_text(errors="replace").rstrip()
    if broken and not failed:
        failed = 1
    head = f"== {part.environment}  {', '.join(part.paths)}  {time.monotonic() - started:.1f} s"
    where = "".join(f"\n{line}" for line in re.findall(_FRAME, printed)[-5:])
    ended = f"\n{part.environment}: pytest ended with {code}{where}" if broken else ""
    said = f"{head}\n{printed}{ended}\n"
    return Outcome(part, passed, failed, skipped, not broken, said)


def again(outcomes: Sequence[Outcome], options: Sequence[str]) -> tuple[list[Outcome], int]:
    """Run the few tests that failed once more, with nothing beside them; return how many are unstable.

    A pytest that did not end, because a test hung or killed it, runs once more as a whole.
    """
    failed = [outcome for outcome in outcomes if outcome.failed]
    if sum(one.failed for one in failed) > MOST_AGAIN:
        return list(outcomes), 0
    settled = {outcome.part: outcome for outcome in outcomes}
    unstable = 0
    for first in failed:
        only = [*AGAIN, "-rp"] if first.whole else []
        second = run(first.part, [*options, *only], may_be_empty=False)
        print("once more, alone:", second.said, sep="\n", flush=True)  # noqa: T201
        if second.whole and not second.failed and (second.passed == first.failed or not first.whole):
            passed = second.passed + (first.passed if first.whole else 0)
            settled[first.part] = replace(second, passed=passed, skipped=max(first.skipped, second.skipped))
            unstable += first.failed
    return list(settled.values()), unstable


def count(report: Path) -> tuple[int, int, int]:
    """Return how many passed, failed or broke, and were skipped; zeros when pytest wrote no report."""
    if not report.exists():
        return 0, 0, 0
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))  # noqa: S314
    tests, broken, failed, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites)
        for name in ("tests", "errors", "failures", "skipped")
    )
    return tests - broken - failed - skipped, broken + failed, skipped


def grouped(paths: Iterable[str]) -> dict[str, list[str]]:
    """Sort paths by the environment that they run in."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(environment_of(path), []).append(path)
    return groups


def parts(environment: str, paths: Sequence[str]) -> list[Part]:
    """Divide an environment's paths, when they take long; neighbours stay together, for fixtures."""
    found = dict.fromkeys(file for path in paths for file in files(path))
    together = tuple(file for file in found if file in TOGETHER)
    units = [*((file,) for file in found if file not in together), *([together] if together else [])]
    long = {unit: sum(map(seconds, unit)) for unit in units}
    whole = sum(long.values())
    count = round(whole / SECONDS_OF_A_PART)
    if count < 2:
        return [Part(environment, 0, tuple(paths))]
    slices: list[list[str]] = [[] for _ in range(count)]
    before = 0.0
    for unit, here in long.items():
        # A unit belongs where its middle lies: half of one that is longer than a part lies on either side.
        slices[min(count - 1, int((before + here / 2) * count / whole))].extend(unit)
        before += here
    return [Part(environment, number, tuple(part)) for number, part in enumerate(slices) if part]


def files(path: str) -> list[str]:
    """List the test files below a path; a file, or a test in one, stands for itself."""
    if not (ROOT / path).is_dir():
        return [path]
    return [str(file.relative_to(ROOT)) for file in sorted((ROOT / path).rglob("test_*.py"))]


def seconds(path: str) -> float:
    """Return about how long the tests at a path take; a single test is one."""
    if "::" in path:
        return SECONDS_OF_A_TEST
    tests = [(file, (ROOT / file).read_text()) for file in files(path)]
    return sum(
        SLOW.get(file.removeprefix("tests/"), SECONDS_OF_A_TEST * len(re.findall(_TEST, text)))
        for file, text in tests
    )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part pytest's options from paths below tests/; the value of an option stays with it."""
    options: list[str] = []
    paths: list[str] = []
    for before, text in zip(["", *arguments], arguments, strict=False):
        is_path = re.match(r"(\./)?tests/", text) and (ROOT / text.partition("::")[0]).exists()
        if is_path and before not in WITH_VALUE:
            paths.append(text)
        elif text.rstrip("/") != "tests" or before in WITH_VALUE:
            options.append(text)
    return options, paths


def main() -> int:
    """Run what was asked for; 0 when every test passed and there was at least one."""
    # A shell that starts this in the background has Ctrl-C ignored, and so would every process of a test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options, paths = split(sys.argv[1:])
    groups = grouped(paths or everything())
    missing = [name for name in groups if not interpreter(name).exists()]
    if missing:
        print(f"no environment for {', '.join(missing)}\n  next  make environments", file=sys.stderr)  # noqa: T201
        return 1
    carry_pytest()
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        made = [part for name in groups for part in parts(name, groups[name])]
        queue = sorted(made, key=lambda part: -sum(map(seconds, part.paths)))
        jobs = [pool.submit(run, part, options, may_be_empty=bool(options)) for part in queue]
        for job in jobs:
            outcomes.append(job.result())
            print(outcomes[-1].said, flush=True)  # noqa: T201
    outcomes, unstable = again(outcomes, options)
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    chance = f" ({unstable} only alone: UNSTABLE, named above)" if unstable else ""
    print(f"{passed} passed{chance}, {failed} failed, {skipped} skipped")  # noqa: T201
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
