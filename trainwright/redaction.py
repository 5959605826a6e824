"""Find and remove secrets and terminal escapes in texts that are stored or printed, and bound their size.

The formats of secrets are those that detect-secrets and gitleaks know and that identify themselves: a prefix,
a name in front, a place in a URI. Entropy is no sign here: digests, commits and ids are everywhere.
"""

import re
from collections.abc import Iterable

MAX_ENTRY = 1_000
MAX_EVIDENCE = 8_000
"""Characters of one entry, and of all of them."""

_LINE = 4_000
"""Characters of one line that are examined, so that no pattern takes long."""

_NAMES = (
    r"sig|(?:[\w.-]*[_.-])?signature|[\w.-]*?(?:pass(?:wor)?d|pwd|passphrase|credentials?)|"
    r"[\w.-]*?(?:api|access|account|secret|private|shared|subscription|encryption)[_.-]?key(?:[_.-]?id)?|"
    r"(?:[\w.-]*[_.-])?(?:access|auth|api|id|refresh|bearer|session|security|sas)[_.-]?token|"
    r"(?:client|app|shared)[_.-]?secret"
)
"""Names of values that are secrets, in a URI, a mapping or a connection string."""

_WEB = r"(?:https?|ftp|s3a?|gs|minio|file|git\+https?)"
"""Schemes whose user is a credential; that of a database is a name."""

SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)

_WITH_SLASHES = r"[^/?#\s@'\":]{1,300}:(?!\d+(?:[/?#]|$))[^\s'\"@]{0,300}"
"""A user and a password with slashes in it. Bounded, so that no text takes long."""

_USER = re.compile(rf"(://)(?:[^/?#\s'\"]{{0,600}}|{_WITH_SLASHES})(?=@)")
_SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a password in an address", re.compile(
        rf"(://)(?:[^/?#\s'\"@:]{{0,300}}:[^/?#\s'\"@]{{0,300}}|{_WITH_SLASHES})(?=@)")),
    ("a user in an address", re.compile(rf"(\b{_WEB}://)[^/?#\s'\"@:]{{1,600}}(?=@)", re.IGNORECASE)),
    ("a secret in the query of an address", re.compile(
        rf"([?&;](?:{_NAMES}|key|token|secret|googleaccessid)=)[^&;#\s'\"]+", re.IGNORECASE)),
    ("a private key", re.compile(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)",
        re.DOTALL)),
    ("a private key", re.compile(r"\bAGE-SECRET-KEY-1[0-9A-Z]{20,}")),
    ("an access key of AWS", re.compile(r"(?<![\w+/-])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![\w+/=-])")),
    ("an API key of Google", re.compile(r"(?<![\w-])AIza[\w-]{35}")),
    ("an OAuth token of Google", re.compile(r"(?<![\w-])ya29\.[\w-]{20,}")),
    ("an account key of Azure", re.compile(r"(\bAccountKey=)[\w+/]{40,}={0,2}")),
    ("a token of GitHub", re.compile(r"(?<![\w-])(?:gh[opsur]_|github_pat_)[A-Za-z0-9_]{20,}")),
    ("a token of GitLab", re.compile(r"(?<![\w-])gl(?:pat|dt|rt|cbt|ptt)-[\w-]{20,}")),
    ("a token of Hugging Face", re.compile(r"(?<![\w-])(?:hf|api_org)_(?![a-z]+(?![\w-]))[A-Za-z0-9]{20,}")),
    ("a key of a model provider", re.compile(r"(?<![\w-])sk[_-](?=[\w-]*\d)[\w-]{0,24}?[A-Za-z0-9]{20}")),
    ("a key of Stripe", re.compile(r"(?<![\w-])[rs]k_(?:live|test)_[A-Za-z0-9]{16,}")),
    ("a token of Databricks", re.compile(r"(?<![\w-])dapi[a-f0-9]{32}")),
    ("a token of Slack", re.compile(r"(?<![\w-])xox[abeoprs]-[\w-]{10,}")),
    ("a token of a package index", re.compile(
        r"(?<![\w-])(?:npm_[A-Za-z0-9]{36}|pypi-AgEIcHlwaS5vcmc[\w-]{20,})")),
    ("a key of SendGrid", re.compile(r"(?<![\w-])SG\.[\w-]{22}\.[\w-]{43}")),
    ("a JSON Web Token", re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")),
    ("a bearer token", re.compile(
        r"(\b[Bb]earer |\b[Aa]uthorization: *[Bb]asic )(?=[\w.~+/-]*\d)[\w.~+/-]{12,}=*")),
    ("a password", re.compile(
        r"((?<![\w=-])(?:pass(?:wor)?d|pwd|client_secret|(?:api|access|secret)[_-]?key)=)[^\s;,&'\"*<{$]+",
        re.IGNORECASE)),
)  # fmt: skip
"""What certainly is a secret, with its kind. A group is what stays when the rest is hidden."""

_NAMED = re.compile(
    r"(?<![\w-])(?P<name>[\w-]++)(?P<is>[\"']?\s{0,4}[:=]\s{0,4})"
    r"(?P<value>\"[^\"]*\"|'[^']*'|(?:(?:bearer|basic)\s+)?[^\s,;}&\"']+)",
    re.IGNORECASE,
)
_SUSPECT = re.compile(
    r"password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization",
    re.IGNORECASE,
)
_PROSE = re.compile(r"[a-z]+")

ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and movements of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # links, titles and other strings
)


def secrets_in(text: str) -> list[str]:
    """Return the kinds of secrets that a text certainly contains; none for nearly every text."""
    return list(dict.fromkeys(kind for kind, pattern in _SECRETS if pattern.search(text)))


def redacted(text: str) -> str:
    """Return a text with ``***`` for what certainly is a secret, and for the user of every URI."""
    for pattern in (_USER, *(pattern for _, pattern in _SECRETS)):
        text = pattern.sub(lambda found: f"{found[1] if found.re.groups else ''}***", text)
    return text


def redact(log: str) -> str:
    """Return lines of a log with ``***`` for secrets and for values whose names suggest one.

    Lines are bounded. A parameter is judged by :func:`secrets_in`, which takes no guesses.
    """
    lines = "\n".join(line[:_LINE] for line in log.split("\n"))
    return "\n".join(_NAMED.sub(_hide, line) for line in redacted(lines).split("\n"))


def _hide(found: re.Match[str]) -> str:
    """Hide a value whose name marks a secret; ``token:`` before a plain word is prose."""
    prose = found["name"].lower().endswith("token") and found["is"] == ": "
    if not _SUSPECT.search(found["name"]) or (prose and _PROSE.fullmatch(found["value"])):
        return found[0]
    return f"{found['name']}{found['is']}***"


def printable(text: str) -> str:
    """Return a text without what steers a terminal: escape sequences, control characters, bidi overrides.

    Names, messages, logs and texts of MLflow come from elsewhere. Line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else " " if letter.isspace() else ""
        for letter in ESCAPE.sub("", text).replace("\r\n", "\n")
    )


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


def shorten(text: str, limit: int = MAX_ENTRY) -> str:
    """Cut a long text in its middle: its start names the subject, its end the fault."""
    half = (limit - 5) // 2
    return text if len(text) <= limit else f"{text[:half]} ... {text[-half:]}"
