"""Create a new component with passing tests: logic, test, wrapper, metadata and page.

The generated component copies a file and returns its digest, in the shape of every component.
"""

import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from trainwright.authoring.compile import repository
from trainwright.authoring.toolchains import TOOLCHAINS
from trainwright.errors import InputError

LOGIC = '''"""The {noun} that ``{name}`` makes."""

import shutil
from pathlib import Path

from trainwright.documents import digest_file
from trainwright.errors import InputError


def {name}(source: Path, target: Path) -> str:
    """Copy a file.

    Args:
        source: The file.
        target: Where the copy goes.

    Returns:
        The SHA-256 of the copy, as 64 hexadecimal digits.

    Raises:
        InputError: There is no such file.
    """
    if not source.is_file():
        raise InputError("the file does not exist", where=str(source), hint="Run the step that writes it.")
    shutil.copyfile(source, target)
    return digest_file(target)
'''

TEST = '''"""What ``{name}`` promises."""

import hashlib
from pathlib import Path

import pytest

from trainwright.errors import InputError
from trainwright.{name}.{noun} import {name}


def test_the_copy_has_the_bytes_and_the_digest_of_its_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"a\\nb\\n")
    assert {name}(source, target) == hashlib.sha256(b"a\\nb\\n").hexdigest()
    assert target.read_bytes() == b"a\\nb\\n"


def test_a_missing_source_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file does not exist"):
        {name}(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()
'''

COMPONENT = '''"""The ``{name}`` component."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.{IMAGE}, install_kfp_package=False)
def {name}(source: dsl.Input[dsl.Artifact], {noun}: dsl.Output[dsl.Artifact]) -> str:
    """Copy a file.

    Args:
        source: One file.
        {noun}: Its copy.

    Returns:
        The digest of the copy.
    """
    from pathlib import Path

    from trainwright.errors import reported
    from trainwright.{name}.{noun} import {name} as make

    with reported("{name}"):
        digest = make(Path(source.path), Path({noun}.path))
    return digest
'''

METADATA = """name: {name}
stability: alpha
owners: [{owner}]
tags: [new]
dependencies:
  image: {image}
exit_codes:
  0: ""
  10: the file does not exist
  70: ""
resources:
  cpu: 1
  memory_gib: 1
access:
  reads: [the source]
  writes: ["the artifact store: create"]
  network: []
"""

PAGE = """# {name}

Copies a file, and returns the digest of the copy.

| Exit code | When |
|---|---|
| 10 | The source is missing |
"""

FILES: Mapping[str, str] = {
    "trainwright/{name}/{noun}.py": LOGIC,
    "tests/{name}/test_{noun}.py": TEST,
    "components/{name}/component.py": COMPONENT,
    "components/{name}/metadata.yaml": METADATA,
    "docs/components/{name}.md": PAGE,
    "trainwright/{name}/__init__.py": '"""The work of the ``{name}`` step."""\n',
    "components/{name}/__init__.py": "",
}

CONTRACTS = (
    ("| summarize", "| summarize | {name}"),
    ('"components.summarize",', '"components.summarize", "components.{name}",'),
    ('"trainwright.summarize",', '"trainwright.summarize", "trainwright.{name}",'),
)
"""What the import contracts of ``pyproject.toml`` say of a verb, and of one more."""


LIST = "docs/components/README.md"
ROW = "| [`{name}`]({name}.md) | copies a file | [interface](../../components/{name}/README.md) |\n"
"""The place of a component's pages in the documentation."""


def checkout() -> Path:
    """Return the repository in which a component is created.

    Raises:
        InputError: The library is installed, not checked out.
    """
    try:
        return repository()
    except InputError as error:
        raise InputError(
            "a component is written into the repository of this library, and this one is installed",
            where=error.where,
            hint="Check the repository out, or write one of your own with kfp and use ours beside it: "
            "catalog.load.",
        ) from None


def component(name: str, *, noun: str, toolchain: str, root: Path | None = None) -> list[str]:
    """Create a component in the repository.

    Args:
        name: The verb, in lower case.
        noun: Its product: its module in the library, and its output.
        toolchain: Short name of its image.
        root: The repository; that of this library when None.

    Returns:
        Files that were written or changed, relative to the repository.

    Raises:
        InputError: A name is invalid, or the component exists. Nothing is written then.
    """
    root = root or checkout()
    values = {
        "name": name,
        "noun": noun,
        "image": toolchain,
        "IMAGE": toolchain.upper(),
        "owner": "trainwright",
    }
    texts = {root / place.format(**values): text.format(**values) for place, text in FILES.items()}
    _require_usable(root, name, noun, toolchain, list(texts))
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    contracts = root / "pyproject.toml"
    text = contracts.read_text()
    for old, new in CONTRACTS:
        text = text.replace(old, new.format(**values))
    contracts.write_text(text)
    listed = root / LIST
    listed.write_text(
        (listed.read_text() if listed.exists() else "").rstrip("\n") + "\n" + ROW.format(**values)
    )
    return [str(path.relative_to(root)) for path in (*texts, contracts, listed)]


def _require_usable(root: Path, name: str, noun: str, toolchain: str, paths: list[Path]) -> None:
    problems = [
        f"{kind} {word!r} is not a Python name in lower case"
        for kind, word in (("component", name), ("noun", noun))
        if not re.fullmatch(r"[a-z][a-z0-9_]*", word) or keyword.iskeyword(word)
    ]
    if noun in {name, "source"}:
        problems.append(f"noun {noun!r} is taken by the verb or the input")
    if toolchain not in TOOLCHAINS:
        problems.append(f"image {toolchain!r} is none of {', '.join(TOOLCHAINS)}")
    modules = [root / "trainwright" / name, root / "trainwright" / f"{name}.py"]
    problems += [f"{path.relative_to(root)} is there already" for path in (*modules, *paths) if path.exists()]
    if problems:
        raise InputError("no component was written\n" + "\n".join(f"  {problem}" for problem in problems))
