"""A calculated baseline becomes the one that later data is compared with, when a person says so.

``PLACE.json`` is the baseline in use, and ``PLACE.history/`` holds every one there ever was: files that are
only ever created. To go back, accept an older run again, or name a file of the history.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from trainwright.artifacts import Record
from trainwright.documents import digest_file
from trainwright.errors import DataRefused, InputError
from trainwright.lineage import ancestors
from trainwright.storage import AlreadyThere, create, local_path, open_file, remove
from trainwright.validate.baseline import Baseline
from trainwright.verdicts import Verdict

_SUFFIX = ".json"
_MOST = 100_000

_PROVES = ("promote", "register")
"""Steps whose record shows that a model went on; the first is the stronger."""


@dataclass(frozen=True)
class Accepted:
    """A baseline that was published.

    Attributes:
        baseline: The document.
        place: Where it is used from.
        kept: Its file in the history.
        before: The one that it replaced; None if it is the first.
    """

    baseline: Baseline
    place: str
    kept: str
    before: Baseline | None


def accept(source: Path, place: str, *, promoted: Path | None = None, reason: str = "") -> Accepted:
    """Publish the baseline that a run calculated.

    Args:
        source: Folder of the run, or of its data verdict.
        place: Where the baseline is used from: a file or a URI that ends with ``.json``.
        promoted: A record, or the folder of one, which shows that a model trained on this data was promoted
            or, as long as nothing promotes, registered. One in the folder of the run is found.
        reason: Why it is accepted without such a record; kept with it either way.

    Raises:
        InputError: There is no verdict or baseline, its files were changed, nothing shows that a model was
            promoted and no reason is given, or the place holds something else.
        DataRefused: The verdict is FAIL.
    """
    folder = _verdict_folder(source)
    verdict, baseline = _checked(folder)
    if verdict.decision == "FAIL":
        raise DataRefused(
            "this data was refused: it is no baseline",
            where=str(folder),
            hint="Name a run whose data was not.",
        )
    evidence = _evidence(source, folder, verdict, promoted)
    if not (evidence or reason.strip()):
        raise InputError(
            "nothing shows that a model which learned from this data was promoted",
            where=str(source),
            hint="Name the record of its promotion or registration (--model-promoted), or say why it is to "
            "be the baseline all the same (--reason).",
        )
    before = _in_use(place)
    given = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "decision": verdict.decision,
        "verdict": verdict.digest,
        "evidence": evidence,
        "reason": reason.strip(),
        "previous": before.digest if before else "",
    }
    statistics = (folder / baseline.statistics).read_bytes()
    return _publish(replace(baseline, accepted=given), statistics, place, before)


def _verdict_folder(source: Path) -> Path:
    """Find the folder of the data verdict: the one given, or the one in a run's folder."""
    if (source / Verdict.FILE).is_file():
        return source
    found = [path.parent for path in sorted(source.glob("*/*/" + Baseline.FILE))]
    if len(found) != 1:
        what = "no validation with a baseline" if not found else f"{len(found)} validations"
        raise InputError(
            f"there is {what} in this folder",
            where=str(source),
            hint="Name the folder of a run, such as runs/0192f3, or of its verdict.",
        )
    return found[0]


def _checked(folder: Path) -> tuple[Verdict, Baseline]:
    """Read verdict and baseline, and check that neither was changed since."""
    verdict, baseline = Verdict.read(folder), Baseline.read(folder)
    path = folder / baseline.statistics
    whole = path.parent == folder and path.is_file() and digest_file(path) == baseline.statistics_sha256
    if not whole or verdict.judged.get(Baseline.FILE) != baseline.digest:
        raise InputError(
            f"the baseline or {baseline.statistics} is not the one that the verdict names",
            where=str(folder),
            hint="Run validate again, with caching off for it.",
        )
    return verdict, baseline


def _evidence(source: Path, folder: Path, verdict: Verdict, promoted: Path | None) -> str:
    """Return the headline of a record which shows that a model went on from this very verdict."""
    if promoted is not None:
        record = Record.read(promoted)
        if not (_proves(record) and _leads_to(record, verdict)):
            raise InputError(
                f"this record of {record.step} does not show that a model which came from verdict "
                f"{verdict.digest[:12]} went on",
                where=str(promoted),
                hint=f"Name the record of {' or '.join(_PROVES)} of a model that learned from this data.",
            )
        return f"{record.step} {record.digest[:12]}: {record.headline}"
    found = _records(source.glob("*/*/" + Record.FILE)) if source != folder else []
    fitting = [record for record in found if _proves(record) and _leads_to(record, verdict)]
    best = min(fitting, key=lambda record: _PROVES.index(record.step), default=None)
    return f"{best.step} {best.digest[:12]}: {best.headline}" if best else ""


def _records(paths: Iterable[Path]) -> list[Record]:
    return [Record.read(path) for path in sorted(paths)]


def _proves(record: Record) -> bool:
    """Tell whether a record is of a model that went on: it was registered, or it is in production."""
    if record.step != "promote":
        return record.step in _PROVES
    asked = record.config.get("request", {})
    return record.decision == "PASS" and asked.get("to") == "production"


def _leads_to(record: Record, verdict: Verdict) -> bool:
    return any(
        entry.step == "validate" and entry.outputs.get("verdict") == verdict.digest
        for entry in ancestors([record])
    )


def _in_use(place: str) -> Baseline | None:
    """Read the baseline that is in use; None if there is none yet."""
    if not place.endswith(_SUFFIX):
        raise InputError("a baseline is a file whose name ends with .json", where=place)
    path = local_path(place)
    if path is not None and not path.exists():
        return None
    try:
        with open_file(place) as stream:
            content = stream.read()
    except InputError:  # nothing is there: at a URI only reading tells
        return None
    return Baseline.parse(content, where=place)


def _publish(baseline: Baseline, statistics: bytes, place: str, before: Baseline | None) -> Accepted:
    """Write statistics and history first, each only created, and then the file that is used."""
    root = place.removesuffix(_SUFFIX) + ".history"
    name = f"{hashlib.sha256(statistics).hexdigest()}.pb"
    _create_once(f"{root}/{name}", statistics)
    own = replace(baseline, statistics=name)
    number = int(before.accepted.get("number", "0")) if before else 0
    kept = ""
    while not kept:  # a number that is taken: another was accepted, and its writer died before the last step
        number += 1
        own = replace(own, accepted=own.accepted | {"number": str(number)})
        kept = _created(f"{root}/{number:06d}{_SUFFIX}", _bytes(own))
        if number > _MOST:
            raise InputError("the history has no free number", where=root)
    used = replace(own, statistics=f"{root.rpartition('/')[2]}/{name}")
    _point(place, used)
    return Accepted(used, place, kept, before)


def _bytes(document: Baseline) -> bytes:
    return (json.dumps(document.to_json(), indent=2, allow_nan=False) + "\n").encode()


def _create_once(uri: str, content: bytes) -> None:
    """Create a file that is named by its content; another writer's is as good."""
    try:
        create(uri, content)
    except AlreadyThere:
        with open_file(uri) as stream:
            if stream.read() != content:
                raise InputError("other statistics lie here under this digest", where=uri) from None


def _created(uri: str, content: bytes) -> str:
    try:
        create(uri, content)
    except AlreadyThere:
        return ""
    return uri


def _point(place: str, document: Baseline) -> None:
    """Put the document where it is used from.

    On a disk that is one step. In an object store it is two, between which there is no baseline: a run that
    looks just then stops, and says so.
    """
    path = local_path(place)
    if path is not None:
        document.write(path)
        return
    remove([place])
    create(place, _bytes(document))
