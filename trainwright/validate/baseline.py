"""The accepted baseline: the data that the model in production learned from, for comparison with later data.

Every validation calculates one, of the split that the model learns from. It is used only once a person
accepts it. ``PLACE.json`` is the baseline in use, and ``PLACE.history/`` holds every one there ever was:
files that are only ever created. To go back, accept an older run again, or name a file of the history.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from trainwright.artifacts import Record
from trainwright.documents import digest_file
from trainwright.drift.baseline import Baseline, FeatureStatistics, read_accepted, read_beside
from trainwright.drift.comparison import Cuts
from trainwright.errors import DataRefused, InputError
from trainwright.lineage import ancestors
from trainwright.storage import AlreadyExists, create, local_path, read_bytes, remove
from trainwright.tracking import environment
from trainwright.validate.profile import Profile
from trainwright.validate.tfdv import statistics_pb2
from trainwright.verdicts import Verdict


def describe(
    profile: Profile,
    cuts: Mapping[str, Cuts],
    *,
    data_version: str,
    schema: str,
    statistics: str,
    statistics_sha256: str,
) -> Baseline:
    """Describe a split by its profile."""
    own = environment()
    columns = [name for name in cuts if name in profile.counts]
    return Baseline(
        data_version=data_version,
        schema=schema,
        statistics=statistics,
        statistics_sha256=statistics_sha256,
        split=profile.split,
        rows=profile.rows,
        cuts={name: tuple(float(cut) for cut in cuts[name]) for name in columns},
        counts={name: tuple(int(rows) for rows in profile.counts[name]) for name in columns},
        values={name: profile.rows - profile.missing(name) for name in profile.features},
        made_by={"library": own.library, "environment": own.name, "lock_sha256": own.lock_sha256},
    )


@dataclass(frozen=True)
class Reference:
    """A baseline that was read, ready to be compared with."""

    document: Baseline
    profile: Profile
    cuts: dict[str, Cuts]


def read_baseline(uri: str, version: str) -> Reference | None:
    """Read an accepted baseline with its profile; None without a ``uri``.

    Raises:
        InputError: It is gone, changed, no baseline, or one that nobody accepted.
    """
    if not uri:
        return None
    document = read_accepted(uri, version)
    content = read_beside(uri, document.statistics, document.statistics_sha256)
    profile = Profile(
        split=f"{document.split} of the baseline",
        rows=document.rows,
        statistics=statistics_pb2.DatasetFeatureStatisticsList.FromString(content),
        counts={column: np.asarray(rows, np.int64) for column, rows in document.counts.items()},
    )
    cuts = {column: np.asarray(points, np.float64) for column, points in document.cuts.items()}
    return Reference(document, profile, cuts)


_SUFFIX = ".json"
_MOST = 100_000


@dataclass(frozen=True)
class Accepted:
    """A baseline that was published, and the one that it replaced, if any."""

    baseline: Baseline
    place: str
    history: str
    before: Baseline | None


def accept(source: Path, place: str, *, promoted: Path | None = None, reason: str = "") -> Accepted:
    """Publish the baseline that a run calculated.

    Args:
        source: Folder of the run, or of its data verdict.
        place: Where the baseline is used from: a file or a URI that ends with ``.json``.
        promoted: A record, or the folder of one, which shows that a model trained on this data was promoted
            to production. One in the folder of the run is found.
        reason: Why it is accepted without such a record; recorded either way.

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
            "nothing shows that a model which learned from this data is in production",
            where=str(source),
            hint="Name the record of its promotion to production (--model-promoted), or say why it is to "
            "be the baseline all the same (--reason). A registration is not enough.",
        )
    before = _in_use(place)
    accepted = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "decision": verdict.decision,
        "verdict": verdict.digest,
        "evidence": evidence,
        "reason": reason.strip(),
        "previous": before.digest if before else "",
    }
    statistics = (folder / baseline.statistics).read_bytes()
    features = _features(source, verdict)
    return _publish(replace(baseline, accepted=accepted), statistics, features, place, before)


def _verdict_folder(source: Path) -> Path:
    """Find the folder of the data verdict: ``source``, or the one in a run's folder."""
    if (source / Verdict.FILE).is_file():
        return source
    found = [
        path.parent
        for path in sorted(source.glob("*/*/" + Baseline.FILE))
        if Record.read(path.parent).step == "validate"  # `join` carries a copy on
    ]
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


