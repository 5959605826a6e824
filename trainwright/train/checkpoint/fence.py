"""Numbers of starts: each life of a training's processes takes the next one, and the newest one counts.

A number is taken by a create-only file, so no two starts get the same, whatever machine they are on. An older
start sees the newer one's file before it commits anything, and ends.
"""

from pathlib import Path

from trainwright import storage
from trainwright.documents import canonical
from trainwright.errors import InputError, PreemptedUnsaved
from trainwright.storage import Access, AlreadyExists

_FOLDER = "starts"


class Fence:
    """One place that the starts of a training are numbered in.

    Args:
        place: Path or URI of the folder that all attempts at the training share.
        access: How long to try.
    """

    def __init__(self, place: str, access: Access) -> None:
        self._place, self._access = storage.join(place, _FOLDER), access

    def newest(self) -> int:
        """Return the highest number taken so far, 0 if none."""
        return max(self._numbers(), default=0)

    def take(self, number: int, attempt: str) -> bool:
        """Take a number, and tell whether it was free."""
        uri = storage.join(self._place, f"{number:04}.json")
        try:
            storage.create(uri, canonical({"attempt": attempt}).encode(), self._access)
        except AlreadyExists:
            return False
        return True

    def require(self, number: int) -> None:
        """End this start if there is a newer one.

        Raises:
            PreemptedUnsaved: There is; the training is its now.
        """
        if self.newest() > number:
            raise superseded(number, self._place)

    def _numbers(self) -> list[int]:
        path = storage.local_path(self._place)
        if path is not None:
            names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        else:
            try:
                found = storage.list_files(self._place, access=self._access)
            except InputError:
                return []
            names = [file.uri.rsplit("/", 1)[-1] for file in found]
        return [int(Path(name).stem) for name in names if Path(name).stem.isdigit()]


def superseded(number: int, where: str) -> PreemptedUnsaved:
    """Return the error that an older start ends with."""
    return PreemptedUnsaved(
        f"start {number} of this training was replaced by a newer one, which goes on with it",
        where=where,
        hint="Nothing is to be done; two of them would mix their checkpoints.",
    )
