"""Whether a change of the features would be seen: a cached join is judged by ``features.source`` alone."""

import os
from collections.abc import Iterable
from pathlib import Path

from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.featurestore import SETTINGS, Service, offline_files
from trainwright.storage import local_path


def require_covered(service: Service, features: Features, files: Iterable[str]) -> None:
    """Refuse a source that does not hold what the joined values come from.

    That is the offline files of every view and, where any of these lies in the repository's folder, the
    settings and the definitions there, or the registry that they were applied to.

    Args:
        service: The features.
        features: What was asked for.
        files: URIs of the files that ``features.source`` holds.

    Raises:
        InputError: Anything is not covered, so that its change would be answered from the cache.
    """
    covered = {_place(uri) for uri in files}
    offline = [_place(uri) for view in service.views for uri in offline_files(view)]
    missing = [place for place in offline if place not in covered]
    folder = Path(_place(features.repository))
    if any(Path(place).is_relative_to(folder) for place in offline):
        if str(folder / SETTINGS) not in covered:
            missing.append(SETTINGS)
        named = service.feast.config.registry.path  # relative to the repository, and it may start with ..
        registry = named if "://" in named else os.path.realpath(folder / named)
        if registry not in covered and not any(place.endswith(".py") for place in covered):
            missing.append("the definitions of the views (*.py) or their registry")
    if missing:
        shown = ", ".join(missing[:3])
        raise InputError(
            f"a change of the features would go unseen: features.source does not hold {shown}",
            where=features.source,
            hint=f"Name all of the repository but compiled Python: {features.repository}/**/*[!c]",
        )


def _place(uri: str) -> str:
    path = local_path(uri)
    return uri if path is None else os.path.realpath(path)
