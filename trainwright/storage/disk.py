"""What a disk says about a path, in our words."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.errors import DependencyError, InputError, PermissionRefused, in_our_words

_NO_PLACE = {
    errno.ENOENT: "no such file",
    errno.EISDIR: "this is a folder, not a file",
    errno.ENOTDIR: "a file lies where a folder should be",
    errno.EEXIST: "a file lies where a folder should be",
    errno.ENAMETOOLONG: "this name is longer than the disk takes",
    errno.ELOOP: "a link that leads back to itself",
    errno.EINVAL: "the disk takes no such name",
    errno.EILSEQ: "the disk takes no such name",
}
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the system says about a path into an error of ours that names it.

    Raises:
        InputError: Nothing lies there, or nothing can.
        PermissionRefused: It is not allowed.
        DependencyError: The disk is full, or fails.
    """
    try:
        yield
    except OSError as error:
        raise _in_our_words(error, str(error.filename or path)) from None


def _in_our_words(error: OSError, where: str) -> BaseException:
    if error.errno in _NO_PLACE:
        return InputError(_NO_PLACE[error.errno], where=where)
    if error.errno in _REFUSED:
        return PermissionRefused(f"user {os.geteuid()} may not do that here: {error.strerror}", where=where)
    known = in_our_words(error)
    return known if known is not error else DependencyError(f"the disk fails: {error}", where=where)


def text_of(path: Path) -> str:
    """Return a path as text.

    Raises:
        InputError: Its name is no UTF-8, so that no listing and no manifest could hold it.
    """
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise InputError("the name of this file is no UTF-8", where=shown, hint="Rename it.") from None
