"""Checks the Feast service that a run joins, before any data is read."""

import logging

from trainwright.artifacts import Listing
from trainwright.configure.configuration import Configuration
from trainwright.errors import InputError, PermissionRefused
from trainwright.experiment import Features, SeverityRule, Suppression, Validation
from trainwright.experiment.data import is_reserved
from trainwright.storage import parse_commit, take_listing

_log = logging.getLogger("trainwright.configure")


def check_service(configuration: Configuration) -> Configuration:
    """Return the configuration with the joined features that its rules about data name.

    `join` opens the service again, for it may have changed. On a cluster this step has no keys of an object
    store: a repository or offline files there that need them are left to `join`.

    Raises:
        InputError: The repository, the registry, the service, a view or an offline file is missing or wrong.
        DependencyError: The registry is there but cannot be read.
    """
    features = Features.parse(configuration.features, "parameter features")
    rules = Validation.parse(configuration.validation, "parameter validation")
    entries: list[SeverityRule | Suppression] = [*rules.severity, *rules.suppressions]
    named = dict.fromkeys(entry.column for entry in entries if entry.column)
    try:
        known = _features(features)
    except PermissionRefused as refused:
        _log.warning("join checks the feature service: this step may not read it (%s)", refused.what)
        known = list(named)
    joined = [name for name in named if name in known]
    return configuration._replace(
        validation=configuration.validation | ({"joined": joined} if joined else {})
    )


def _features(section: Features) -> list[str]:
    """Return the features of the service, once `join` is known to be able to open it; none without one."""
    if not (section.service and section.source and section.repository):
        return []
    from trainwright.featurestore import checked_out, is_remote, open_service

    listing = Listing(source="", files=())
    if is_remote(section.repository) and not parse_commit(section.repository):
        listing = take_listing(section.source)
    with checked_out(section.repository, listing) as checkout:
        folder = str(checkout.folder)
        found = open_service(folder, section.service, fetched=checkout.fetched, digests=False).features
    if taken := [name for name in found if is_reserved(name)]:
        raise InputError(
            f"features have names of columns of the predictions: {', '.join(taken)}",
            where=f"feature service {section.service!r}",
            hint="Rename them in their view.",
        )
    return found
