"""Read and change registered models: list, show, history, register, promote."""

from trainwright.experiment import Registry
from trainwright.registry.history import AuditHistory, read_history
from trainwright.registry.listing import VersionSummary, list_versions, show_version
from trainwright.service.settings import Settings
from trainwright.tracking.server import open_client, persist

_PAGE = 1000
ANY = "any"
"""A model's name where a section needs one and none is used."""


def list_models(settings: Settings) -> list[str]:
    """Return the names of the registered models."""
    registry = settings.registry_of(ANY)

    def read() -> list[str]:
        client, names, token = open_client(registry.tracking_uri), [], None
        while True:
            page = client.search_registered_models(max_results=_PAGE, page_token=token)
            names += [model.name for model in page]
            token = page.token
            if not token:
                return sorted(names)

    return persist(read, registry.tracking_uri, 0)


def list_model_versions(settings: Settings, model: str) -> list[VersionSummary]:
    """Return the versions of a model, the newest first."""
    return list_versions(_registry(settings, model))


def get_version(settings: Settings, model: str, which: str) -> VersionSummary:
    """Return a version by its number or alias, with metrics and parameters."""
    return show_version(_registry(settings, model), which)


def get_history(settings: Settings, model: str) -> AuditHistory:
    """Return the verified audit of a model."""
    return read_history(_registry(settings, model))


def _registry(settings: Settings, model: str) -> Registry:
    """Return the section of a model; a request does not wait for a server that is away."""
    return settings.registry_of(model).model_copy(update={"retry_s": 0})
