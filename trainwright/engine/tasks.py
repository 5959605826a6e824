"""Check that workers of an engine have the packages of the step; the error of an engine that gave up."""

import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from platform import python_version

import trainwright
from trainwright.errors import DependencyError, InputError


@cache
def installed_versions() -> dict[str, str]:
    """Return the versions of Python, this library and the packages of this process."""
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    found = {str(one.metadata["Name"]).lower(): one.version for one in distributions(path=folders)}
    return found | {"python": python_version(), "trainwright": trainwright.__version__}


def require_same_versions(worker: Mapping[str, str], step: Mapping[str, str], where: str) -> None:
    """Reject a worker whose packages differ from the step's.

    Raises:
        InputError: It names the first packages that differ, with both versions.
    """
    names = sorted(name for name in {*worker, *step} if worker.get(name) != step.get(name))
    if names:
        shown = ", ".join(
            f"{name} {worker.get(name, 'absent')} ({step.get(name, 'absent')})" for name in names[:3]
        )
        raise InputError(
            f"expected the packages of this step in the engine's workers, found {len(names)} others, such as "
            f"{shown}; in parentheses: the step's",
            where=where,
            hint="Run the workers from the image of this step.",
        )


def lost(engine: str, error: object) -> DependencyError:
    """Return the error for an engine that is absent or gave up."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0] if len(lines) == 1 else f"{lines[0]:.250} … {lines[-1]:.250}"  # of a traceback
    return DependencyError(
        f"{engine} did not finish the work: {text:.500}",
        where="engine.name",
        hint="See the engine's own log. The next run continues with what this one committed.",
    )
