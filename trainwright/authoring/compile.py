"""Compile every component and pipeline of the repository, and generate the components' pages.

The result is committed and reproducible byte for byte; ``--check`` lists differences.
"""

import argparse
import importlib
import inspect
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import trainwright
from trainwright.authoring import (
    catalog,
    component_pages,
    credentials,
    experiment_reference,
    interfaces,
    pinning,
    pipeline_spec,
)
from trainwright.errors import InputError, reported


def repository() -> Path:
    """Return the repository of this library.

    Raises:
        InputError: The library is installed, not checked out.
    """
    root = Path(trainwright.__file__).resolve().parent.parent
    if not (root / "components").is_dir():
        raise InputError(
            "compiling needs the repository, and this library is an installed one",
            where=str(root),
            hint="Its compiled YAML is there already: trainwright list.",
        )
    return root


def run(
    *,
    check: bool = False,
    registry: str = "",
    lock_images: Path | None = None,
    release: bool = False,
    output: Path | None = None,
    pages: Mapping[str, str] | None = None,
) -> list[str]:
    """Compile everything.

    Args:
        check: Write nothing, and reject files that are out of date.
        registry: ``HOST/TEAM`` prefix of every image; requires another ``output``.
        lock_images: ``images.json`` of ``make images``; its digests replace tags. Requires another
            ``output``.
        release: Reject images named by tag.
        output: Folder for ``components/`` and ``pipelines/``; the repository's ``compiled/`` when None.
        pages: Further generated pages of ``docs/``, by file name.

    Returns:
        One line for each file that was written.

    Raises:
        InputError: A source is invalid, or with ``check`` a file is out of date; all are listed.
    """
    root = repository()
    target = (output or root / "compiled").resolve()
    _require_elsewhere(registry, lock_images, aside=target != root / "compiled")
    references = pinning.read(lock_images) if lock_images else {}
    texts = {target / place: catalog.prefixed(text, registry) for place, text in _compiled(root)}
    if lock_images:
        texts = {path: pinning.pinned(text, references) for path, text in texts.items()}
    if release:
        pinning.require_digests(texts.values(), where=_short(target, root))
    if not (registry or lock_images) and output is None:
        texts |= component_pages.all_of(
            root, {path.stem: text for path, text in texts.items() if _is_component(path)}
        )
        texts[root / "docs" / "experiment.md"] = experiment_reference.page()
        texts |= {root / "docs" / name: text for name, text in (pages or {}).items()}
    texts[target / interfaces.FILE] = _index(root, target, texts)
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    extra = [path for path in target.glob("*/*.yaml") if path not in texts]
    names = [_short(path, root) for path in sorted([*stale, *extra])]
    if check and names:
        files = "\n".join(f"  {name}" for name in names)
        raise InputError(f"what is compiled is not what the sources say\n{files}", hint="Run: make compile")
    for path in [] if check else extra:
        path.unlink()
    for path in [] if check else stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path])
    return [f"  {name}" for name in names] or [f"  {len(texts)} files are up to date"]


def _require_elsewhere(registry: str, lock_images: Path | None, *, aside: bool) -> None:
    """Reject images of a registry in the repository's own compiled YAML, and two options for the registry."""
    if registry and lock_images:
        raise InputError(
            "the file of the images' digests names their registry already",
            where="--registry",
            hint="Leave --registry out.",
        )
    if (registry or lock_images) and not aside:
        raise InputError(
            "images of a registry do not belong into the repository's compiled YAML",
            hint="Name another folder: --output build/compiled.",
        )


def _index(root: Path, target: Path, texts: Mapping[Path, str]) -> str:
    """Return the index of the compiled YAML: digests, interfaces, and facts from the metadata."""
    compiled = {
        str(path.relative_to(target)): text
        for path, text in texts.items()
        if path.is_relative_to(target) and path.suffix == ".yaml"
    }
    about: dict[str, dict[str, Any]] = {}
    for path in root.glob("components/*/metadata.yaml"):
        metadata = component_pages.read(path)
        about[path.parent.name] = {"stability": metadata.stability, "judges": metadata.judges}
    return interfaces.index(trainwright.__version__, compiled, about)


def _is_component(path: Path) -> bool:
    return path.parent.name == catalog.COMPONENTS


def _short(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _compiled(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path below ``compiled/`` and the YAML of every component and pipeline."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    with tempfile.TemporaryDirectory() as folder:
        for kind, name, module in _sources(root):
            path = Path(folder) / f"{name}.yaml"
            _compile(_found(module, name), path)
            text = path.read_text()
            text = _without_prose(text) if kind == catalog.PIPELINES else text
            fixed = list(_constants(list(yaml.safe_load_all(text))))
            credentials.require_none(fixed, where=f"a constant of {name}", plain=True)
            yield f"{kind}/{name}.yaml", text


def _without_prose(text: str) -> str:
    """Remove descriptions of components and docstrings of their functions from a compiled pipeline.

    KFP writes every component up to ten times into the workflow of a run, and every function up to eight
    times. Above 1 MiB Argo compresses the nodes of the workflow, and KFP 2.17's API then lists no tasks. The
    YAML of the components themselves keeps both.
    """
    comments = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    documents = list(yaml.safe_load_all(text))
    for component in documents[0].get("components", {}).values():
        _drop_descriptions(component)
    for executor in documents[0].get("deploymentSpec", {}).get("executors", {}).values():
        container = executor.get("container", {})
        if "--function_to_execute" in container.get("args", ()):
            container["command"][-1] = pipeline_spec.without_docstring(container["command"][-1])
    return comments + yaml.dump_all(documents)


def _drop_descriptions(component: dict[str, Any]) -> None:
    component.pop("description", None)
    for side in ("inputDefinitions", "outputDefinitions"):
        for definitions in component.get(side, {}).values():
            for definition in definitions.values():
                definition.pop("description", None)


def _constants(compiled: Any) -> Iterator[Any]:
    """Yield every constant in compiled YAML: task inputs and defaults of parameters."""
    if isinstance(compiled, dict):
        for key, value in compiled.items():
            yield from [value] if key in {"constant", "defaultValue"} else _constants(value)
    elif isinstance(compiled, list):
        for value in compiled:
            yield from _constants(value)


def _sources(root: Path) -> Iterator[tuple[str, str, ModuleType]]:
    for path in sorted(root.glob("components/*/component.py")):
        name = path.parent.name
        yield catalog.COMPONENTS, name, importlib.import_module(f"components.{name}.component")
    for path in sorted(root.glob("pipelines/*.py")):
        if path.stem != "__init__":
            yield catalog.PIPELINES, path.stem, importlib.import_module(f"pipelines.{path.stem}")


def _found(module: ModuleType, name: str) -> Any:
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


def _compile(component: Any, path: Path) -> None:
    from kfp import compiler

    compiler.Compiler().compile(component, str(path))


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile from the command line; exit with 10 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m trainwright.authoring.compile")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    parser.add_argument("--registry", default="", help="HOST/TEAM put in front of every image")
    parser.add_argument("--lock-images", type=Path, help="images.json of make images: digests for tags")
    parser.add_argument("--release", action="store_true", help="refuse what names an image by its tag")
    parser.add_argument("--output", type=Path, help="default: compiled/")
    asked = parser.parse_args(arguments)
    with reported("compile"):
        lines = run(
            check=asked.check,
            registry=asked.registry,
            lock_images=asked.lock_images,
            release=asked.release,
            output=asked.output,
        )
        for line in lines:
            print(line)  # noqa: T201


if __name__ == "__main__":
    main()
