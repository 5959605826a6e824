"""Removes jobs that nobody looks after any more: what a launcher that was killed could leave behind."""
