"""A package in the API: one version of its pipeline for one content, however often it is uploaded."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import naming
from trainwright.authoring.submission.connection import Connection


@dataclass(frozen=True, kw_only=True)
class Package:
    """A compiled pipeline as it is uploaded.

    Attributes:
        name: Name of the pipeline.
        text: The compiled YAML.
        display_name: What the UI calls the pipeline; empty for its name.
        description: Of the pipeline.
    """

    name: str
    text: str
    display_name: str = ""
    description: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the YAML: the name of its version."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def package(pipeline: Pipeline, text: str) -> Package:
    """Return a compiled pipeline as it is uploaded, called and described as its author wrote."""
    info = pipeline.document.get("pipelineInfo", {})
    return Package(
        name=pipeline.name,
        text=text,
        display_name=str(info.get("displayName", "")),
        description=" ".join(str(info.get("description", "")).split()),
    )


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a pipeline in the API, and whether it was uploaded just now."""

    pipeline_id: str
    version_id: str
    fresh: bool


def uploaded(api: Connection, package: Package, tags: Mapping[str, str]) -> Version:
    """Return the version of the pipeline that has this content; upload it if there is none.

    The version is called like the digest of its content, and the API has each name once in a pipeline: no
    repeated upload, no lost answer and no race between two makes a second one.

    Args:
        api: The API.
        package: What to upload.
        tags: Where it comes from; those of the first upload stay.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    pipeline_id = _pipeline(api, package)

    def look() -> str | None:
        by_name = {"predicates": [{"operation": "EQUALS", "key": "name", "string_value": package.digest}]}
        call = api.pipelines.pipeline_service_list_pipeline_versions
        what = "looking for the version of the pipeline"
        found = api.pages(
            what, call, "pipeline_versions", pipeline_id=pipeline_id, filter=json.dumps(by_name)
        )
        return next((version.pipeline_version_id for version in found), None)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_text(package.text)
        version_id, fresh = api.made(
            "uploading the package",
            look,
            api.uploads.upload_pipeline_version,
            str(path),
            name=package.digest,
            display_name=naming.version(package.digest, tags, datetime.now(UTC)),
            pipelineid=pipeline_id,
            tags=json.dumps(dict(tags)),
        )
    return Version(pipeline_id=pipeline_id, version_id=version_id, fresh=fresh)


def _pipeline(api: Connection, package: Package) -> str:
    """Return the id of the pipeline of a package's name; make it if it is not there."""
    namespace = {"namespace": api.place.namespace} if api.place.namespace else {}

    def look() -> str | None:
        call = api.pipelines.pipeline_service_get_pipeline_by_name
        found = api.read_if_there("looking for the pipeline", call, package.name, **namespace)
        return found.pipeline_id if found else None

    body = {"name": package.name, "display_name": package.display_name or package.name, **namespace}
    body |= {"description": package.description} if package.description else {}
    found, _ = api.made("making the pipeline", look, api.pipelines.pipeline_service_create_pipeline, body)
    return found


def spec_of(api: Connection, pipeline_id: str, version_id: str) -> Mapping[str, Any]:
    """Return the compiled documents of a version, as the API has them; empty if it has them no more.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    call = api.pipelines.pipeline_service_get_pipeline_version
    found = api.read_if_there("reading the pipeline", call, pipeline_id, version_id)
    return found.pipeline_spec if found and isinstance(found.pipeline_spec, dict) else {}
