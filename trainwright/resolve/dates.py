"""The run's date in a source: ``{date}`` and ``{date:%Y/%m/%d}``."""

import re
from datetime import UTC, date, datetime

from trainwright.errors import InputError
from trainwright.placeholders import LEFT_OVER

_PLACE = re.compile(r"\{date(?::(?P<form>[^{}]*))?\}")
_FORM = re.compile(r"(?:%[YmdyjGVu]|[A-Za-z0-9 _./=-])*")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def run_date(text: str, now: datetime) -> date:
    """Read the date of a run.

    Args:
        text: A day as 2026-01-31; empty for today, in UTC.
        now: The present.

    Raises:
        InputError: It is no day, or a placeholder that nothing was put in place of.
    """
    _refuse_left_over(text, "parameter date")
    if not text:
        return now.astimezone(UTC).date()
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InputError(f"{text!r:.80} is no day", where="parameter date", hint="Write it as 2026-01-31.")


def fill_in(source: str, day: date) -> str:
    """Put a date in the place of every ``{date}`` of a source.

    Args:
        source: A path, a glob or a URI. ``{date}`` is 2026-01-31; ``{date:%Y/%m}`` is 2026/01, where the
            form may have %Y %m %d %y %j %G %V %u, letters, digits and ``_ - . / =``.
        day: The run's date.

    Raises:
        InputError: Something else stands in braces, or a placeholder that nothing was put in place of.
    """
    _refuse_left_over(source, "parameter source")

    def written(found: re.Match[str]) -> str:
        form = found["form"]
        if form is None:
            return day.isoformat()
        if "%" not in form or not _FORM.fullmatch(form):
            raise InputError(
                f"{found[0]!r:.80} is no form of a date",
                where="parameter source",
                hint="Write it as {date:%Y-%m-%d}, with %Y %m %d %y %j %G %V %u and plain characters.",
            )
        return day.strftime(form)

    filled = _PLACE.sub(written, source)
    if found := re.search(r"\{[^}]*\}?|\}", filled):
        raise InputError(
            f"{found[0]!r:.80} stands in the source, but only a date is filled in",
            where="parameter source",
            hint="Write {date} or {date:%Y/%m/%d}; braces have no other meaning.",
        )
    return filled


def _refuse_left_over(text: str, where: str) -> None:
    if found := LEFT_OVER.search(text):
        raise InputError(
            f"placeholder {found[0]!r:.80} was given as it is: nothing was put in its place",
            where=where,
            hint="Kubeflow fills in its placeholders where a run is started; outside of it, write the value.",
        )
