"""Scores the rows that a candidate is judged on with the model that is in production."""
