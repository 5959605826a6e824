"""A pipeline small enough for any cluster: it makes rows, resolves and ingests them, and summarizes."""

import json
from pathlib import Path

from kfp import compiler, dsl

from trainwright.authoring import catalog, images, tasks

DATA = {
    "source": "elsewhere",
    "format": "csv",
    "key": "id",
    "time": "at",
    "label": "late",
    "splits": {"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.2}},
    "split_by": "id",
    "min_rows": 10,
}
CORES, MEMORY = "200m", "600M"


def write(folder: Path, name: str, registry: str) -> Path:
    """Compile the pipeline under a name of its own, so that nothing of another one is in its cache.

    Args:
        folder: Where the YAML goes.
        name: Name of the pipeline.
        registry: Put in front of every image; empty for none.
    """
    image = f"{registry.rstrip('/')}/{images.INGEST}" if registry else images.INGEST
    resolve, ingest, summarize = (
        catalog.load(verb, registry=registry) for verb in ("resolve", "ingest", "summarize")
    )

    @dsl.component(base_image=image, install_kfp_package=False)
    def sample(rows: dsl.Output[dsl.Dataset], count: int, wait_s: int) -> str:
        import time

        time.sleep(wait_s)
        lines = [f"{number},2026-01-01T00:{number % 60:02}:00Z,{number % 2}" for number in range(count)]
        with open(rows.path, "w") as file:
            file.write("\n".join(["id,at,late", *lines, ""]))
        return rows.uri

    @dsl.pipeline(name=name, display_name="Acceptance", description="Checks an installation; safe to delete.")
    def acceptance(
        missing: str = "", count: int = 200, wait_s: int = 0, data: str = json.dumps(DATA)
    ) -> None:
        finish = tasks.configure(summarize(), cpu=CORES, memory=MEMORY, cached=False)
        with dsl.ExitHandler(finish, name="acceptance"):
            made = tasks.configure(sample(count=count, wait_s=wait_s), cpu=CORES, memory=MEMORY)
            found = resolve(source=f"{made.outputs['Output']}{missing}", data=data)
            tasks.configure(found, cpu=CORES, memory=MEMORY, cached=False)
            taken = ingest(source=found.outputs["source"], source_version=found.outputs["version"], data=data)
            tasks.configure(taken, cpu=CORES, memory=MEMORY)

    path = folder / f"{name}.yaml"
    compiler.Compiler().compile(acceptance, str(path))
    return path
