"""What is compiled is the same wherever it is compiled, and is checked against its sources."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import components

from docs.site import reference
from trainwright.authoring import catalog, images, scaffold
from trainwright.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

COMPONENT = '''"""A component."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def greet(name: str, page: dsl.Output[dsl.Markdown], times: int = 2) -> str:
    """Greet somebody.

    Args:
        name: Who is ``greeted``.
        page: The greeting | as a page.
        times: How often.

    Returns:
        The greeting.
    """
    return f"Hello {name}" * times
'''

METADATA = """name: greet
stability: alpha
owners: [team-a]
tags: [greeting]
dependencies:
  image: tabular
exit_codes: {0: "", 10: nobody is named, 70: ""}
resources:
  cpu: 0.5
  memory_gib: 1
access:
  reads: [nothing]
  writes: []
  network: []
"""

PIPELINE = '''"""A pipeline."""

from components.greet.component import greet
from kfp import dsl

from trainwright.authoring import images


@dsl.pipeline(name="greetings")
def greetings(name: str) -> None:
    """Greet somebody whose name is an image: {image}."""
    greet(name=images.TORCH)
    greet(name=name)
'''

Make = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with this library, one component and one pipeline."""
    root = tmp_path / "repository"
    for name in ("trainwright", "images"):
        shutil.copytree(ROOT / name, root / name)
    (root / "docs" / "components").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "components" / "README.md", root / "docs" / "components")
    (root / "docs" / "site").mkdir()
    shutil.copy(ROOT / "docs" / "site" / "reference.py", root / "docs" / "site")
    for folder in ("components/greet", "pipelines"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "components" / "__init__.py").touch()
    (root / "components" / "greet" / "component.py").write_text(COMPONENT)
    (root / "components" / "greet" / "metadata.yaml").write_text(METADATA)
    (root / "pipelines" / "greetings.py").write_text(PIPELINE)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.fixture
def make(repository: Path) -> Make:
    def compile_it(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from trainwright.cli.app import main; main()", "compile", *arguments],
            cwd=repository,
            env=os.environ | {"PYTHONPATH": str(repository)} | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return compile_it


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled component ``greet``."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "greet.py").write_text(COMPONENT)
    code = "import greet; from kfp import compiler; compiler.Compiler().compile(greet.greet, 'greet.yaml')"
    variables = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, check=True)
    return (folder / "greet.yaml").read_text()


def files(root: Path) -> dict[str, bytes]:
    found = [*root.glob("compiled/*/*.yaml"), *root.glob("components/*/README.md")]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def test_compiling_twice_gives_the_same_bytes_and_names_nothing_of_this_machine(
    repository: Path, make: Make
) -> None:
    done = make(PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    first = files(repository)
    assert sorted(first) == [
        "compiled/components/greet.yaml",
        "compiled/pipelines/greetings.yaml",
        "components/greet/README.md",
    ]
    shutil.rmtree(repository / "compiled")
    moved = repository.rename(repository.with_name("elsewhere"))
    moved.rename(repository)
    assert make(PYTHONHASHSEED="2").returncode == 0
    assert files(repository) == first
    text = b"".join(first.values()).decode()
    assert str(repository.parent) not in text
    assert os.path.expanduser("~") not in text
    loaded = components.load_component_from_file(str(repository / "compiled" / "components" / "greet.yaml"))
    assert list(loaded.component_spec.inputs) == ["name", "times"]


def test_the_check_writes_nothing_and_names_every_file_that_differs(repository: Path, make: Make) -> None:
    done = make("--check")
    assert done.returncode == 10
    assert "  compiled/components/greet.yaml\n" in done.stderr
    assert not (repository / "compiled").exists()
    assert make().returncode == 0
    source = repository / "components" / "greet" / "component.py"
    source.write_text(source.read_text().replace("How often", "How many").replace("Hello", "Good day"))
    (repository / "compiled" / "components" / "gone.yaml").write_text("left over")
    done = make("--check")
    assert done.returncode == 10
    assert all(name in done.stderr for name in ("greet.yaml", "README.md", "gone.yaml"))
    assert make().returncode == 0
    assert make("--check").returncode == 0
    assert not (repository / "compiled" / "components" / "gone.yaml").exists()


def test_a_registry_goes_in_front_of_every_image_in_another_folder(repository: Path, make: Make) -> None:
    done = make("--registry", "host:5000/team")
    assert done.returncode == 10
    assert "another folder" in done.stderr
    done = make("--registry", "host:5000/team", "--output", "build/compiled")
    assert done.returncode == 0, done.stderr
    assert not (repository / "compiled").exists()
    text = (repository / "build" / "compiled" / "pipelines" / "greetings.yaml").read_text()
    images = re.findall(r"\S*trainwright/[a-z]+:\S+", text)
    assert len(images) == 3
    assert all(image.startswith("host:5000/team/trainwright/") for image in images)
    assert "from trainwright.authoring" not in text


def test_a_secret_in_a_constant_is_refused_before_anything_is_written(repository: Path, make: Make) -> None:
    source = repository / "pipelines" / "greetings.py"
    planted = '"s3://AKIA:hunter2-PLANTED@bucket/rows"'
    source.write_text(source.read_text().replace("images.TORCH", planted))
    done = make()
    assert done.returncode == 10
    assert "this contains a password in an address\n  at    a constant of greetings" in done.stderr
    assert "PLANTED" not in done.stdout + done.stderr
    assert not (repository / "compiled").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stability: alpha", "stability: quiet", "stability: must be 'alpha', 'beta' or 'stable'"),
        ("tags: [greeting]", "tag: [greeting]", "tag: unknown key; did you mean tags?"),
        ("name: greet", "name: great", "name is 'great'"),
        ("image: tabular", "image: torch", "dependencies.image is 'torch', the component's is 'tabular'"),
        ("10: nobody", "13: nobody", "exit_codes holds [13]"),
        ("owners: [team-a]", "owners: []", "owners: must have at least 1 item"),
        ("  network: []\n", "", "access.network: missing"),
        ("tags: [greeting]", "tags: [", "not YAML"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, compiled: str, old: str, new: str, message: str) -> None:
    assert reference.component_pages(place(tmp_path / "right", METADATA), {"greet": compiled})
    with pytest.raises(InputError) as caught:
        reference.component_pages(place(tmp_path / "wrong", METADATA.replace(old, new)), {"greet": compiled})
    assert message in str(caught.value)


def place(root: Path, metadata: str) -> Path:
    path = root / "components" / "greet" / "metadata.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(metadata)
    return root


def test_wrong_metadata_writes_nothing(repository: Path, make: Make) -> None:
    path = repository / "components" / "greet" / "metadata.yaml"
    path.write_text(METADATA.replace("alpha", "quiet"))
    done = make()
    assert done.returncode == 10
    assert "stability: must be" in done.stderr
    assert not (repository / "compiled").exists()


def test_a_component_is_named_after_its_folder(repository: Path, make: Make) -> None:
    source = repository / "components" / "greet" / "component.py"
    source.write_text(COMPONENT.replace("def greet", "def welcome"))
    (repository / "pipelines" / "greetings.py").unlink()
    done = make()
    assert done.returncode == 10
    assert "no component or pipeline called 'greet'; it has ['welcome']" in done.stderr


def test_a_page_says_what_a_component_takes_gives_and_ends_with(repository: Path, make: Make) -> None:
    assert make().returncode == 0
    page = (repository / "components" / "greet" / "README.md").read_text()
    assert "# greet\n\nGreet somebody.\n" in page
    assert "Image `tabular`, 0.5 cores, 1 GiB. Tags: greeting." in page
    assert "| `name` | str |  | Who is `greeted`. |" in page
    assert "| `times` | int | `2` | How often. |" in page
    assert "| `page` | Markdown |  | The greeting \\| as a page. |" in page
    assert "| `Output` | str |  | The greeting. |" in page
    assert "| 10 | Bad input or configuration: nobody is named |" in page
    assert "| Kubernetes API | nothing: its pod needs no token |" in page
    assert "Owners: team-a.\n" in page


def test_a_component_of_the_catalog_takes_its_image_from_the_registry_that_is_named() -> None:
    def image(registry: str) -> str:
        spec = catalog.load("ingest", registry=registry).component_spec
        return spec.implementation.container.image

    assert image("host:5000/team/") == f"host:5000/team/{images.INGEST}"
    assert image("") == images.INGEST


def test_an_unknown_component_is_refused_with_the_close_ones() -> None:
    with pytest.raises(InputError, match="there is no component 'validat'") as caught:
        catalog.load("validat")
    assert caught.value.hint == "Did you mean validate?"


@pytest.mark.parametrize("name", catalog.names())
def test_every_component_of_the_catalog_loads(name: str) -> None:
    loaded = catalog.load(name)
    described = reference.described(catalog.component(name).read_text(), name)
    assert loaded.name == described.name == name.replace("_", "-"), "as KFP writes it"
    assert all(port.description for port in (*described.inputs, *described.outputs)), "all say what they mean"
    assert reference.read_metadata(ROOT / "components" / name / "metadata.yaml").name == name


def test_a_new_component_passes_its_own_test_and_compiles(repository: Path, make: Make) -> None:
    made = scaffold.component("tidy", noun="report", toolchain="tabular", root=repository)
    assert len([path for path in made if not path.endswith("__init__.py")]) == 7
    assert "](tidy.md)" in (repository / "docs" / "components" / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tidy"],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert make().returncode == 0
    assert make("--check").returncode == 0
    assert (repository / "compiled" / "components" / "tidy.yaml").exists()
    contracts = (repository / "pyproject.toml").read_text()
    assert "| tidy" in contracts
    assert '"components.tidy"' in contracts
    with pytest.raises(InputError, match="trainwright/tidy is there already"):
        scaffold.component("tidy", noun="report", toolchain="tabular", root=repository)
    scaffold.component("impute", noun="table", toolchain="tabular", root=repository)
    layers = re.search(r"authoring \|.*", (repository / "pyproject.toml").read_text())
    assert layers
    assert {"tidy", "impute"} <= set(re.findall(r"\w+", layers[0]))


@pytest.mark.parametrize(
    ("name", "noun", "toolchain", "message"),
    [
        ("Tidy", "report", "tabular", "component 'Tidy' is not a Python name"),
        ("tidy", "class", "tabular", "noun 'class' is not a Python name"),
        ("tidy", "tidy", "tabular", "noun 'tidy' is taken"),
        ("tidy", "report", "table", "image 'table' is none of"),
        ("storage", "report", "tabular", "trainwright/storage is there already"),
    ],
)
def test_a_name_that_cannot_be_used_writes_nothing(
    repository: Path, name: str, noun: str, toolchain: str, message: str
) -> None:
    before = sorted(repository.rglob("*"))
    with pytest.raises(InputError, match=re.escape(message)):
        scaffold.component(name, noun=noun, toolchain=toolchain, root=repository)
    assert sorted(repository.rglob("*")) == before
