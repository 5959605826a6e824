"""The request of a run: source, version and section; and the check that the source is still the same."""

from dataclasses import dataclass, replace

from trainwright.artifacts import Listing
from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.sources import list_source, places_of
from trainwright.storage import Access, ObjectChanged, head, local_path

LAYOUT = 1
"""Part of every request's digest: raise it when the same rows would be written differently."""


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """The source, its version, and how to read it.

    Attributes:
        version: The content digest that it must have.
    """

    source: str
    version: str
    data: Data
    access: Access

    @property
    def roles(self) -> dict[str, str]:
        """The columns by role."""
        return {"key": self.data.key, "time": self.data.time, "label": self.data.label}

    @property
    def digest(self) -> str:
        """The digest of the request: equal digests give equal snapshots.

        Where it is made, where it goes and what is remembered are no part of it; the place of the source is
        one only where the manifest will name it.
        """
        section = self.data.model_dump(mode="json", exclude={"runner", "store", "remember", "source"})
        asked = {"layout": LAYOUT, "source_version": self.version, "data": section}
        place = {"source": self.source} if self.data.mode == "reference" else {}
        return digest_text(canonical(asked | place))

    def listed(self) -> Listing:
        """List the source.

        Raises:
            InputError: Its content is not of the requested version.
        """
        listing = list_source(self.source, self.data, self.access)
        if listing.content_digest != self.version:
            raise self._changed(f"{listing.content_digest[:12]}, expected {self.version[:12]}")
        return listing

    def listed_again(self, before: Listing, error: InputError | ObjectChanged) -> Listing:
        """List the source anew after a shard failed, if that may be because the source moved under it.

        Returns:
            Another listing of the same content.

        Raises:
            InputError: The content is another now; or nothing moved, and the error is a true one.
        """
        if not isinstance(error, ObjectChanged) and (self.data.sql or not _may_have_moved(before)):
            raise error
        try:
            now = list_source(self.source, self.data, self.access)
        except InputError:
            raise self._changed(error.what) from error
        if now.content_digest != self.version:
            raise self._changed(error.what) from error
        if now.files == before.files:
            raise error
        return now

    def _changed(self, how: str) -> InputError:
        return InputError(
            f"the source changed since it was resolved: {how}",
            where=self.source,
            hint="Run the pipeline again: resolve looks at the source anew.",
        )


def locate_source(request: IngestRequest) -> tuple[IngestRequest, Listing]:
    """Find a location of the requested content, and list it there.

    Returns:
        The request with that place, and the listing.

    Raises:
        InputError: It lies in none of the places where it was seen.
    """
    failures: list[InputError] = []
    for place in places_of(request.source, request.version, request.data, request.access):
        there = replace(request, source=place)
        try:
            return there, there.listed()
        except InputError as error:
            failures.append(error)
    raise failures[0]


def _may_have_moved(listing: Listing) -> bool:
    """Return whether a file was written since it was listed, or is in a store, where only a listing tells."""
    for entry in listing.files:
        if local_path(entry.uri) is None:
            return True
        try:
            now = head(entry.uri)
        except InputError:
            return True
        if (now.size, now.written) != (entry.size, entry.written):
            return True
    return False
