"""The data that a model learned from, kept so that later data can be compared with it.

Every validation *calculates* one, of the split that the model learns from. It becomes the one that is *used*
only when a person accepts it (:mod:`trainwright.validate.acceptance`), once the model is in production.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from trainwright.documents import Document
from trainwright.errors import InputError
from trainwright.storage import open_file, take_listing
from trainwright.tracking import environment
from trainwright.validate.bins import Counts, Cuts
from trainwright.validate.profile import Profile
from trainwright.validate.tfdv import statistics_pb2


@dataclass(frozen=True, kw_only=True)
class Baseline(Document):
    """What a split was like.

    Attributes:
        data_version: Digest of the snapshot.
        split: The split of it.
        rows: Its rows.
        schema: SHA-256 of the text of the schema that it was read with.
        statistics: File with TFDV's statistics, relative to this document's folder.
        statistics_sha256: Digest of that file.
        cuts: Where each numeric column was cut into bins.
        counts: Rows in each bin, one more than there are cuts.
        values: Rows with a value, by column: the sample sizes.
        made_by: The library and environment that calculated it.
        accepted: Who made it the one to compare with and why: time, reason, evidence, verdict, the one
            before it. Empty while it is only calculated.
    """

    FILE: ClassVar[str] = "baseline.json"
    data_version: str
    split: str
    rows: int
    schema: str
    statistics: str
    statistics_sha256: str
    cuts: dict[str, tuple[float, ...]]
    counts: dict[str, tuple[int, ...]]
    values: dict[str, int]
    made_by: dict[str, str]
    accepted: dict[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """The SHA-256 of what was calculated; acceptance changes nothing of it."""
        return replace(self, accepted={}, statistics="").digest

    @classmethod
    def of(
        cls,
        profile: Profile,
        cuts: Mapping[str, Cuts],
        *,
        data_version: str,
        schema: str,
        statistics: str,
        statistics_sha256: str,
    ) -> Self:
        """Describe a split that was looked at.

        Args:
            profile: The split, counted in the bins of ``cuts``.
            cuts: Where its numeric columns were cut.
            data_version: Digest of the snapshot.
            schema: SHA-256 of the schema's text.
            statistics: File with its statistics, in the same folder.
            statistics_sha256: Digest of that file.
        """
        own = environment()
        columns = [name for name in cuts if name in profile.counts]
        features = profile.statistics.datasets[0].features
        return cls(
            data_version=data_version,
            schema=schema,
            statistics=statistics,
            statistics_sha256=statistics_sha256,
            split=profile.split,
            rows=profile.rows,
            cuts={name: tuple(float(cut) for cut in cuts[name]) for name in columns},
            counts={name: tuple(int(rows) for rows in profile.counts[name]) for name in columns},
            values={
                name: profile.rows - profile.missing(name)
                for name in (feature.path.step[0] for feature in features)
            },
            made_by={
                "library": own.library,
                "environment": own.name,
                "lock_sha256": own.lock_sha256,
            },
        )


@dataclass(frozen=True)
class Reference:
    """A baseline that was read, ready to be compared with.

    Attributes:
        document: The baseline.
        profile: What is known of its split.
        cuts: Where its numeric columns were cut.
    """

    document: Baseline
    profile: Profile
    cuts: dict[str, Cuts]


def read_baseline(uri: str, version: str) -> Reference | None:
    """Read an accepted baseline, and check that it is the one that was looked at when the run began.

    Args:
        uri: The document: a file or a URI. Empty if there is none.
        version: Its content digest, as ``resolve`` found it.

    Raises:
        InputError: It is gone, changed, no baseline, or one that nobody accepted.
    """
    if not uri:
        return None
    found = take_listing(uri).content_digest
    if found != version:
        raise InputError(
            f"the baseline is {found[:12]}, expected {version[:12] or '(no version was given)'}: "
            "it changed after it was looked at",
            where=uri,
            hint="Run again: `resolve` looks at it first.",
        )
    with open_file(uri) as stream:
        document = Baseline.parse(stream.read(), where=uri)
    if not document.accepted:
        raise InputError(
            "this baseline was only calculated; nobody has accepted it",
            where=uri,
            hint="trainwright baseline accept RUN_FOLDER --to FILE makes it one to compare with.",
        )
    return _reference(document, _sibling(uri, document.statistics))


def _sibling(uri: str, name: str) -> str:
    """Return the place of a file that is named relative to a document."""
    if name.startswith("/") or ".." in name.split("/") or "://" in name:
        raise InputError(f"the baseline names a file outside its folder: {name!r}", where=uri)
    folder, slash, _ = uri.rpartition("/")
    return f"{folder}{slash}{name}"


def _reference(document: Baseline, place: str) -> Reference:
    with open_file(place) as stream:
        content = stream.read()
    digest = hashlib.sha256(content).hexdigest()
    if digest != document.statistics_sha256:
        raise InputError(
            f"the statistics of the baseline are {digest[:12]}, it says {document.statistics_sha256[:12]}",
            where=place,
            hint="Accept the baseline again, from the run that made it.",
        )
    cuts = {name: np.asarray(points, np.float64) for name, points in document.cuts.items()}
    counts: dict[str, Counts] = {name: np.asarray(rows, np.int64) for name, rows in document.counts.items()}
    profile = Profile(
        split=f"{document.split} of the baseline",
        rows=document.rows,
        statistics=statistics_pb2.DatasetFeatureStatisticsList.FromString(content),
        counts=counts,
    )
    return Reference(document, profile, cuts)
