"""Replace image tags in compiled YAML by the digests of ``make images``.

A tag can be moved after a review, and KFP's cache compares tags. A digest says which bytes run.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright import __version__, tracking
from trainwright.authoring.toolchains import ToolchainEnvironment
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.yaml_reader import read_yaml_documents

_OWN = re.compile(r"(?<![\w./:-])(?:[\w.:-]+/)*trainwright/([a-z]+):[\w.-]+(?!@)\b")
"""An image of this library by tag, with or without a registry, anywhere in compiled YAML."""

_ANY = re.compile(r"(?:\S+/)?trainwright/[a-z]+[:@]\S+")
_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
_AGAIN = "Build and push them: make images PUSH=HOST/TEAM"


def read(path: Path) -> dict[str, str]:
    """Return the image of each toolchain as ``HOST/TEAM/NAME@sha256:DIGEST``."""
    try:
        images: dict[str, dict[str, str]] = read_json(path)["images"]
        tagged = [(*name.rpartition(":")[::2], image) for name, image in images.items()]
        # Those of another version, which was built here once, stay in the file.
        current = {name.rpartition("/")[2]: image for name, tag, image in tagged if tag == __version__}
        wrong = [problem for toolchain, image in current.items() for problem in _problems(toolchain, image)]
        references = {toolchain: image["reference"] for toolchain, image in current.items()}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), hint=_AGAIN) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"is not what make images writes: {error!r}", where=str(path), hint=_AGAIN) from None
    if wrong:
        raise InputError("\n  ".join(["not every image can be pinned", *wrong]), where=str(path), hint=_AGAIN)
    return references


def _problems(toolchain: str, image: Mapping[str, str]) -> Iterator[str]:
    if not _DIGEST.fullmatch(image["reference"]):
        yield f"{toolchain}: was not pushed to a registry, so no cluster knows its digest"
    if image["lock_sha256"] not in ToolchainEnvironment(toolchain).digests:
        yield f"{toolchain}: was built from another lock"
    if image["library_sha256"] != tracking.library_digest():
        yield f"{toolchain}: was built from another state of the library"


def pinned(text: str, references: Mapping[str, str]) -> str:
    """Replace image tags in compiled YAML by digests."""
    missing = sorted({found[1] for found in _OWN.finditer(text)} - references.keys())
    if missing:
        raise InputError(f"no digest for the image of {', '.join(missing)}", hint=_AGAIN)
    return _OWN.sub(lambda found: references[found[1]], text)


def require_digests(texts: Iterable[str], where: str) -> None:
    """Reject compiled YAML that names an image by tag, in parameters too."""
    found = {image for text in texts for image in _images(read_yaml_documents(text, where=where))}
    tagged = sorted(image for image in found if not _DIGEST.fullmatch(image))
    if tagged:
        raise InputError(
            f"a release names every image by its digest, and not {', '.join(tagged)}",
            where=where,
            hint="Compile with --lock-images build/images/images.json.",
        )


def _images(compiled: Any, key: str = "") -> Iterator[str]:
    """Yield every image: of executors, and of this library among constants and defaults."""
    if isinstance(compiled, dict):
        for name, value in compiled.items():
            yield from _images(value, name)
    elif isinstance(compiled, list):
        for value in compiled:
            yield from _images(value, key)
    elif isinstance(compiled, str) and (
        key == "image" or (key in {"constant", "defaultValue"} and _ANY.fullmatch(compiled))
    ):
        yield compiled
