"""Whether a change of the features would be seen: a cached join is judged by ``features.source`` alone."""

import os
from collections.abc import Container, Iterable

from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.featurestore import SETTINGS, Checkout, Service, offline_files
from trainwright.storage import redacted


def require_covered(service: Service, features: Features, checkout: Checkout, files: Iterable[str]) -> None:
    """Refuse a source that does not hold what the joined values come from.

    That is the offline files of every view and, where any of these lies in the repository's folder or the
    repository was fetched, the settings and the definitions there, or the registry that they were applied to.
    A commit of git holds its settings and definitions, but no registry in a bucket or a database.

    Args:
        service: The features.
        features: What was asked for.
        checkout: The repository.
        files: URIs of the files that ``features.source`` holds.

    Raises:
        InputError: Anything is not covered, so that its change would be answered from the cache.
    """
    covered = {checkout.origin(uri) for uri in files}
    offline = [checkout.origin(uri) for view in service.views for uri in offline_files(view)]
    if checkout.pinned:  # a commit is part of the configuration, and so of the cache key
        offline = [place for place in offline if not place.startswith(f"{checkout.uri}/")]
        _require_own_registry(service, checkout, covered)
    missing = [place for place in offline if place not in covered]
    root = checkout.uri if checkout.fetched else os.path.realpath(checkout.folder)
    inside = checkout.fetched or any(place.startswith(f"{root}/") for place in offline)
    if inside and not checkout.pinned:
        if checkout.origin(str(checkout.folder / SETTINGS)) not in covered:
            missing.append(SETTINGS)
        if _registry(service, checkout) not in covered and not any(
            place.endswith(".py") for place in covered
        ):
            missing.append("the definitions of the views (*.py) or their registry")
    if missing:
        shown = ", ".join(missing[:3])
        raise InputError(
            f"a change of the features would go unseen: features.source does not hold {shown}",
            where=features.source,
            hint=f"Name all of the repository but compiled Python: {features.repository}/**/*[!c]",
        )


def _require_own_registry(service: Service, checkout: Checkout, covered: Container[str]) -> None:
    """Reject a registry outside the commit: `feast apply` changes it, and the cache key stays the same."""
    registry = _registry(service, checkout)
    if registry not in covered and not registry.startswith(f"{checkout.uri}/"):
        raise InputError(
            f"a change of the features would go unseen: the commit does not hold {redacted(registry)}",
            where=checkout.uri,
            hint=f"Write a relative registry.path into {SETTINGS}: then `join` applies the commit's own.",
        )


def _registry(service: Service, checkout: Checkout) -> str:
    """Return the origin of the registry's file, or the address of its server."""
    settings = service.feast.config.registry
    if settings.registry_type != "file" or "://" in settings.path:
        return str(settings.path)
    # the path is relative to the repository, and may start with ..
    return checkout.origin(os.path.normpath(checkout.folder / settings.path))