def _features(source: Path, verdict: Verdict) -> bytes:
    """Return the statistics of the joined features of a run's training set; empty if there are none."""
    for path in sorted(source.glob("*/*/" + FeatureStatistics.FILE)):
        found = FeatureStatistics.read(path.parent)
        judged = Verdict.read(path.parent).judged.get(f"features/{FeatureStatistics.FILE}")
        if found.data_version == verdict.judged["data"] and judged == found.digest:
            return path.read_bytes()
    return b""


def _evidence(source: Path, folder: Path, verdict: Verdict, promoted: Path | None) -> str:
    """Return the headline of a record which shows that a model was promoted from this very verdict."""
    if promoted is not None:
        record = Record.read(promoted)
        if not _proves(record, verdict):
            raise InputError(
                f"this record of {record.step} does not show that a model which came from verdict "
                f"{verdict.digest[:12]} was promoted to production",
                where=str(promoted),
                hint="Name the record of the promotion of a model that learned from this data.",
            )
        return f"{record.step} {record.digest[:12]}: {record.headline}"
    paths = sorted(source.glob("*/*/" + Record.FILE)) if source != folder else []
    found = next((record for record in map(Record.read, paths) if _proves(record, verdict)), None)
    return f"{found.step} {found.digest[:12]}: {found.headline}" if found else ""


def _proves(record: Record, verdict: Verdict) -> bool:
    """Return whether a record shows that a model of this verdict's data went to production."""
    return (
        (record.step, record.decision) == ("promote", "PASS")
        and record.config.get("request", {}).get("to") == "production"
        and any(
            entry.step == "validate" and entry.outputs.get("verdict") == verdict.digest
            for entry in ancestors([record])
        )
    )


def _in_use(place: str) -> Baseline | None:
    """Read the baseline that is in use; None if there is none yet."""
    if not place.endswith(_SUFFIX):
        raise InputError("a baseline is a file whose name ends with .json", where=place)
    path = local_path(place)
    if path is not None and not path.exists():
        return None
    try:
        content = read_bytes(place)
    except InputError:  # nothing is there: at a URI only reading tells
        return None
    return Baseline.parse(content, where=place)


def _publish(
    baseline: Baseline, statistics: bytes, features: bytes, place: str, before: Baseline | None
) -> Accepted:
    """Write statistics and history first, each only created, and then the file that is used.

    On a disk, the last step is atomic. In an object store it is two, between which there is no baseline: a
    run that reads it just then stops, and says so.
    """
    root = place.removesuffix(_SUFFIX) + ".history"
    name = f"{hashlib.sha256(statistics).hexdigest()}.pb"
    _create(f"{root}/{name}", statistics)
    named = {}
    if features:
        digest = hashlib.sha256(features).hexdigest()
        named = {"features": f"{digest}.json", "features_sha256": digest}
        _create(f"{root}/{digest}.json", features)
    first = int(before.accepted.get("number", "0")) + 1 if before else 1
    for number in range(first, first + _MOST):
        accepted = baseline.accepted | named | {"number": str(number)}
        own = replace(baseline, statistics=name, accepted=accepted)
        history = f"{root}/{number:06d}{_SUFFIX}"
        try:
            create(history, _bytes(own))
            break
        except AlreadyExists:  # of another acceptance, whose writer died before the last step
            continue
    else:
        raise InputError("the history has no free number", where=root)
    beside = root.rpartition("/")[2]
    if features:
        accepted |= {"features": f"{beside}/{named['features']}"}
    used = replace(own, statistics=f"{beside}/{name}", accepted=accepted)
    path = local_path(place)
    if path is not None:
        used.write(path)
    else:
        remove([place])
        create(place, _bytes(used))
    return Accepted(used, place, history, before)


def _create(place: str, content: bytes) -> None:
    """Write a file that is named by its content, unless another writer did."""
    try:
        create(place, content)
    except AlreadyExists:
        if read_bytes(place) != content:
            raise InputError("other statistics lie here under this digest", where=place) from None


def _bytes(document: Baseline) -> bytes:
    return (json.dumps(document.to_json(), indent=2, allow_nan=False) + "\n").encode()
