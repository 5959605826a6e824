"""Statistics and counts that were taken once, kept by the data, the options and the engine they depend on.

A kept result is two files, ``<key>.pb`` and then ``<key>.json``, which names the digest of the first and its
own: so one that is half written, damaged or another's is told from a good one. It is then not used, which is
said, and the rows are looked at again. Nothing is ever written over.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from trainwright import storage
from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError, TrainwrightError
from trainwright.validate.bins import Counts, Cuts
from trainwright.validate.tfdv import statistics_pb2

_log = logging.getLogger("trainwright.validate")


@dataclass(frozen=True, kw_only=True)
class Kept(Document):
    """What was taken of a split.

    Attributes:
        of: What it depends on: data version, split, engine, and either the columns with the digest of what
            the schema says of them, or the digest of the cuts. The SHA-256 of this is the key.
        statistics_sha256: Digest of the file with TFDV's statistics; empty if these are counts.
        counts: Rows by bin and column; empty if these are statistics.
        content: SHA-256 over all of the above.
    """

    FILE: ClassVar[str] = "statistics.json"
    of: dict[str, Any]
    statistics_sha256: str
    counts: dict[str, tuple[int, ...]]
    content: str

    @classmethod
    def describe(cls, of: Mapping[str, Any], statistics: Any, counts: Mapping[str, Counts]) -> Self:
        """Describe statistics, or counts; the other is None or empty."""
        digest = hashlib.sha256(packed(statistics)).hexdigest() if statistics is not None else ""
        plain = {name: tuple(int(row) for row in rows) for name, rows in counts.items()}
        return cls(of=dict(of), statistics_sha256=digest, counts=plain, content=_content(of, digest, plain))


def packed(statistics: Any) -> bytes:
    """Return statistics in their one form as bytes."""
    return bytes(statistics.SerializeToString(deterministic=True))


def key_of(of: Mapping[str, Any]) -> str:
    """Return the name under which a result is kept."""
    return digest_text(canonical(dict(of)))


def cuts_digest(cuts: Mapping[str, Cuts]) -> str:
    """Return the SHA-256 over the places at which columns are cut."""
    return digest_text(canonical({name: [float(point).hex() for point in cuts[name]] for name in cuts}))


def _content(of: Mapping[str, Any], digest: str, counts: Mapping[str, tuple[int, ...]]) -> str:
    return digest_text(canonical({"of": dict(of), "statistics_sha256": digest, "counts": dict(counts)}))


@dataclass(frozen=True)
class Shelf:
    """A place where results are kept.

    Attributes:
        place: Folder or URI; nothing is kept if it is empty.
    """

    place: str = ""

    def statistics(self, of: Mapping[str, Any]) -> Any | None:
        """Return kept statistics, or None if there are none that can be used."""
        with self._told(of):
            if (found := self._read(of)) is not None:
                content = storage.read_bytes(self._name(of, "pb"))
                if hashlib.sha256(content).hexdigest() != found.statistics_sha256:
                    raise InputError("the file with the statistics was changed", where=self._name(of, "pb"))
                return statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
        return None

    def counts(self, of: Mapping[str, Any], cuts: Mapping[str, Cuts]) -> dict[str, Counts] | None:
        """Return kept counts in the bins of ``cuts``, or None if there are none that can be used."""
        with self._told(of):
            if (found := self._read(of)) is not None:
                if {x: len(rows) for x, rows in found.counts.items()} != {x: len(cuts[x]) + 1 for x in cuts}:
                    raise InputError("the counts are of other bins", where=self._name(of, "json"))
                return {name: np.asarray(found.counts[name], np.int64) for name in cuts}
        return None

    def put(
        self, of: Mapping[str, Any], statistics: Any = None, counts: Mapping[str, Counts] | None = None
    ) -> None:
        """Keep a result; if that cannot be done, say so and go on."""
        if not self.place:
            return
        document = Kept.describe(of, statistics, counts or {})
        try:
            if statistics is not None:
                _create(self._name(of, "pb"), packed(statistics))
            _create(self._name(of, "json"), canonical(document.to_json()).encode())
        except (TrainwrightError, OSError) as error:
            _log.warning("the statistics of split %s are not kept: %s", of.get("split"), error)

    def _read(self, of: Mapping[str, Any]) -> Kept | None:
        """Return what is kept under a key, None if nothing is.

        Raises:
            TrainwrightError: It cannot be used.
        """
        if not self.place:
            return None
        place = self._name(of, "json")
        try:
            content = storage.read_bytes(place)
        except InputError:
            return None
        found = Kept.parse(content, where=place)
        if canonical(found.of) != canonical(dict(of)):
            raise InputError("it is of other data", where=place)
        if found.content != _content(found.of, found.statistics_sha256, found.counts):
            raise InputError("it was changed", where=place)
        return found

    def _name(self, of: Mapping[str, Any], ending: str) -> str:
        return storage.join(self.place, f"{key_of(of)}.{ending}")

    @contextmanager
    def _told(self, of: Mapping[str, Any]) -> Iterator[None]:
        """Say why what is kept is not used, and go on without it."""
        try:
            yield
        except (TrainwrightError, DecodeError, ValueError, OSError) as error:
            _log.warning("what is kept of split %s is not used: %s", of.get("split"), error)


def _create(place: str, content: bytes) -> None:
    try:
        storage.create(place, content)
    except storage.AlreadyThere:
        if storage.read_bytes(place) != content:
            raise
