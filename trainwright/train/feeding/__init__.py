"""Feeding: from the files of a split to batches in a reproducible order."""
