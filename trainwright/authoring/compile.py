"""Compile every component and pipeline of the repository, and generate the reference pages.

The result is committed and reproducible byte for byte; ``trainwright compile --check`` lists differences.
A release replaces image tags by the digests of ``make images``: a tag can be moved after a review, and KFP's
cache compares tags.
"""

import importlib
import importlib.util
import inspect
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import trainwright
from trainwright import __version__, credentials, executor, tracking
from trainwright.authoring import catalog, interfaces
from trainwright.authoring.environments import ToolchainEnvironment
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.yaml_reader import read_yaml_documents


def repository() -> Path:
    """Return the repository of this library.

    Raises:
        InputError: The library is installed, not checked out.
    """
    root = Path(trainwright.__file__).resolve().parent.parent
    if not (root / "components").is_dir():
        raise InputError(
            "this command needs the repository of the library, and the library is installed from a wheel",
            where=str(root),
            hint="Check the repository out. Compiled YAML is there already: trainwright list, catalog.load.",
        )
    return root


def run(
    *,
    check: bool = False,
    registry: str = "",
    lock_images: Path | None = None,
    release: bool = False,
    output: Path | None = None,
) -> list[str]:
    """Compile everything, and return one line for each file that was written.

    Args:
        check: Write nothing, and reject files that are out of date.
        registry: ``HOST/TEAM`` prefix of every image; requires another ``output``.
        lock_images: ``images.json`` of ``make images``; its digests replace tags. Requires another
            ``output``.
        release: Reject images named by tag.
        output: Folder for ``components/`` and ``pipelines/``; the repository's ``compiled/`` when None.

    Raises:
        InputError: A source is invalid, or with ``check`` a file is out of date; all are listed.
    """
    root = repository()
    target = (output or root / "compiled").resolve()
    _require_elsewhere(registry, lock_images, elsewhere=target != root / "compiled")
    references = read_images(lock_images) if lock_images else {}
    compiled = {place: catalog.prefixed(text, registry) for place, text in _compiled(root)}
    if lock_images:
        compiled = {place: pin_images(text, references) for place, text in compiled.items()}
    if release:
        require_digests(compiled.values(), where=_short(target, root))
    generator = _page_generator(root)
    texts = {target / place: text for place, text in compiled.items()}
    if not (registry or lock_images) and output is None:
        components = {
            path.stem: text for path, text in texts.items() if path.parent.name == catalog.COMPONENTS
        }
        texts |= generator.pages(root, components)
    metadata = {
        path.parent.name: generator.read_metadata(path) for path in root.glob("components/*/metadata.yaml")
    }
    facts = {name: {"stability": one.stability, "judges": one.judges} for name, one in metadata.items()}
    texts[target / interfaces.FILE] = interfaces.index(trainwright.__version__, compiled, facts)
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    extra = [path for path in target.glob("*/*.yaml") if path not in texts]
    names = [_short(path, root) for path in sorted([*stale, *extra])]
    if check and names:
        files = "\n".join(f"  {name}" for name in names)
        raise InputError(f"what is compiled is not what the sources say\n{files}", hint="Run: make compile")
    for path in extra:
        path.unlink()
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path])
    return [f"  {name}" for name in names] or [f"  {len(texts)} files are up to date"]


def _require_elsewhere(registry: str, lock_images: Path | None, *, elsewhere: bool) -> None:
    """Reject images of a registry in the repository's own compiled YAML, and two options for the registry."""
    if registry and lock_images:
        raise InputError(
            "the file of the images' digests names their registry already",
            where="--registry",
            hint="Leave --registry out.",
        )
    if (registry or lock_images) and not elsewhere:
        raise InputError(
            "images of a registry do not belong into the repository's compiled YAML",
            hint="Name another folder: --output build/compiled.",
        )


