"""Build the images with any engine that speaks docker's command line; look into each; write what was made.

``python images/build.py [toolchain ...]``; ``make images`` calls it, docs/images.md explains it. Beside each
image there are its list of packages (CycloneDX) and one entry in ``images.json``, which
``trainwright compile --lock-images`` reads. Arguments after ``--`` go to the engine's build as they are.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import inspection

import trainwright
from trainwright.authoring.environments import TOOLCHAINS, ToolchainEnvironment
from trainwright.authoring.images import name as image_name
from trainwright.errors import DependencyError, InputError, reported
from trainwright.tracking import library_digest

ROOT = Path(__file__).resolve().parents[1]
BASE = "python:3.11-slim-bookworm"
PASSED = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT",
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_TORCH_BACKEND", "SSL_CERT_FILE",
)  # fmt: skip
"""Settings of pip and uv that reach a build if they are set here."""

VARIANTS = {"gpu": ("torch",), "engines": ("feast", "tabular", "torch")}
"""The toolchains of each variant: torch with CUDA; Feast with Spark, Ray and Java, the others with Beam."""

WHEELS = "/wheels"
"""Where a build sees the folders of wheels that ``PIP_FIND_LINKS`` and ``UV_FIND_LINKS`` name here."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image as it was built.

    Attributes:
        id: The engine's digest of its configuration: names these bytes on this machine.
        reference: What a cluster pulls, ``HOST/TEAM/NAME@sha256:DIGEST``; empty unless it was pushed.
        base: What it was built on, ``NAME@sha256:DIGEST``; ``localhost/NAME:TAG`` if that was made here.
        megabytes: What it adds to its base.
        budget: How many megabytes it may add.
        cuda: The version of CUDA that its torch was built for; empty for a CPU build, and without torch.
        packages: How many the list of packages names.
        import_s: Seconds in which all that its steps import was imported, in the image.
        seconds: What building it took.
    """

    id: str
    reference: str
    version: str
    commit: str
    lock_sha256: str
    library_sha256: str
    base: str
    megabytes: float
    budget: float
    cuda: str
    packages: int
    import_s: float
    seconds: float

    @property
    def fits(self) -> bool:
        """True if the image is within its budget."""
        return self.megabytes <= self.budget


def commit() -> str:
    """Return the commit of the repository, with ``-dirty`` when something is not committed; '' for none."""
    found = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],  # noqa: S607
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip()


def pinned(engine: str, base: str) -> str:
    """Return a base by the digest of its registry, ``NAME@sha256:…``; a base that was made here as it is.

    A tag is looked up on this machine, and pulled if it is not there.
    """
    if "@sha256:" in base or base.startswith("localhost/"):
        return base
    inspect = ("image", "inspect", "--format", "{{json .RepoDigests}}", base)
    try:
        known = inspection.engine(engine, *inspect)
    except DependencyError:
        inspection.engine(engine, "pull", base)
        known = inspection.engine(engine, *inspect)
    references: list[str] = json.loads(known) or []
    if not references:
        raise DependencyError(
            f"the base {base} has no digest of a registry",
            where="--base",
            hint="Name it by digest, NAME@sha256:…; or localhost/NAME:TAG, if it was made here.",
        )
    return references[0]


def labels(toolchain: str, base: str, *, variant: str) -> dict[str, str]:
    """Return what an image says of itself: OCI's own words, and what it was made from."""
    return {
        "org.opencontainers.image.title": f"trainwright {toolchain}",
        "org.opencontainers.image.version": trainwright.__version__,
        "org.opencontainers.image.revision": commit(),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": base.partition("@")[2],
        "trainwright.lock-sha256": ToolchainEnvironment(toolchain, variant=variant).digest,
        "trainwright.library-sha256": library_digest(),
    }


def package_settings(scratch: Path) -> dict[str, str]:
    """Return the settings of pip and uv for a build; link the wheels of local folders into ``scratch``."""
    passed = {name: os.environ[name] for name in PASSED if os.environ.get(name)}
    for name, separator in (("PIP_FIND_LINKS", " "), ("UV_FIND_LINKS", ",")):
        places = passed.pop(name, "").replace(separator, " ").split()
        folders = [Path(place).expanduser() for place in places if Path(place).expanduser().is_dir()]
        for wheel in (wheel for folder in folders for wheel in folder.glob("*.*")):
            _link(wheel, scratch / wheel.name)
        links = [place for place in places if "://" in place] + [WHEELS] * any(scratch.iterdir())
        if links:
            passed[name] = separator.join(links)
    return passed


def _link(file: Path, target: Path) -> None:
    """Link a file, or copy it from another file system. An engine would not follow a symbolic link."""
    if file.is_file() and not target.exists():
        try:
            os.link(file, target)
        except OSError:
            shutil.copy2(file, target)


def command(
    engine: str, toolchain: str, said: dict[str, str], *, variant: str, wheels: Path, more: list[str]
) -> list[str]:
    """Return the engine's command that builds an image. Local wheels are linked into ``wheels``."""
    base = said["org.opencontainers.image.base.name"]
    arguments = (
        package_settings(wheels)
        | {"BASE": base, "IMAGE": toolchain}
        | ({"VARIANT": variant} if variant else {})
    )
    command = [engine, "build", "--file", "images/Dockerfile", "--tag", image_name(toolchain)]
    if engine == "podman":  # it does not look for the file beside the Dockerfile
        command += ["--ignorefile", "images/Dockerfile.dockerignore"]
    if any(wheels.iterdir()):
        command += ["--build-context", f"wheels={wheels}"]
    command += [part for pair in arguments.items() for part in ("--build-arg", "=".join(pair))]
    command += [part for pair in said.items() for part in ("--label", "=".join(pair))]
    return [*command, *more, "."]


