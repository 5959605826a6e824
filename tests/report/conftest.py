"""Tests of pages look at them in a real browser."""

from tests.report.browser import browser

__all__ = ["browser"]
