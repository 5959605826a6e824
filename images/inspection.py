"""Inspect an image that was just built, from inside, constrained as on a cluster."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainwright.errors import DependencyError

IMAGES = Path(__file__).resolve().parent
CONSTRAINED = ("--rm", "--read-only", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges")
"""How a container is started here: as strictly as a namespace with the profile ``restricted`` would."""

JOB = {
    "torch": ("trainwright.launch.agent.__main__", "trainwright.train.__main__", "trainwright.train.submit"),
    "service": ("trainwright.service.__main__",),
}
"""What runs in an image though no component names it: the pods of a training job, and the service."""

LOOK = """
import importlib.util, json, os, shutil, sys, time
start = time.monotonic()
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.monotonic() - start
tools = ("pip", "pip3", "gcc", "cc", "g++", "c++", "make", "uv", "git")
left = [name for name in tools if shutil.which(name)]
modules = ["pip", "ensurepip", "trainwright.cli"]
if "trainwright.service.__main__" not in sys.argv:
    modules += ["trainwright.authoring", "trainwright.local", "trainwright.service"]
left += [name for name in modules if importlib.util.find_spec(name)]
try:
    open(os.path.join(sys.prefix, "written"), "w").close()
    left.append("a file system that can be written to")
except OSError:
    pass
packages = json.load(open(os.path.join(sys.prefix, "sbom.cdx.json")))
stamp = json.load(open(os.path.join(sys.prefix, "trainwright-environment.json")))
cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None) or ""
found = {"user": os.getuid(), "seconds": seconds, "left": left, "packages": packages, "stamp": stamp}
print(json.dumps({**found, "cuda": cuda}))
"""
"""Runs in the image: import what its steps import, and say what should not be there."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Properties of an image, seen from inside and outside."""

    id: str
    megabytes: float
    packages: dict[str, Any]
    import_s: float
    cuda: str


def engine(name: str, *arguments: str) -> str:
    """Run one command of the engine; return what it printed.

    Raises:
        DependencyError: The engine says no.
    """
    done = subprocess.run([name, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        tail = "".join(f"\n    {line}" for line in done.stderr.strip().splitlines()[-12:])
        raise DependencyError(f"{name} {arguments[0]} ended with {done.returncode}{tail}")
    return done.stdout.strip()


def budget(toolchain: str, variant: str = "") -> float:
    """Return how many megabytes an image may add to its base; a variant has a budget of its own."""
    budgets: dict[str, float] = json.loads((IMAGES / "budgets.json").read_text())
    return budgets[f"{toolchain}-{variant}" if variant else toolchain]


def entries(toolchain: str) -> list[str]:
    """Return the modules that the bodies of a toolchain's components import, from their compiled YAML."""
    found = set(JOB.get(toolchain, ()))
    for path in (IMAGES.parent / "compiled" / "components").glob("*.yaml"):
        for image, code in _containers(path):
            if re.search(rf"(^|/)trainwright/{toolchain}[:@]", image):
                found |= set(re.findall(r"from (trainwright\.[\w.]+) import", code))
    return sorted(found)


def _containers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each container's image and its command; not as the file has it, which breaks long lines."""
    for document in yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        for executor in document.get("deploymentSpec", {}).get("executors", {}).values():
            container = executor.get("container", {})
            yield container.get("image", ""), "\n".join(container.get("command", ()))


def look(name: str, image: str, base: str, toolchain: str) -> Found:
    """Look into an image.

    Raises:
        DependencyError: It does not import what its steps import, or holds what it should not.
    """
    code = ["python3", "-c", LOOK, *entries(toolchain)]
    said = json.loads(engine(name, "run", *CONSTRAINED, image, *code))
    wrong = [f"holds {what}" for what in said["left"]]
    wrong += ["runs as the superuser"] if said["user"] == 0 else []
    if wrong:
        raise DependencyError(f"the image of {toolchain} {', '.join(wrong)}", where=image)
    size = [int(engine(name, "image", "inspect", "--format", "{{.Size}}", one)) for one in (image, base)]
    identity = engine(name, "image", "inspect", "--format", "{{.Id}}", image)
    packages = said["packages"]
    packages["metadata"]["component"] = {
        "type": "container",
        "bom-ref": image,
        "name": image.rpartition(":")[0],
        "version": image.rpartition(":")[2],
        "properties": [
            {"name": f"trainwright:{key}", "value": value} for key, value in said["stamp"].items()
        ],
    }
    return Found(
        id=f"sha256:{identity.removeprefix('sha256:')}",
        megabytes=(size[0] - size[1]) / 1e6,
        packages=packages,
        import_s=said["seconds"],
        cuda=said["cuda"],
    )