def _short(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _page_generator(root: Path) -> ModuleType:
    """Import ``docs/site/reference.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("reference_pages", root / "docs" / "site" / "reference.py")
    assert spec is not None  # noqa: S101 - a file of the repository
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _compiled(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path below ``compiled/`` and the YAML of every component and pipeline."""
    from kfp import compiler

    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    components = sorted(path.parent.name for path in root.glob("components/*/component.py"))
    pipelines = sorted(path.stem for path in root.glob("pipelines/*.py") if path.stem != "__init__")
    sources = [(catalog.COMPONENTS, name, f"components.{name}.component") for name in components]
    sources += [(catalog.PIPELINES, name, f"pipelines.{name}") for name in pipelines]
    with tempfile.TemporaryDirectory() as folder:
        for kind, name, module in sources:
            path = Path(folder) / f"{name}.yaml"
            compiler.Compiler().compile(_member(importlib.import_module(module), name), str(path))
            text = path.read_text()
            text = _compact(text) if kind == catalog.PIPELINES else text
            constants = list(_constants(read_yaml_documents(text)))
            credentials.require_none(constants, where=f"a constant of {name}", plain=True)
            yield f"{kind}/{name}.yaml", text


def _member(module: ModuleType, name: str) -> Any:
    """Return the component or pipeline that a module is named after."""
    found = getattr(module, name, None)
    if not hasattr(found, "component_spec"):
        known = [key for key, value in inspect.getmembers(module) if hasattr(value, "component_spec")]
        raise InputError(
            f"no component or pipeline called {name!r}; it has {known or 'none'}",
            where=str(module.__file__),
            hint="It is named after its file, and a component after its folder.",
        )
    return found


def _compact(text: str) -> str:
    """Remove what no step needs from a compiled pipeline: prose, unused defaults, and its functions' source.

    KFP writes every component and function up to nine times into the workflow of a run. Above 1 MiB, Argo
    compresses the nodes of the workflow, and KFP 2.17's API then lists no tasks. Steps take the function from
    their image (:mod:`trainwright.executor`); the YAML of the components themselves keeps everything.
    """
    comments = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    documents = read_yaml_documents(text)
    components: dict[str, Any] = documents[0].get("components", {})
    passed = _passed(documents[0]["root"], *components.values())
    for name, definition in components.items():
        definition.pop("description", None)
        for side in ("inputDefinitions", "outputDefinitions"):
            ports = definition.get(side, {})
            for port in (*ports.get("parameters", {}).values(), *ports.get("artifacts", {}).values()):
                port.pop("description", None)
                port.get("artifactType", {}).pop("schemaVersion", None)  # the same of all types
        inputs = definition.get("inputDefinitions", {}).get("parameters", {})
        for key in inputs.keys() & passed.get(name, set()):
            inputs[key] = {"parameterType": inputs[key]["parameterType"]}
    for entry in documents[0].get("deploymentSpec", {}).get("executors", {}).values():
        container = entry.get("container", {})
        if "--function_to_execute" in container.get("args", ()):
            container["command"] = ["python3", "-m", executor.__name__]
    return comments + yaml.dump_all(documents)


def _passed(*dags: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the input parameters that every task of a component passes, by component."""
    found: dict[str, set[str]] = {}
    for dag in dags:
        for task in dag.get("dag", {}).get("tasks", {}).values():
            names = set(task.get("inputs", {}).get("parameters", {}))
            found.setdefault(task["componentRef"]["name"], names).intersection_update(names)
    return found


def _constants(compiled: Any) -> Iterator[Any]:
    """Yield every constant in compiled YAML: task inputs and defaults of parameters."""
    if isinstance(compiled, Mapping):
        for key, value in compiled.items():
            yield from [value] if key in {"constant", "defaultValue"} else _constants(value)
    elif isinstance(compiled, list):
        for value in compiled:
            yield from _constants(value)


_OWN = re.compile(r"(?<![\w./:-])(?:[\w.:-]+/)*trainwright/([a-z]+):[\w.-]+(?!@)\b")
"""An image of this library by tag, with or without a registry, anywhere in compiled YAML."""

_ANY = re.compile(r"(?:\S+/)?trainwright/[a-z]+[:@]\S+")
_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
_AGAIN = "Build and push them: make images PUSH=HOST/TEAM"


def read_images(path: Path) -> dict[str, str]:
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


def pin_images(text: str, references: Mapping[str, str]) -> str:
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
