"""That a version was registered, and on what: noted where promotions are decided, outside of MLflow.

Whoever may write MLflow can make a version by hand, with files and tags that agree with each other. What they
cannot make is its note: ``AUDIT/<model>/registered/<key>.json``, created once by the identity that registers.
The key is a digest of the contents, so that a registration that is repeated finds its note.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError
from trainwright.registry.names import folder_of
from trainwright.storage import AlreadyExists, create, join, list_files, read_bytes

FOLDER = "registered"


@dataclass(frozen=True, kw_only=True)
class Note(Document):
    """What was registered. It is written once and never changed; it names no time and no version.

    Attributes:
        model: Name of the registered model.
        key: What makes two registrations the same: :func:`key_of`.
        model_digest: Digest of the model's manifest.
        model_verdict: Digest of the verdict about the model.
        data_verdict: Digest of the verdict about its data.
        trial: Digest of the trial.
        author: Who answers for the training; empty if nobody was named.
        override: A person's word in place of a PASS, as JSON; empty where it passed.
    """

    FILE: ClassVar[str] = "note.json"
    model: str
    key: str
    model_digest: str
    model_verdict: str
    data_verdict: str
    trial: str
    author: str = ""
    override: str = ""


def key_of(model: str, model_digest: str, model_verdict: str, data_verdict: str) -> str:
    """Return what makes two registrations the same: the name, the model and what was decided about it."""
    return digest_text(canonical([model, model_digest, model_verdict, data_verdict]))


def write_note(audit: str, note: Note) -> None:
    """Note a registration, unless it is noted: the first note stands.

    Args:
        audit: Folder or URI of the audit of all models.
        note: What was registered.

    Raises:
        DependencyError, TransientError, PermissionRefused: The store cannot be written.
    """
    text = json.dumps(note.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with suppress(AlreadyExists):
        create(_place(audit, note.model, note.key), text.encode())


def read_note(audit: str, model: str, key: str) -> Note | None:
    """Read the note of a registration; None if there is none.

    Raises:
        InputError: What lies there is no note, or one of another registration.
        DependencyError, TransientError, PermissionRefused: The store cannot be read.
    """
    place = _place(audit, model, key)
    if not _is_there(place):
        return None
    try:
        note = Note.from_json(json.loads(read_bytes(place)), place)
    except ValueError:
        raise InputError("this is no note of a registration", where=place) from None
    if (note.model, note.key) != (model, key):
        raise InputError(f"this is the note of another registration, {note.key[:12]}", where=place)
    return note


def _is_there(place: str) -> bool:
    try:
        return bool(list_files(place))
    except InputError:
        return False


def _place(audit: str, model: str, key: str) -> str:
    return join(audit, folder_of(model), FOLDER, f"{key}.json")
