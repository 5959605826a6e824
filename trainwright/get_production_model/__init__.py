"""Finds the version of a model that is in production."""
