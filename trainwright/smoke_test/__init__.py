"""Loads a model in a clean process and scores its example, before it is registered."""
