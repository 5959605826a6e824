"""Documents of a draft: the options of ``trainwright init``, and the text that it writes."""

from dataclasses import dataclass
from typing import ClassVar

from trainwright.documents import Document


@dataclass(frozen=True, kw_only=True)
class DraftRequest(Document):
    """The options of ``trainwright init``; those that are empty are inferred.

    Attributes:
        source: File, folder, glob or URI; a local one as an absolute path.
        folder: Absolute path of the folder that the experiment file goes to.
        kind: ``text``, or the kind of the label.
    """

    FILE: ClassVar[str] = "request.json"
    source: str
    folder: str
    query: str = ""
    label: str = ""
    key: str = ""
    time: str = ""
    group: str = ""
    kind: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Draft(Document):
    """The text of an experiment file, and one line for each choice with its reason."""

    FILE: ClassVar[str] = "draft.json"
    experiment: str
    findings: tuple[str, ...]
