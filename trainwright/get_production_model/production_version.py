"""The version in production, as strings for the cache keys of later steps."""

from pathlib import Path

from trainwright.experiment import Registry
from trainwright.registry.names import PRODUCTION
from trainwright.registry.versions import ProductionVersion, find_production
from trainwright.report import markdown
from trainwright.tracking import Stopwatch
from trainwright.tracking.server import open_client, persist

NONE = ProductionVersion("", "", "")
"""No version is in production."""

_HINT = (
    "Nothing was trained or changed yet. Look at registry.tracking_uri and at the server; when it answers, "
    "run again: what was done before is reused."
)


def get_production_model(
    registry: Registry, record: Path, summary: Path, alias: str = PRODUCTION
) -> ProductionVersion:
    """Ask the registry which version is in production, or has another alias.

    Args:
        registry: The registered model, and where.
        record: Folder for the step's record.
        summary: Markdown file: what was found.
        alias: The alias.

    Returns:
        The version; all its fields are empty where there is none.

    Raises:
        InputError: The version has no digest of its model, or the address is of no known kind.
        DependencyError: The registry was away for ``registry.retry_s``.
        PermissionRefused: It refuses this identity.
    """
    watch, uri = Stopwatch(), registry.tracking_uri
    client = persist(lambda: open_client(uri), uri, registry.retry_s, hint=_HINT)
    found = (
        persist(lambda: find_production(client, registry.model, alias), uri, registry.retry_s, hint=_HINT)
        or NONE
    )
    stage = "in production" if alias == PRODUCTION else alias
    headline = f"no version of {registry.model} is {stage}"
    if found.version:
        headline = f"{registry.model} version {found.version} is {stage}, model {found.model[:6]}"
    record.mkdir(parents=True, exist_ok=True)
    watch.record(
        record,
        "get_production_model",
        headline,
        config=registry.model_dump(mode="json"),
        outputs={"model": found.model} if found.model else {},
    )
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(f"**{markdown.escape(headline)}**\n")
    return found
