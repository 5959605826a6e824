"""The wheel holds all that another team needs: it is built, unpacked, and used far from the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment

ROOT = Path(__file__).resolve().parents[2]

NIGHTLY = """
import json
from pathlib import Path

from kfp import compiler, dsl
from trainwright.authoring import catalog, pipeline_spec
from trainwright.authoring.compile import repository
from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment, default_folder
from trainwright.local import kfp_spec
from trainwright.errors import InputError

resolve, ingest = catalog.load("resolve"), catalog.load("ingest")


@dsl.pipeline
def nightly(source: str, data: dict):
    now = resolve(source=source).set_caching_options(False)
    ingest(source=now.outputs["source"], source_version=now.outputs["version"], data=data)


compiler.Compiler().compile(nightly, "nightly.yaml")
kfp_spec.check(pipeline_spec.read(Path("nightly.yaml")), {"source": "rows.csv", "data": {}}, TOOLCHAINS)
try:
    repository()
except InputError as error:
    refused = error.what
print(json.dumps({
    "from": catalog.__file__,
    "components": catalog.names(),
    "pipelines": catalog.pipelines(),
    "locks": {name: ToolchainEnvironment(name).digest for name in TOOLCHAINS},
    "environments": str(default_folder()),
    "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked as an installer does."""
    folder = tmp_path_factory.mktemp("wheel")
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("trainwright", "compiled", "components", "images"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def python(site: Path, code: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run code that finds the installed library, and the repository's packages but not the repository."""
    start = f"import sys; sys.path[:] = [{str(site)!r}, *(p for p in sys.path if p != {str(ROOT)!r})]\n"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-P", "-c", start + code],
        cwd=cwd,
        env=variables | {"XDG_CACHE_HOME": str(cwd / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_pipeline_of_another_team_is_compiled_from_what_is_installed(
    installed: Path, tmp_path: Path
) -> None:
    done = python(installed, NIGHTLY, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["from"].startswith(str(installed))
    assert set(told["components"]) == {path.stem for path in (ROOT / "compiled" / "components").iterdir()}
    assert set(told["pipelines"]) == {path.stem for path in (ROOT / "compiled" / "pipelines").iterdir()}
    assert "train_and_register" in told["pipelines"]
    assert told["locks"] == {name: ToolchainEnvironment(name).digest for name in TOOLCHAINS}
    assert told["environments"].startswith(str(tmp_path / "cache"))
    assert "needs the repository" in told["refused"]


def test_the_command_line_of_the_wheel_says_how_to_make_what_is_missing(
    installed: Path, tmp_path: Path
) -> None:
    start = "from trainwright.cli.app import main; sys.argv[1:] = {}; main()"
    listed = python(installed, start.format(["list"]), tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"\n  validate +\w.+\n", listed.stdout)
    component = str(installed / "trainwright" / "_compiled" / "components" / "resolve.yaml")
    done = python(installed, start.format(["run", component, "--param", "source=a"]), tmp_path)
    assert done.returncode == 21
    assert "next  Run: trainwright setup" in done.stderr


def test_an_installed_library_says_where_a_new_component_belongs_and_writes_nothing(
    installed: Path, tmp_path: Path
) -> None:
    start = "from trainwright.cli.app import main; sys.argv[1:] = {}; main()"
    done = python(installed, start.format(["new", "component", "impute"]), tmp_path)
    assert done.returncode == 10
    assert "needs the repository of the library" in done.stderr
    assert "next  Check the repository out" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_component_of_the_wheel_is_taken_by_version_and_digest(installed: Path, tmp_path: Path) -> None:
    index = json.loads((ROOT / "compiled" / "index.json").read_text())
    name, digest = f"validate@{index['version']}", index["components"]["validate"]["sha256"]
    code = "from trainwright.authoring import catalog\nprint(catalog.load({!r}, sha256={!r}).name)"
    assert python(installed, code.format(name, digest), tmp_path).stdout == "validate\n"
    refused = python(installed, code.format(name, "0" * 64), tmp_path)
    assert refused.returncode != 0
    assert "the caller names" in refused.stderr


def test_the_wheel_declares_its_command_and_what_authors_need(installed: Path) -> None:
    (folder,) = installed.glob("trainwright-*.dist-info")
    assert "trainwright = trainwright.cli.app:main" in (folder / "entry_points.txt").read_text()
    metadata = (folder / "METADATA").read_text()
    required = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, re.MULTILINE)
    assert [name for name, condition in required if "extra ==" not in condition] == ["pydantic"]
    assert {"kfp", "kfp-kubernetes", "typer", "rich", "uv"} <= {name for name, _ in required}


REPRODUCE = """
import json
from pathlib import Path

from trainwright import __version__, tracking
from trainwright.artifacts import Record
from trainwright.artifacts.record import Environment
from trainwright.errors import InputError
from trainwright.reproduce.library import library_of
from trainwright.reproduce.recorded_run import RecordedRun

answers = []
for version, digest in [
    ("0.0.9", "0" * 64), (__version__, "0" * 64), (__version__, tracking.library_digest())
]:
    known = {"name": "x", "lock_sha256": "", "python": "", "platform": ""}
    own = Environment(library=version, library_sha256=digest, **known)
    record = Record(step="ingest", headline="", started="2026-01-01", seconds=1, environment=own)
    run = RecordedRun(name="1rq81c", pipeline="train_and_register", arguments={}, date="", commit="none",
                      patch=None, records={"ingest": record}, sources={})
    try:
        answers.append(str(library_of(run, Path("cache")).root))
    except InputError as error:
        answers.append(error.hint)
print(json.dumps(answers))
"""


def test_reproducing_with_a_wheel_needs_the_recorded_version(installed: Path, tmp_path: Path) -> None:
    done = python(installed, REPRODUCE, tmp_path)
    assert done.returncode == 0, done.stderr
    other, changed, same = json.loads(done.stdout)
    assert other == "Install it: pip install trainwright==0.0.9; then trainwright setup."
    assert changed.startswith("It was made from a checkout")
    assert same == "None", "the installed library is used as it is"
