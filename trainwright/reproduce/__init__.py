"""Repeat an earlier run from its records, and compare the results step by step."""
