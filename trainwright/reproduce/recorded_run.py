"""A run as its records describe it: from its folder, or from the evidence of a registered version."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.artifacts import Listing, PinnedSource, Record
from trainwright.artifacts.record import SOURCE_PATCH
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.experiment import Experiment
from trainwright.lineage import VERSIONS, ancestors
from trainwright.local.run_folder import Request, Tasks, record_of, require_run

BESIDE = ("schema", "baseline", "serving", "features")
"""Files that a run reads beside its rows: names of the listings of ``resolve``."""

_SECTIONS = {"ingest": "data", "validate": "validation", "join": "features", "evaluate": "evaluation"}
"""Sections that the record of a step contains whole."""

_AGAIN = "Reproduce it by its run, where the folder of the run is: trainwright runs list."


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run to reproduce.

    Attributes:
        name: Its short name, or ``NAME/VERSION``.
        pipeline: Name of the pipeline.
        arguments: Its arguments.
        date: Day that ``{date}`` stood for.
        commit: Git commit with the mark of uncommitted changes; empty or ``none`` if unknown.
        patch: These changes; None if they are not recorded.
        records: Record of each step, by its name in the run, or by its verb in the evidence.
        sources: The rows (``source``) and the files beside them that the run read.
        production: Number of the version in production at that time; empty for none.
        registry: Section ``registry`` with this version, as JSON; empty if there was none.
        predictions: Folder of the predictions of a step, by its verb; empty if they are not here.
        metrics: Metrics of the evaluation, by name.
    """

    name: str
    pipeline: str
    arguments: Mapping[str, Any]
    date: str
    commit: str
    patch: Path | None
    records: Mapping[str, Record]
    sources: Mapping[str, PinnedSource]
    production: str = ""
    registry: str = ""
    predictions: Mapping[str, Path] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject records that contradict each other: one of them was changed by hand.

        Raises:
            InputError: A step read other data than the step before made.
        """
        made = {record.step: record for record in self.records.values()}
        for record in ancestors(self.records.values()):
            own = made.get(record.step, record)
            for name in VERSIONS:
                found, expected = record.outputs.get(name, ""), own.outputs.get(name, "")
                if found and expected and found != expected:
                    raise InputError(
                        f"the records of {self.name} contradict each other: {record.step} made {name} "
                        f"{expected[:12]}, a later step says {found[:12]}",
                        where=self.name,
                        hint="One was changed by hand: compare them with a copy.",
                    )

    @property
    def library(self) -> tuple[str, str]:
        """Version of the library, and digest of its source."""
        found = next(iter(self.records.values())).environment
        return found.library, found.library_sha256


def from_folder(runs: Path, run: str) -> RecordedRun:
    """Read a run from its folder.

    Raises:
        InputError: There is no such run, it trains no model, or it ended before it resolved its source.
    """
    folder = require_run(runs, run)
    request, tasks = Request.read(folder), Tasks.read(folder).tasks
    finished = {task.step: task for task in tasks if task.finished}
    records = {name: record for name, task in finished.items() if (record := record_of(task.outputs))}
    resolved = next((task for task in finished.values() if task.verb == "resolve"), None)
    if "registry" not in request.arguments or resolved is None:
        what = f"run {run} of {request.pipeline} did not resolve the source of a training"
        raise InputError(what, where=str(folder), hint="Name a run of train_and_register.")
    production = next((task for task in finished.values() if task.verb == "get_production_model"), None)
    listings = Path(resolved.outputs["listing"].uri)
    sources = {"source": _pinned(listings, request.arguments.get("data", {}))}
    for name in BESIDE:
        if (listings / name / Listing.FILE).exists():
            sources[name] = _pinned(listings / name)
    registered = production.parameters.get("registered", "") if production else ""
    settings = next(
        (record.config for record in records.values() if record.step == "get_production_model"), {}
    )
    made = {record.step: finished[name] for name, record in records.items()}
    return RecordedRun(
        name=run,
        pipeline=request.pipeline,
        arguments=request.arguments,
        date=request.arguments.get("date") or request.created[:10],
        commit=str(request.arguments.get("commit", "")),
        patch=_if_file(folder / SOURCE_PATCH),
        records={name: record for name, record in records.items() if record.step != "summarize"},
        sources=sources,
        production=registered,
        registry=json.dumps(settings) if registered else "",
        predictions={
            verb: Path(made[verb].outputs["predictions"].uri) for verb in ("train", "score") if verb in made
        },
        metrics=read_metrics(Path(made["evaluate"].outputs["verdict"].uri)) if "evaluate" in made else {},
    )


def _pinned(folder: Path, data: Mapping[str, Any] | None = None) -> PinnedSource:
    listing = Listing.read(folder)
    section = {} if data is None else {**data, "source": listing.source}
    return PinnedSource(
        source=listing.source, version=listing.content_digest, files=listing.files, data=section
    )


def from_evidence(name: str, registry: str, folder: Path, tags: Mapping[str, str]) -> RecordedRun:
    """Read a registered version from its evidence.

    Args:
        name: ``NAME/VERSION``.
        registry: Section ``registry`` with it, as JSON.
        folder: Folder of the evidence.
        tags: Tags of the version.

    Raises:
        InputError: A record is missing, or lacks what a reproduction needs.
    """
    first = [Record.read(path) for path in sorted(folder.glob("*-*.json"))]
    records = {record.step: record for record in reversed(first)}
    if missing := [step for step in (*_SECTIONS, "train") if step not in records]:
        raise InputError(
            f"the evidence of {name} has no record of {', '.join(missing)}", where=name, hint=_AGAIN
        )
    _require_tags(name, tags, records)
    sections = {section: dict(records[step].config) for step, section in _SECTIONS.items()}
    files = sections["validation"].pop("files", {})
    if not files or sections["validation"].get("serving_log"):
        raise InputError(
            f"the records of {name} do not name its schema or its serving log", where=name, hint=_AGAIN
        )
    ingest, trained = records["ingest"], records["train"].config
    pinned = sections["data"].pop("pinned", {})
    location = str(sections["data"]["source"])
    production = tags.get("trainwright.baseline_version", "")
    sections |= {"network": trained["network"], "training": trained["training"]}
    sections["resources"] = {"processes": trained["processes"]}
    sections["registry"] = {key: read_json(registry)[key] for key in ("model", "tracking_uri")}
    experiment = Experiment.check(sections, f"the records of {name}")
    return RecordedRun(
        name=name,
        pipeline="train_and_register",
        arguments=experiment.to_parameter(as_written=True)
        | {
            "source": location,
            "schema": files["schema"]["source"],
            "commit": tags.get("trainwright.git_sha", "none"),
        },
        date=ingest.started[:10],
        commit=tags.get("trainwright.git_sha", ""),
        patch=_if_file(folder / SOURCE_PATCH),
        records=records,
        sources=_sources_of(ingest, records["join"], location, pinned, sections["data"], files),
        production=production,
        registry=registry if production else "",
        metrics=read_metrics(folder / "model"),
    )


def _sources_of(
    ingest: Record,
    join: Record,
    location: str,
    versions: Mapping[str, str],
    data: Mapping[str, Any],
    files: Mapping[str, Mapping[str, str]],
) -> dict[str, PinnedSource]:
    found = {
        "source": PinnedSource(
            source=location,
            version=ingest.inputs["source"],
            versions=dict(versions),
            written_until=ingest.started,
            data=dict(data),
        )
    }
    for name, file in files.items():
        if file["version"]:
            found[name] = PinnedSource(source=file["source"], version=file["version"])
    if features := join.inputs.get("features"):
        found["features"] = PinnedSource(
            source=str(join.config["source"]), version=features, written_until=join.started
        )
    return found


def _require_tags(name: str, tags: Mapping[str, str], records: Mapping[str, Record]) -> None:
    """Reject records of another model: its tags name the digests, too."""
    made = {"model": records["train"].outputs["model"], "data": records["ingest"].outputs["data"]}
    for what, digest in made.items():
        if (tagged := tags.get(f"trainwright.{what}_digest", "")) != digest:
            raise InputError(
                f"the records of {name} are about {what} {digest[:12]}, its tag about {tagged[:12]}",
                where=name,
                hint="One was changed by hand: trainwright model history says by whom.",
            )


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


def read_metrics(verdict: Path) -> dict[str, float]:
    """Return the metrics of an evaluation by name; those of slices are left out."""
    path = verdict / "measured.json"
    measures: Iterable[Mapping[str, Any]] = read_json(path).get("measures", ()) if path.is_file() else ()
    return {str(one["name"]): float(one["value"]) for one in measures if one.get("value") is not None}