def build(engine: str, toolchain: str, base: str, output: Path, *, variant: str, more: list[str]) -> Image:
    """Build one image and look into it.

    Raises:
        DependencyError: The engine could not, or the image is not what it has to be.
    """
    started = time.monotonic()
    said = labels(toolchain, base, variant=variant)
    output.mkdir(parents=True, exist_ok=True)
    log = output / f"{toolchain}.log"
    with log.open("w") as stream, tempfile.TemporaryDirectory(dir=output) as wheels:
        variables = {**os.environ, "DOCKER_BUILDKIT": "1"}  # engines that have it as a choice: mounts need it
        asked = command(engine, toolchain, said, variant=variant, wheels=Path(wheels), more=more)
        done = subprocess.run(asked, cwd=ROOT, env=variables, stdout=stream, stderr=stream, check=False)  # noqa: S603
    if done.returncode:
        tail = "".join(f"\n    {line}" for line in log.read_text().splitlines()[-12:])
        raise DependencyError(f"{engine} could not build the image of {toolchain}{tail}", where=str(log))
    found = inspection.look(engine, image_name(toolchain), base, toolchain)
    (output / f"{toolchain}.cdx.json").write_text(json.dumps(found.packages, indent=2) + "\n")
    return Image(
        id=found.id,
        reference="",
        version=trainwright.__version__,
        commit=said["org.opencontainers.image.revision"],
        lock_sha256=said["trainwright.lock-sha256"],
        library_sha256=said["trainwright.library-sha256"],
        base=base,
        megabytes=round(found.megabytes, 1),
        budget=inspection.budget(toolchain, "gpu" if found.cuda else variant),
        cuda=found.cuda,
        packages=len(found.packages["components"]),
        import_s=round(found.import_s, 2),
        seconds=round(time.monotonic() - started, 1),
    )


def pushed(engine: str, image: str, registry: str) -> str:
    """Push an image; return its reference with the digest that the registry knows it by."""
    target = f"{registry.rstrip('/')}/{image}"
    repository = target.rpartition(":")[0]
    inspection.engine(engine, "tag", image, target)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "digest"
        extra = ["--digestfile", str(file)] if engine == "podman" else []
        inspection.engine(engine, "push", *extra, target)
        if extra:
            return f"{repository}@{file.read_text().strip()}"
    known: list[str] = json.loads(
        inspection.engine(engine, "image", "inspect", "--format", "{{json .RepoDigests}}", target)
    )
    found = next((reference for reference in known if reference.startswith(f"{repository}@")), "")
    if not found:
        raise DependencyError(f"{engine} does not say which digest it pushed", where=target)
    return found


def write(output: Path, toolchain: str, image: Image) -> None:
    """Put an image into ``images.json``; those of other toolchains stay as they were."""
    path = output / "images.json"
    known = json.loads(path.read_text())["images"] if path.exists() else {}
    known[image_name(toolchain)] = asdict(image)
    path.write_text(json.dumps({"schema_version": 1, "images": known}, indent=2, sort_keys=True) + "\n")


def parsed() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what stands after ``--`` is the engine's."""
    here = sys.argv[1:]
    own, more = (here[: here.index("--")], here[here.index("--") + 1 :]) if "--" in here else (here, [])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("toolchains", nargs="*", default=TOOLCHAINS, help=f"default: {' '.join(TOOLCHAINS)}")
    parser.add_argument("--engine", default="docker", choices=("docker", "podman"))
    parser.add_argument("--base", default=BASE, help=f"Python 3.11 and apt, best by digest; default: {BASE}")
    parser.add_argument(
        "--torch-base", default="", help="another base for the torch image, such as one with CUDA"
    )
    parser.add_argument("--variant", default="", choices=VARIANTS, help="from another lock of the toolchain")
    parser.add_argument("--push", default="", help="HOST/TEAM of a registry that the images are pushed to")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "images", help="default: build/images"
    )
    return parser.parse_args(own), more


def main() -> None:
    """Build images one at a time. One over its budget is not pushed, and is an error at the end."""
    asked, more = parsed()
    with reported("images"):
        if not shutil.which(asked.engine):
            raise DependencyError(
                f"there is no {asked.engine} here", hint="Name the engine you have: ENGINE=podman"
            )
        over = []
        for toolchain in asked.toolchains:
            base = pinned(asked.engine, (asked.torch_base if toolchain == "torch" else "") or asked.base)
            variant = asked.variant if toolchain in VARIANTS.get(asked.variant, ()) else ""
            image = build(asked.engine, toolchain, base, asked.output, variant=variant, more=more)
            print(line(toolchain, image), flush=True)  # noqa: T201
            if not image.fits:
                over.append(f"{toolchain} {image.megabytes:,.0f} MB > {image.budget:,.0f} MB")
            elif asked.push:
                image = replace(image, reference=pushed(asked.engine, image_name(toolchain), asked.push))
            write(asked.output, toolchain, image)
        if over:
            raise InputError(
                f"larger than its budget{' and not pushed' if asked.push else ''}: {', '.join(over)}",
                where="images/budgets.json",
                hint="Find what came in (the list of packages lies beside the image), or raise the budget.",
            )


def line(toolchain: str, image: Image) -> str:
    """Say in one line what was built."""
    build = f", CUDA {image.cuda}" if image.cuda else ", CPU" if toolchain == "torch" else ""
    return (
        f"  {toolchain:<9}{image.seconds:7.1f} s{image.megabytes:7,.0f} of {image.budget:,.0f} MB{build}"
        f"  {image.packages} packages, its steps import in {image.import_s:.2f} s  {image.id[7:19]}"
    )


if __name__ == "__main__":
    main()
