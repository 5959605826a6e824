"""Compares the rows that a model served with those that it learned from."""
