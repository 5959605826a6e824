"""Compile every component and pipeline of the repository, and generate the reference pages.

The result is committed and reproducible byte for byte; ``trainwright compile --check`` lists differences.
"""

import importlib
import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import trainwright
from trainwright import credentials, executor
from trainwright.authoring import catalog, interfaces, pinning
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
    references = pinning.read(lock_images) if lock_images else {}
    compiled = {place: catalog.prefixed(text, registry) for place, text in _compiled(root)}
    if lock_images:
        compiled = {place: pinning.pinned(text, references) for place, text in compiled.items()}
    if release:
        pinning.require_digests(compiled.values(), where=_short(target, root))
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
