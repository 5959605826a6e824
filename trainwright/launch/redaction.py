"""Remove secrets from the logs and events that a failure shows, and bound their size."""

import re
from collections.abc import Iterable

from trainwright.storage.uris import redacted

MAX_ENTRY = 1_000
MAX_EVIDENCE = 8_000
"""Characters of one entry, and of all of them."""

_LINE = 4_000
"""Characters of one line that are examined, so that no pattern takes long."""

_NAMED = re.compile(
    r"(?<![\w-])(?P<name>[\w-]++)(?P<is>[\"']?\s{0,4}[:=]\s{0,4})"
    r"(?P<value>\"[^\"]*\"|'[^']*'|(?:(?:bearer|basic)\s+)?[^\s,;}&\"']+)",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization",
    re.IGNORECASE,
)
_PROSE = re.compile(r"[a-z]+")
_BARE = re.compile(
    r"(?<![\w-])(?:"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|AIza[\w-]{35}"
    r"|ya29\.[\w-]+"
    r"|(?:gh[opsur]|github_pat|glpat|hf|xox[abprs]|sk|dapi)[_-][A-Za-z0-9_-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=[Bb]earer )[\w.~+/=-]{8,}|(?<=[Bb]asic )[A-Za-z0-9+/=]{8,})"
)
_CERTAIN = re.compile(
    r"(?<![\w-])(?:"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|AIza[\w-]{35}"
    r"|(?:(?:gh[opsur]|github_pat|glpat|hf|sk)[_-]|dapi)(?=[\w-]*\d)[\w-]{0,24}?[A-Za-z0-9]{20}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.)"
)
_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)", re.DOTALL
)


def redact(text: str) -> str:
    """Return a text with ``***`` for every secret, and with bounded lines.

    Secrets are values named password, secret, token or key, credentials in the formats of the usual clouds,
    Git hosts and model hubs, and the users and signatures of URIs.
    """
    lines = _KEY.sub("***", text).split("\n")
    return "\n".join(_NAMED.sub(_hide, _BARE.sub("***", redacted(line[:_LINE]))) for line in lines)


def holds_secret(text: str) -> bool:
    """Tell whether a text certainly contains a credential."""
    return bool(_CERTAIN.search(text) or _KEY.search(text)) or redacted(text) != text


def _hide(found: re.Match[str]) -> str:
    """Hide a value whose name marks a secret; ``token:`` before a plain word is prose."""
    prose = found["name"].lower().endswith("token") and found["is"] == ": "
    if not _SECRET.search(found["name"]) or (prose and _PROSE.fullmatch(found["value"])):
        return found[0]
    return f"{found['name']}{found['is']}***"


def bounded_evidence(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the entries redacted, without repeats, cut to size; the first ones are kept."""
    found: dict[str, None] = {}
    size = 0
    for entry in entries:
        text = shorten(redact(entry).strip())
        if text and text not in found:
            size += len(text)
            if size > MAX_EVIDENCE:
                break
            found[text] = None
    return tuple(found)


def shorten(text: str) -> str:
    """Cut a long text in its middle: its start names the subject, its end the fault."""
    half = (MAX_ENTRY - 5) // 2
    return text if len(text) <= MAX_ENTRY else f"{text[:half]} ... {text[-half:]}"
