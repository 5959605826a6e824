"""A script of faults: which calls go wrong, how, how often."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.launch.standin.answers import Refused
from tests.launch.standin.resources import Address

CUT, COMMIT_THEN_CUT, SLOW, ANSWER = "cut", "commit-then-cut", "slow", "answer"


@dataclass
class Fault:
    """Something that goes wrong with calls that match.

    Attributes:
        how: ``cut`` the connection before anything is done, ``commit-then-cut``, ``slow`` or ``answer``.
        answer: What to answer.
        seconds: How long a slow call takes longer.
        verbs: Which calls, as a Role names them; empty for all.
        resources: Of which kinds, by plural name; empty for all.
        name: Of which object; empty for any.
        chance: Probability that a matching call goes wrong, in 0..1.
        times: How many calls still go wrong; ``None``: no end.
        after: How many matching calls still go well before the first one that does not.
        hit: How many calls went wrong so far.
    """

    how: str
    answer: Refused | None = None
    seconds: float = 0
    verbs: Sequence[str] = ()
    resources: Sequence[str] = ()
    name: str = ""
    chance: float = 1
    times: int | None = 1
    after: int = 0
    hit: int = 0

    def matches(self, verb: str, address: Address | None) -> bool:
        """Tell whether a call is one of those."""
        plural, name = (address.resource.plural, address.name) if address else ("", "")
        return (
            (not self.verbs or verb in self.verbs)
            and (not self.resources or plural in self.resources)
            and self.name in ("", name)
        )


class Faults:
    """The script. Each method adds a fault; its other arguments are those of :class:`Fault`.

    By default a fault befalls the next call that matches, and no other.
    """

    def __init__(self, seed: int, cut_streams: Callable[[], None]) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._lock, self._cut_streams = threading.Lock(), cut_streams
        self._script: list[Fault] = []
        self._until = 0.0

    def drop(self, **which: object) -> Fault:
        """Cut the connection before anything is done."""
        return self._add(Fault(CUT, **which))  # type: ignore[arg-type]

    def commit_then_drop(self, **which: object) -> Fault:
        """Do what is asked for, then cut the connection instead of an answer."""
        return self._add(Fault(COMMIT_THEN_CUT, **which))  # type: ignore[arg-type]

    def slow(self, seconds: float, **which: object) -> Fault:
        """Answer late."""
        return self._add(Fault(SLOW, seconds=seconds, **which))  # type: ignore[arg-type]

    def refuse(self, answer: Refused, **which: object) -> Fault:
        """Answer with a refusal."""
        return self._add(Fault(ANSWER, answer=answer, **which))  # type: ignore[arg-type]

    def error(
        self, code: int = 500, message: str = "etcdserver: request timed out", **which: object
    ) -> Fault:
        """Answer with an error that passes: 500, 502, 503 or 504."""
        reasons = {500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
        return self.refuse(Refused(code, reasons.get(code, "InternalError"), message), **which)

    def busy(self, retry_after_s: int = 1, **which: object) -> Fault:
        """Answer 429 with ``Retry-After``, as an API server with too much to do."""
        said = "the server has received too many requests and has asked us to try again later"
        details = {"retryAfterSeconds": retry_after_s}
        headers = {"Retry-After": str(retry_after_s)}
        return self.refuse(Refused(429, "TooManyRequests", said, details, headers), **which)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Cut every call, watches too, for as long as the block lasts."""
        self.begin_outage(float("inf"))
        try:
            yield
        finally:
            self.end_outage()

    def begin_outage(self, seconds: float) -> None:
        """Cut every call for some time; return at once."""
        self._until = time.monotonic() + seconds
        self._cut_streams()

    def end_outage(self) -> None:
        """Let calls pass again."""
        self._until = 0.0

    @property
    def out(self) -> bool:
        """Whether there is an outage now."""
        return time.monotonic() < self._until

    def clear(self) -> None:
        """Let everything go well from now on."""
        self.end_outage()
        with self._lock:
            self._script.clear()

    def next(self, verb: str, address: Address | None) -> Fault | None:
        """Return what goes wrong with a call; nothing if all goes well."""
        if self.out:
            return Fault(CUT)
        with self._lock:
            for fault in self._script:
                if not fault.matches(verb, address) or fault.times == 0:
                    continue
                if fault.after > 0:
                    fault.after -= 1
                elif self._random.random() < fault.chance:
                    fault.hit += 1
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._script.append(fault)
        return fault
