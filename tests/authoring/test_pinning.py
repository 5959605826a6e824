"""Images by digest: what a release refuses, and what compiled YAML needs from outside."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright import __version__
from trainwright.authoring import compile
from trainwright.authoring import compile as compiler
from trainwright.authoring.environments import TOOLCHAINS, lock_digest
from trainwright.authoring.images import name
from trainwright.errors import InputError
from trainwright.tracking import library_digest

ROOT = Path(__file__).resolve().parents[2]
COMPILED = sorted((ROOT / "compiled").glob("*/*.yaml"))


def reference(toolchain: str) -> str:
    return f"host:5000/team/trainwright/{toolchain}@sha256:{toolchain.encode().hex():0>64}"


@pytest.fixture
def images() -> dict[str, dict[str, str]]:
    """What ``make images PUSH=host:5000/team`` writes, as far as compiling reads it."""
    return {
        name(toolchain): {
            "reference": reference(toolchain),
            "lock_sha256": lock_digest(toolchain),
            "library_sha256": library_digest(),
        }
        for toolchain in TOOLCHAINS
    }


def written(folder: Path, images: dict[str, dict[str, str]]) -> Path:
    path = folder / "images.json"
    path.write_text(json.dumps({"schema_version": 1, "images": images}))
    return path


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for entry in value.values():
            yield from texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts(entry)
    elif isinstance(value, str):
        yield value


def test_a_release_is_what_was_reviewed_but_names_every_image_by_its_digest_also_one_that_is_passed_on(
    tmp_path: Path, images: dict[str, dict[str, str]]
) -> None:
    compiler.run(lock_images=written(tmp_path, images), release=True, output=tmp_path / "out")
    made = sorted((tmp_path / "out").glob("*/*.yaml"))
    assert [path.name for path in made] == [path.name for path in COMPILED]
    for path in made:
        assert f":{__version__}" not in "".join(
            re.findall(r"image: .*|trainwright/\w+:\S+", path.read_text())
        )
    pipeline = (tmp_path / "out" / "pipelines" / "train_and_register.yaml").read_text()
    assert f"constant: {reference('torch')}" in pipeline, "the image of the job, which the train step is told"
    assert pipeline.count(f"image: {reference('feast')}") == 2, "configure and join"
    for path in COMPILED:
        text = (tmp_path / "out" / path.parent.name / path.name).read_text()
        for toolchain in TOOLCHAINS:
            text = text.replace(reference(toolchain), name(toolchain))
        assert text == path.read_text()


@pytest.mark.covers("F44", "B52")
def test_a_release_with_tags_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names every image by its digest") as caught:
        compiler.run(registry="host:5000/team", release=True, output=tmp_path / "out")
    texts = [path.read_text() for path in COMPILED]
    used = [toolchain for toolchain in TOOLCHAINS if any(name(toolchain) in text for text in texts)]
    assert set(TOOLCHAINS) == set(used)
    assert all(name(toolchain) in caught.value.what for toolchain in used)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("reference", "", "torch: was not pushed"),
        ("reference", "host/team/trainwright/torch:0.1.0", "torch: was not pushed"),
        ("lock_sha256", "0", "torch: was built from another lock"),
        ("library_sha256", "0", "torch: was built from another state of the library"),
    ],
)
def test_an_image_that_cannot_be_pinned_is_named_with_the_reason(
    tmp_path: Path, images: dict[str, dict[str, str]], key: str, value: str, message: str
) -> None:
    images[name("torch")][key] = value
    with pytest.raises(InputError, match=re.escape(message)):
        compile.read_images(written(tmp_path, images))


def test_an_image_that_was_not_built_is_named(tmp_path: Path, images: dict[str, dict[str, str]]) -> None:
    del images[name("feast")]
    with pytest.raises(InputError, match="no digest for the image of feast"):
        compiler.run(lock_images=written(tmp_path, images), output=tmp_path / "out")


def test_what_another_version_has_left_in_the_file_is_no_matter(
    tmp_path: Path, images: dict[str, dict[str, str]]
) -> None:
    old = {"reference": "", "lock_sha256": "0", "library_sha256": "0"}
    before = {name("torch").replace(__version__, "0.0.9"): old}
    after = {name("torch").replace(__version__, "9.0.0"): old}
    assert compile.read_images(written(tmp_path, before | images | after))["torch"] == reference("torch")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"images": {"a:VERSION": 3}}', '{"images": {"a:VERSION": {}}}']
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "images.json").write_text(text.replace("VERSION", __version__))
    with pytest.raises(InputError, match="is not what make images writes"):
        compile.read_images(tmp_path / "images.json")


def test_digests_do_not_get_into_the_repositorys_own_yaml(
    tmp_path: Path, images: dict[str, dict[str, str]]
) -> None:
    with pytest.raises(InputError, match="do not belong into the repository"):
        compiler.run(lock_images=written(tmp_path, images))


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_a_compiled_package_needs_nothing_from_outside_but_its_images(path: Path) -> None:
    """Nothing is installed when a step starts, and no address stands in what is run."""
    for document in yaml.safe_load_all(path.read_text()):
        for executor in (document or {}).get("deploymentSpec", {}).get("executors", {}).values():
            said = list(texts(executor["container"].get("command", [])[:3]))
            assert not any("pip" in text.split() or "://" in text for text in said)
            assert not executor["container"].get("env")
