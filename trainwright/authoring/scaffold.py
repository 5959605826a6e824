"""Create a new component with passing tests: logic, test, wrapper, metadata and page.

The generated component copies a file and returns its digest, in the shape of every component.
"""

import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from trainwright.authoring.compile import repository
from trainwright.authoring.environments import TOOLCHAINS
from trainwright.errors import InputError

LOGIC = '''"""The {noun} that ``{name}`` makes."""

import shutil
from pathlib import Path

from trainwright.documents import digest_file
from trainwright.errors import InputError


def {name}(source: Path, target: Path) -> str:
    """Copy a file and return the SHA-256 of the copy.

    Raises:
        InputError: There is no such file.
    """
    if not source.is_file():
        raise InputError("the file does not exist", where=str(source), hint="Run the step that writes it.")
    shutil.copyfile(source, target)
    return digest_file(target)
'''

TEST = '''"""``{name}`` copies a file."""

import hashlib
from pathlib import Path

import pytest

from trainwright.errors import InputError
from trainwright.{name}.{noun} import {name}


def test_copy_has_the_bytes_and_the_digest_of_its_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"a\\nb\\n")
    assert {name}(source, target) == hashlib.sha256(b"a\\nb\\n").hexdigest()
    assert target.read_bytes() == b"a\\nb\\n"


def test_missing_source_is_rejected_and_nothing_is_written(tmp_path: Path) -> None:
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
owners: [trainwright]
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
"""The import contracts of ``pyproject.toml`` for one verb, and the same with one more."""

LIST = "docs/components/README.md"
ROW = "| [`{name}`]({name}.md) | copies a file | [interface](../../components/{name}/README.md) |\n"


def component(name: str, *, noun: str, toolchain: str, root: Path | None = None) -> list[str]:
    """Create a component in the repository, and return the files that were written, relative to it.

    Raises:
        InputError: A name is invalid, the component exists, or there is no repository. Nothing is written.
    """
    root = root or repository()
    values = {"name": name, "noun": noun, "image": toolchain, "IMAGE": toolchain.upper()}
    texts = {root / place.format(**values): text.format(**values) for place, text in FILES.items()}
    problems = [
        f"{kind} {word!r} is not a Python name in lower case"
        for kind, word in (("component", name), ("noun", noun))
        if not re.fullmatch(r"[a-z][a-z0-9_]*", word) or keyword.iskeyword(word)
    ]
    if noun in {name, "source"}:
        problems.append(f"noun {noun!r} is taken by the verb or the input")
    if toolchain not in TOOLCHAINS:
        problems.append(f"image {toolchain!r} is none of {', '.join(TOOLCHAINS)}")
    paths = [root / "trainwright" / name, root / "trainwright" / f"{name}.py", *texts]
    problems += [f"{path.relative_to(root)} is there already" for path in paths if path.exists()]
    if problems:
        raise InputError("no component was written\n" + "\n".join(f"  {problem}" for problem in problems))
    contracts, table = root / "pyproject.toml", root / LIST
    text = contracts.read_text()
    for old, new in CONTRACTS:
        text = text.replace(old, new.format(**values))
    texts[contracts] = text
    texts[table] = table.read_text().rstrip("\n") + "\n" + ROW.format(**values)
    for path, content in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return [str(path.relative_to(root)) for path in texts]
