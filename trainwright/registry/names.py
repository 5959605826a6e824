"""Names in the registry: stages, aliases, tags, model names, and the location of the audit."""

import re
from pathlib import Path
from urllib.parse import quote

from trainwright.documents import digest_text
from trainwright.errors import InputError
from trainwright.tracking.server import SQLITE, database

CANDIDATE, STAGING, CANARY, PRODUCTION, ARCHIVED = "candidate", "staging", "canary", "production", "archived"
PREVIOUS = "previous-production"

STAGES = (CANDIDATE, STAGING, CANARY, PRODUCTION, ARCHIVED)
"""Stages of a version; a version has exactly one."""

AUDITED = (STAGING, CANARY, PRODUCTION, PREVIOUS)
"""Aliases that only a promotion or a rollback moves, and each move is in the audit."""

KEY = "trainwright.idempotency_key"
"""The tag that makes a version, and its run, findable."""

STAGE = "trainwright.stage"
"""The tag that says where a version stands; one without it does not count."""

HEAD = "trainwright.audit_head"
"""Tag of the registered model: number and digest of the last audit entry, so that a cut chain is noticed."""

REFERENCE = re.compile(r"(?P<name>[^@/]+)(?:@(?P<alias>[\w-]+)|/(?P<version>[1-9]\d*))")
"""A registered version as people write it: ``NAME@ALIAS`` or ``NAME/VERSION``."""

_LONGEST = 250
_ODD = re.compile(r"[\x00-\x1f\x7f/:]")


def require_name(name: str) -> str:
    """Return the name of a model, if MLflow, a file system and a URI can all hold it.

    Raises:
        InputError: It is too long, or has a character or a beginning that one of them cannot take.
    """
    odd = sorted(set(_ODD.findall(name)))
    if not odd and "'" in name and '"' in name:  # MLflow's filters have no escape
        odd = ["'", '"']
    if odd or not name.strip() or name.startswith((".", "_")) or len(name) > _LONGEST:
        why = f"it has {odd}" if odd else "it is empty, too long, or starts with . or _"
        raise InputError(
            f"{name!r:.80} cannot be the name of a registered model: {why}",
            where="registry.model",
            hint="Take letters, digits, spaces, '-', '_' and '.'; MLflow refuses '/' and ':'.",
        )
    return name


def folder_of(name: str) -> str:
    """Return the name of a model's folder in the audit: its own, with what a path gives a meaning escaped.

    One that is longer than a disk takes when it is escaped, such as 250 Chinese characters, ends with its
    digest after a sign that no escaped name has.
    """
    folder = quote(require_name(name), safe=" ")
    return folder if len(folder) <= _LONGEST else f"{folder[:180]}={digest_text(name)}"


def audit_location(audit: str | None, tracking_uri: str) -> str:
    """Return where the audit lies: as it is said, or beside an SQLite file; empty where nothing says.

    Args:
        audit: ``registry.audit``; None or empty where it is not set.
        tracking_uri: MLflow's address.
    """
    if audit:
        return audit
    if tracking_uri.startswith(SQLITE):
        return str(Path(database(tracking_uri)).parent / "audit")
    return ""
