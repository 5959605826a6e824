"""Killed at any moment at which it changes a file: the next run leaves the store as if nothing had been."""

import os
import shutil
import signal
import sys
from collections.abc import Callable

from tests.materialize.shop import Shop, at, forget, row

ENOUGH = 200
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "sqlite3.connect"}


def killed_at(shop: Shop, moment: int) -> bool:
    """Run in a copy of this process that kills itself at a moment; tell whether it came to that."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    seen = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        changes = event in CHANGES or (event == "open" and arguments[1] not in {"r", "rb"})
        if changes and any(str(shop.folder) in str(argument) for argument in arguments[:2]):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    status = 1
    try:
        shop.run(date=at(10).isoformat())
        status = 0
    finally:
        os._exit(status)


def test_a_run_killed_at_any_moment_is_mended_by_the_next(make_shop: Callable[..., Shop]) -> None:
    from tests.materialize.test_layout import contents

    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 3, 23)])
    shop.run(date=at(5).isoformat())
    before = shop.folder / "before"
    shutil.copytree(shop.folder / "state", before / "state")
    shutil.copy(shop.folder / "online.db", before)
    shop.add("b", [row(1, 8, 18), row(3, 9, 39)])
    shop.run(date=at(10).isoformat())
    undisturbed = contents(shop)
    for moment in range(1, ENOUGH):
        shutil.rmtree(shop.folder / "state")
        shutil.copytree(before / "state", shop.folder / "state")
        shutil.copy(before / "online.db", shop.folder)
        killed = killed_at(shop, moment)
        forget(shop.folder / "state")
        mark = shop.run(date=at(10).isoformat()).views[0].mark
        assert (mark.number in {2, 3}, mark.reached) == (True, at(10).isoformat())
        assert contents(shop) == undisturbed
        if not killed:
            break
    assert 10 < moment < ENOUGH - 1
