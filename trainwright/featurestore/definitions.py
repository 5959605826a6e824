"""The definitions in a repository's Python files: read, and applied to a registry file of one's own."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.errors import InputError

REGISTRY = ".trainwright-registry.db"
_SETTINGS = ".trainwright-settings.yaml"


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in the repository's folder, as Feast's reader of definitions has to; its prints are not ours."""
    before, path, written = os.getcwd(), list(sys.path), sys.dont_write_bytecode
    known = set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # the repository's files are versioned by their content: leave none there
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(before)
        sys.path[:], sys.dont_write_bytecode = path, written
        for name in set(sys.modules) - known:  # another repository's modules may have the same names
            place = getattr(sys.modules[name], "__file__", None) or ""
            if place.startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


def read_definitions(folder: Path, settings: Any) -> Any:
    """Return what the Python files of a repository define.

    Raises:
        InputError: They cannot be read.
    """
    from feast.repo_operations import _get_repo_contents

    try:
        return _get_repo_contents(folder, settings.project, settings)
    except Exception as error:
        what = f"the definitions cannot be read: {type(error).__name__}: {error}"
        raise InputError(what, where=str(folder)) from error


def apply_apart(folder: Path, settings_file: Path) -> Path:
    """Apply a repository's definitions to a registry file of their own, and return it.

    Nothing else is written: without an online store in the settings, Feast makes no table anywhere.

    Raises:
        InputError: The definitions cannot be read or applied.
    """
    import yaml  # type: ignore[import-untyped]
    from feast import FeatureStore, repo_operations
    from feast.repo_config import load_repo_config

    raw = yaml.safe_load(settings_file.read_text())
    raw |= {"registry": {"registry_type": "file", "path": str(folder / REGISTRY)}, "online_store": None}
    (folder / _SETTINGS).write_text(yaml.safe_dump(raw))
    settings = load_repo_config(folder, folder / _SETTINGS)
    with inside(folder):
        repo = read_definitions(folder, settings)
        try:
            store = FeatureStore(repo_path=str(folder), config=settings)
            parts: Any = repo_operations.extract_objects_for_apply_delete
            objects, _, _, _ = parts(store.project, store.registry, repo)
            store.apply(objects, partial=True)
        except Exception as error:
            what = f"Feast could not apply the definitions: {type(error).__name__}: {error}"
            raise InputError(what, where=str(folder)) from error
    return folder / REGISTRY
