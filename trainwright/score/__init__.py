"""Scores the evaluation split with the model in production."""
