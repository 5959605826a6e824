"""Whether a change of the features would be seen: a cached join is judged by ``features.source`` alone."""

import os
from collections.abc import Iterable

from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.featurestore import SETTINGS, Checkout, Service, offline_files


def require_covered(service: Service, features: Features, checkout: Checkout, files: Iterable[str]) -> None:
    """Refuse a source that does not hold what the joined values come from.

    That is the offline files of every view and, where any of these lies in the repository's folder or the
    repository was fetched, the settings and the definitions there, or the registry that they were applied to.

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
    missing = [place for place in offline if place not in covered]
    root = checkout.uri if checkout.fetched else os.path.realpath(checkout.folder)
    inside = checkout.fetched or any(place.startswith(f"{root}/") for place in offline)
    if inside and not checkout.pinned:
        if checkout.origin(str(checkout.folder / SETTINGS)) not in covered:
            missing.append(SETTINGS)
        named = service.feast.config.registry.path  # relative to the repository, and it may start with ..
        registry = named if "://" in named else checkout.origin(os.path.normpath(checkout.folder / named))
        if registry not in covered and not any(place.endswith(".py") for place in covered):
            missing.append("the definitions of the views (*.py) or their registry")
    if missing:
        shown = ", ".join(missing[:3])
        raise InputError(
            f"a change of the features would go unseen: features.source does not hold {shown}",
            where=features.source,
            hint=f"Name all of the repository but compiled Python: {features.repository}/**/*[!c]",
        )
